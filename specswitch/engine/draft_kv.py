"""Catch-up: write the draft's KV for the tokens that were decoded while PLAIN.

The running batch is rewritten as an extend over the tokens the draft has not seen, and handed to the
speculative worker's own ``forward_batch_generation``: the target runs again over those tokens (their slots get
the same keys and values), its hidden states feed the draft's prefill, and one token comes out, as from a plain
decode step.  For SGLang 0.5.11-0.5.12 (``ScheduleBatch.prepare_for_extend``, ``get_model_worker_batch``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from specswitch.engine import kv


@dataclass(frozen=True)
class CatchUp:
    """An extend over what the draft missed, built before anything of the batch changes."""

    batch: Any
    prefix_lens: list[int]
    extend_lens: list[int]
    input_ids: torch.Tensor
    """int64 ``[sum(extend_lens)]``."""
    out_cache_loc: torch.Tensor
    """int64 ``[sum(extend_lens)]``: the slots these tokens already occupy."""

    @property
    def tokens(self) -> int:
        return sum(self.extend_lens)

    @classmethod
    def build(cls, batch: Any) -> CatchUp:
        """Build from a batch that was just prepared for a plain decode step, no result in flight.

        Each request's ``seq_lens_cpu`` then counts its tokens up to and including the last one put out.
        """
        ends = batch.seq_lens_cpu.tolist()
        prefixes = [min(kv.draft_len(req), end - 1) for req, end in zip(batch.reqs, ends)]
        ids: list[int] = []
        for req, start, end in zip(batch.reqs, prefixes, ends):
            ids += token_range(req, start, end)
        rows = [req.req_pool_idx for req in batch.reqs]
        return cls(
            batch=batch,
            prefix_lens=prefixes,
            extend_lens=[end - start for start, end in zip(prefixes, ends)],
            input_ids=torch.tensor(ids, dtype=torch.int64).to(batch.device),
            out_cache_loc=kv.gather_slots(batch.req_to_token_pool.req_to_token, rows, prefixes, ends),
        )

    def rewrite(self, batch: Any) -> None:
        """Turn the batch into this extend."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        batch.forward_mode = ForwardMode.EXTEND
        batch.input_ids, batch.out_cache_loc = self.input_ids, self.out_cache_loc
        batch.prefix_lens, batch.extend_lens = list(self.prefix_lens), list(self.extend_lens)
        batch.extend_num_tokens = self.tokens
        batch.extend_logprob_start_lens = list(self.extend_lens)  # no logprobs of tokens already put out
        batch.extend_input_logprob_token_ids = None
        batch.decoding_reqs = None
        batch.spec_info = None


def token_range(req: Any, start: int, end: int) -> list[int]:
    """Tokens ``start..end`` of prompt and output together, without joining the two in full."""
    prompt = req.origin_input_ids
    split = len(prompt)
    if start >= split:
        return list(req.output_ids[start - split : end - split])
    return list(prompt[start:end]) + list(req.output_ids[: max(0, end - split)])
