"""The accept length that a client reads in its answer's ``meta_info``, counted over verify steps alone.

SGLang divides all completion tokens of a request by its verify steps (``managers/tokenizer_manager.py``
``TokenizerManager._calculate_spec_decoding_metrics``, the same from 0.5.11 to 0.5.23).  A request that was decoded
plain for a while had tokens without verify steps, and would show an accept length above what can be drafted.
The accepted draft tokens and the verify steps that it sends along count no plain step.
"""

from __future__ import annotations

from typing import Any

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager._calculate_spec_decoding_metrics"
"""Runs in the process that answers HTTP, once per finished request."""


def correct_accept_length(
    result: None, tokenizer_manager: Any, meta_info: dict[str, Any], recv_obj: Any, i: int
) -> None:
    """Set ``spec_accept_length`` to the accepted draft tokens per verify step, plus the bonus token.

    An AFTER hook of :data:`TARGET`.  SGLang 0.5.11 calls the accepted tokens ``spec_accepted_drafts``.
    """
    verify_steps = meta_info.get("spec_verify_ct")
    accepted = meta_info.get("spec_num_correct_drafts", meta_info.get("spec_accepted_drafts"))
    if verify_steps and accepted is not None:
        meta_info["spec_accept_length"] = 1 + accepted / verify_steps
