"""Penalty state of a decode batch, rebuilt from the tokens that were put out.

While it speculates SGLang feeds its penalizers one token per verify step (``EAGLEWorker._draft_preprocess_decode``
and ``EagleDraftInputV2Mixin.prepare_for_decode`` of 0.5.12, "a relaxed version of penalties"), so a batch
that enters PLAIN carries too small a state.  A plain server feeds every token.

The classes relied on are those of ``sglang.srt.sampling.penaltylib`` (unchanged from 0.5.11 to 0.5.23).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def rebuild_penalties(sampling_info: Any, histories: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Set every prepared penalizer to what it would hold had it seen ``histories`` token by token.

    Args:
        sampling_info: SGLang's ``SamplingBatchInfo`` of the batch.
        histories: the tokens to count, one sequence per request in batch order.
        vocab_size: tokens outside ``[0, vocab_size)`` are not counted.
    """
    from sglang.srt.sampling.penaltylib import (
        BatchedFrequencyPenalizer,
        BatchedMinNewTokensPenalizer,
        BatchedPresencePenalizer,
        BatchedRepetitionPenalizer,
    )

    orchestrator = sampling_info.penalizer_orchestrator
    if not orchestrator.is_required:
        return
    device = orchestrator.device
    rows = torch.tensor(
        [row for row, history in enumerate(histories) for token in history if 0 <= token < vocab_size],
        dtype=torch.int64,
    ).to(device)
    tokens = torch.tensor(
        [token for history in histories for token in history if 0 <= token < vocab_size], dtype=torch.int64
    ).to(device)
    for penalizer in orchestrator.penalizers.values():
        if not penalizer.is_prepared():
            continue
        if isinstance(penalizer, BatchedFrequencyPenalizer):
            counted = penalizer.cumulated_frequency_penalties
            counted.zero_()
            counted.index_put_((rows, tokens), penalizer.frequency_penalties[rows, 0], accumulate=True)
        elif isinstance(penalizer, BatchedPresencePenalizer):
            counted = penalizer.cumulated_presence_penalties
            counted.zero_()
            counted[rows, tokens] = penalizer.presence_penalties[rows, 0]
        elif isinstance(penalizer, BatchedRepetitionPenalizer):
            counted = penalizer.cumulated_repetition_penalties
            counted.fill_(1.0)
            counted[rows, tokens] = penalizer.repetition_penalties[rows, 0]
        elif isinstance(penalizer, BatchedMinNewTokensPenalizer):
            lengths = [len(history) for history in histories]
            penalizer.len_output_tokens = torch.tensor(lengths, dtype=torch.int32).to(device).unsqueeze(1)
