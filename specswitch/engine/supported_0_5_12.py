"""Which server arguments of SGLang 0.5.11-0.5.12 specswitch switches under, and why not the others."""

from __future__ import annotations

from typing import Any

_ALGORITHMS = ("EAGLE", "EAGLE3", "STANDALONE", "NGRAM")


def unsupported(server_args: Any) -> str | None:
    """One sentence on the first unsupported combination in resolved ``ServerArgs``, or None.

    Relies on ``sglang/srt/server_args.py`` ``ServerArgs`` after ``__post_init__``.
    """
    algorithm = server_args.speculative_algorithm
    if algorithm is None:
        return (
            "specswitch needs speculative decoding to switch off and on, but --speculative-algorithm is not set:"
            " set it, or remove --enable-specswitch."
        )
    if algorithm not in _ALGORITHMS:
        return (
            f"specswitch does not switch --speculative-algorithm {algorithm} on this SGLang release, because its"
            f" worker has not been tested: use one of {', '.join(_ALGORITHMS)}, or remove --enable-specswitch."
        )
    for refused, option, why in (
        (server_args.enable_multi_layer_eagle, "multi-layer EAGLE", "its worker keeps one draft KV cache per layer"),
        (
            server_args.speculative_adaptive,
            "--speculative-adaptive",
            "both would decide when to stop drafting",
        ),
        (server_args.enable_dp_attention, "--enable-dp-attention", "its ranks would have to agree on every switch"),
        (server_args.pp_size > 1, "--pipeline-parallel-size above 1", "its event loop is another one"),
        (server_args.attn_cp_size > 1, "attention context parallelism", "it has not been tested"),
        (
            server_args.disaggregation_mode != "null",
            "prefill/decode disaggregation",
            "its prefill and decode live in different servers",
        ),
        (server_args.enable_mixed_chunk, "--enable-mixed-chunk", "it prepares decode steps past the scheduler's hook"),
        (server_args.enable_hisparse, "--enable-hisparse", "it moves requests into the decode batch its own way"),
        (
            server_args.enable_hierarchical_cache,
            "--enable-hierarchical-cache",
            "it moves cached prefixes between slots past what specswitch keeps track of",
        ),
        (server_args.enable_pdmux, "--enable-pdmux", "its event loop is another one"),
        (server_args.dllm_algorithm is not None, "--dllm-algorithm", "diffusion models decode in blocks"),
    ):
        if refused:
            return f"specswitch does not work together with {option}, because {why}: remove one of the two."
    return None


def unsupported_scheduler(scheduler: Any) -> str | None:
    """One sentence if the loaded model keeps state besides one pool of KV slots, or None.

    Relies on ``sglang/srt/managers/scheduler.py`` ``Scheduler.__init__``.
    """
    for refused, what in (
        (scheduler.model_config.is_encoder_decoder, "encoder-decoder models"),
        (scheduler.model_config.is_multimodal, "multimodal models"),
        (scheduler.is_hybrid_swa, "models with a separate sliding-window KV pool"),
        (scheduler.is_hybrid_ssm, "models with Mamba state"),
    ):
        if refused:
            return (
                f"specswitch does not switch {what}, because it has been tested with text and one pool of KV slots"
                " only: start without --enable-specswitch."
            )
    return None
