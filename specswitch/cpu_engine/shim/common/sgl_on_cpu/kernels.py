"""Plain-torch versions of the sgl_kernel functions that decode and speculation call.

They follow sgl-kernel's csrc/speculative (eagle_utils.cu, speculative_sampling.cu, ngram_utils.cu)
and csrc/cpu.  Written to be checked by eye, for batches of a few requests.  Shapes: ``bs`` requests,
``n`` draft tokens per request (the root, that is the last accepted token, included).  ``retrive`` is
SGLang's spelling, kept because it passes these arguments by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

FULL_MASK = 0
"""Tree mask over the whole sequence: per request n x (seq_len + n), one request after the other."""
QLEN_ONLY = 1
"""Tree mask over the draft tokens alone: per request n x n."""


def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    seq_lens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    topk: int,
    num_draft_tokens: int,
    mask_mode: int,
) -> None:
    """Link the selected draft tokens to a tree and write its mask and positions (``build_tree_kernel_efficient``).

    ``parent_list``: bs x (topk * (depth - 1) + 1) int, ``selected_index``: bs x (n - 1) int, ``seq_lens``: bs int;
    outputs in place: ``positions`` bs * n, ``retrive_*`` bs x n, ``tree_mask`` bool.  Raises
    ``NotImplementedError`` for the bit-packed mask.
    """
    if mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError(f"tree mask mode {mask_mode} has no CPU version")
    n = num_draft_tokens
    bs = seq_lens.numel()
    parents, selected = parent_list.view(bs, -1).tolist(), selected_index.view(bs, -1).tolist()
    lengths = seq_lens.tolist()
    flat_mask, position = tree_mask.view(-1), positions.view(bs, n)
    offset = 0
    for b in range(bs):
        parent = [_parent_slot(slot, selected[b], parents[b], topk) for slot in range(n)]
        first_child, next_sibling = [-1] * n, [-1] * n
        # from the last to the first, as the kernel does: the first child ends up first in its list
        for slot in range(n - 1, 0, -1):
            above = parent[slot]
            if above >= 0:
                next_sibling[slot] = first_child[above]
                first_child[above] = slot
        visible = torch.zeros((n, n), dtype=torch.bool)
        visible[:, 0] = True
        for slot in range(n):
            depth, node = 0, slot
            while node > 0:
                visible[slot, node] = True
                depth, node = depth + 1, parent[node]
            position[b, slot] = lengths[b] + depth
        retrive_index[b] = torch.arange(b * n, (b + 1) * n)
        retrive_next_token[b] = torch.tensor(first_child)
        retrive_next_sibling[b] = torch.tensor(next_sibling)
        width = n if mask_mode == QLEN_ONLY else lengths[b] + n
        rows = flat_mask[offset : offset + n * width].view(n, width)
        rows[:, : width - n] = True
        rows[:, width - n :] = visible.to(tree_mask.dtype)
        offset += n * width


def _parent_slot(slot: int, selected: list[int], parents: list[int], topk: int) -> int:
    """Slot of the parent: 0 is the root, -1 none (the root itself, or a parent that was not selected)."""
    if slot == 0:
        return -1
    above = selected[slot - 1] // topk
    if above == 0:
        return 0
    return selected.index(parents[above]) + 1 if parents[above] in selected else -1


def verify_tree_greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree as long as a child is the target's own argmax.

    ``candidates`` bs x n, ``accept_index`` bs x (num_steps + 1), ``accept_token_num`` bs, ``target_predict`` bs x n
    (flat or not), ``predicts`` bs * n; the first three are outputs, in place.
    """
    bs, n = candidates.shape
    tokens, rows = candidates.tolist(), retrive_index.view(bs, n).tolist()
    child, sibling = retrive_next_token.view(bs, n).tolist(), retrive_next_sibling.view(bs, n).tolist()
    wanted, out = target_predict.reshape(-1).tolist(), predicts.view(-1)
    for b in range(bs):
        last = rows[b][0]
        accept_index[b, 0] = last
        accepted, node = 0, 0
        for _ in range(1, accept_index.shape[1]):
            node = child[b][node]
            while node != -1 and tokens[b][node] != wanted[last]:
                node = sibling[b][node]
            if node == -1:
                break
            out[last] = wanted[last]
            last = rows[b][node]
            accepted += 1
            accept_index[b, accepted] = last
        accept_token_num[b] = accepted
        out[last] = wanted[last]


def reconstruct_indices_from_tree_mask(
    tree_mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    bs: int,
    num_draft_tokens: int,
) -> None:
    """The links and positions of NGRAM's trees from their n x n masks (bool or int); outputs in place."""
    n = num_draft_tokens
    masks = torch.tril(tree_mask.view(-1)[: bs * n * n].view(bs, n, n).bool(), -1).tolist()
    lengths = seq_lens.tolist()
    position, rows = positions.view(bs, n), retrive_index.view(bs, n)
    child, sibling = retrive_next_token.view(bs, n), retrive_next_sibling.view(bs, n)
    for b in range(bs):
        above = masks[b]
        parent = [max((j for j in range(i) if above[i][j]), default=-1) for i in range(n)]
        for i in range(n):
            later = range(i + 1, n)
            position[b, i] = lengths[b] + sum(above[i])
            rows[b, i] = b * n + i
            child[b, i] = next((k for k in later if above[k][i]), -1)
            sibling[b, i] = next((k for k in later if parent[i] >= 0 and parent[k] == parent[i]), -1)


def attend(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, scale: float, logit_cap: float = 0.0) -> Tensor:
    """Attention of requests with equally many queries, computed in float32.

    ``query`` bs x q x heads x dim, ``key``/``value`` bs x k x kv_heads x dim, ``visible`` bool, bs x q (or 1) x k;
    returns bs x q x heads x dim in the query's dtype, 0 where a query sees nothing.
    """
    bs, new, heads, dim = query.shape
    kv_heads = key.shape[2]
    # the heads that share a KV head follow each other; they and the queries become one axis
    grouped = query.float().view(bs, new, kv_heads, -1, dim).permute(0, 2, 3, 1, 4).reshape(bs, kv_heads, -1, dim)
    scores = grouped @ key.float().permute(0, 2, 3, 1) * scale
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    scores = scores.view(bs, kv_heads, heads // kv_heads, new, -1).masked_fill(~visible[:, None, None], float("-inf"))
    weights = scores.softmax(-1).masked_fill(~visible.any(-1)[:, None, None, :, None], 0.0)
    out = weights.view(bs, kv_heads, heads // kv_heads * new, -1) @ value.float().transpose(1, 2)
    return out.view(bs, kv_heads, -1, new, dim).permute(0, 3, 1, 2, 4).reshape(query.shape).to(query.dtype)


def padded(slots: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Slots by request and which of them are its own: ``slots`` bs x at least the longest, ``lengths`` bs; returns
    int64 and bool bs x longest.  The others are its first, so that nothing is read that was never written."""
    longest = int(lengths.max()) if lengths.numel() else 0
    own = torch.arange(longest) < lengths[:, None]
    return torch.where(own, slots[:, :longest], slots[:, :1]).long(), own


def together(counts: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbours with equally many new tokens: the first request, the one behind the last, the number; never 0."""
    first = 0
    for number, run in groupby(counts):
        end = first + len(list(run))
        if number:
            yield first, end, number
        first = end
