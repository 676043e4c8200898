"""The sampling kernels of verify, following sgl-kernel's csrc/speculative/speculative_sampling.cuh."""

from __future__ import annotations

import torch
from torch import Tensor


def top_k_renorm_prob(probs: Tensor, top_k: Tensor) -> Tensor:
    """Keep each row's ``top_k`` likeliest tokens and normalise; ``probs`` rows x vocab, ``top_k`` rows int."""
    vocab = probs.shape[-1]
    kept = probs.clone()
    for row, k in enumerate(top_k.tolist()):
        if k < vocab:
            threshold = torch.topk(probs[row], int(k)).values[-1]
            kept[row][probs[row] < threshold] = 0
    return kept / kept.sum(-1, keepdim=True)


def top_p_renorm_prob(probs: Tensor, top_p: Tensor) -> Tensor:
    """Keep each row's likeliest tokens up to mass ``top_p`` and normalise; ``probs`` rows x vocab, ``top_p`` rows."""
    ordered, index = torch.sort(probs, dim=-1, descending=True)
    keep = ordered.cumsum(-1) - ordered < top_p.view(-1, 1)
    keep[..., 0] = True
    kept = torch.zeros_like(probs).scatter_(-1, index, torch.where(keep, ordered, torch.zeros_like(ordered)))
    return kept / kept.sum(-1, keepdim=True)


def tree_speculative_sampling_target_only(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept draft tokens by the target's probabilities, then sample one token from what is left.

    ``candidates`` bs x n, ``target_probs``/``draft_probs`` bs x n x vocab, ``uniform_samples`` bs x n,
    ``uniform_samples_for_final_sampling`` bs; outputs in place: ``predicts`` bs * n,
    ``accept_index`` bs x (num_steps + 1), ``accept_token_num`` bs.
    """
    threshold_acc = max(threshold_acc, 1e-9)
    tokens, rows = candidates.tolist(), retrive_index.tolist()
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for b in range(len(tokens)):
        mass, node, at = 0.0, 0, 0
        coin = float(uniform_samples[b, 0])
        last = rows[b][0]
        accept_index[b, 0] = last
        accepted = 0
        for _ in range(1, accept_index.shape[1]):
            at = child[b][at]
            while at != -1:
                token = tokens[b][at]
                prob = float(target_probs[b, node, token])
                mass += prob
                if coin <= mass / threshold_acc or prob >= threshold_single:
                    mass, node, coin = 0.0, at, float(uniform_samples[b, at])
                    predicts[last] = token
                    last = rows[b][at]
                    accepted += 1
                    accept_index[b, accepted] = last
                    break
                draft_probs[b, node, token] = target_probs[b, node, token]
                at = sibling[b][at]
            if at == -1:
                break
        accept_token_num[b] = accepted
        left = target_probs[b, node].float()
        if accepted != accept_index.shape[1] - 1:
            left = torch.clamp(left - draft_probs[b, node].float(), min=0)
        draw = uniform_samples_for_final_sampling[b].float() * left.sum()
        token = int(torch.searchsorted(left.cumsum(0), draw, right=True))
        predicts[last] = min(token, left.numel() - 1)
