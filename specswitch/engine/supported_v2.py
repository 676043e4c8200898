"""Which server arguments and models of SGLang 0.5.13 to 0.5.23 specswitch switches under, and why not the others."""

from __future__ import annotations

from typing import Any

from specswitch.engine import v2_compat

_ALGORITHMS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "NGRAM")
_OTHER_ALGORITHMS = {
    "DFLASH": "its draft input carries slots from step to step, which a plain step cannot keep up",
    "DSPARK": "its verify steps take their budget from confidences that a plain step does not make",
    "FROZEN_KV_MTP": "its draft reads the target's KV cache, and no model small enough to test it with exists",
    "UNO": "its draft and target are one model, whose plain decode has not been tested",
}


def unsupported(server_args: Any) -> str | None:
    """One sentence on the first unsupported combination in resolved ``ServerArgs``, or None.

    Relies on the fields of ``sglang/srt/server_args.py`` ``ServerArgs`` named here.
    """
    server_args = v2_compat.resolved(server_args)
    algorithm = server_args.speculative_algorithm
    if algorithm is None:
        return (
            "specswitch needs speculative decoding to switch off and on, but --speculative-algorithm is not set:"
            " set it, or remove --enable-specswitch."
        )
    if algorithm not in _ALGORITHMS:
        why = _OTHER_ALGORITHMS.get(algorithm, "its worker has not been tested")
        return (
            f"specswitch does not switch --speculative-algorithm {algorithm}, because {why}:"
            f" use one of {', '.join(_ALGORITHMS)}, or remove --enable-specswitch."
        )
    for option, is_set, why in _COMBINATIONS:
        if is_set(server_args):
            return f"specswitch does not work together with {option}, because {why}: remove one of the two."
    return None


def _given(name: str) -> Any:
    return lambda server_args: bool(getattr(server_args, name, False))


def _above_one(name: str) -> Any:
    return lambda server_args: (getattr(server_args, name, 1) or 1) > 1


_COMBINATIONS = (
    ("multi-layer EAGLE", _given("enable_multi_layer_eagle"), "its worker keeps one draft KV cache per layer"),
    ("--enable-dp-attention", _given("enable_dp_attention"), "its ranks would have to agree on every switch"),
    ("--pipeline-parallel-size above 1", _above_one("pp_size"), "its event loop is another one"),
    ("attention context parallelism", _above_one("attn_cp_size"), "it has not been tested"),
    ("decode context parallelism", _above_one("dcp_size"), "it has not been tested"),
    (
        "prefill/decode disaggregation",
        lambda server_args: getattr(server_args, "disaggregation_mode", "null") not in (None, "null"),
        "its prefill and decode live in different servers",
    ),
    ("--enable-mixed-chunk", _given("enable_mixed_chunk"), "it puts decode steps into prefill batches"),
    ("--enable-hisparse", _given("enable_hisparse"), "it moves requests into the decode batch its own way"),
    ("--enable-pdmux", _given("enable_pdmux"), "its event loop is another one"),
    ("--enable-two-batch-overlap", _given("enable_two_batch_overlap"), "it splits a batch that is being rebuilt"),
    ("--dllm-algorithm", _given("dllm_algorithm"), "diffusion models decode in blocks"),
    (
        "--enable-hierarchical-cache",
        _given("enable_hierarchical_cache"),
        "prefixes that come back from the host bring no draft KV",
    ),
    ("--enable-lmcache", _given("enable_lmcache"), "prefixes that come back from outside bring no draft KV"),
    ("--enable-flexkv", _given("enable_flexkv"), "prefixes that come back from outside bring no draft KV"),
    ("--enable-unified-memory", _given("enable_unified_memory"), "its allocator moves slots that are being rebuilt"),
    ("--enable-streaming-session", _given("enable_streaming_session"), "its sessions keep KV rows between requests"),
)


def unsupported_scheduler(scheduler: Any) -> str | None:
    """One sentence if the loaded model keeps state besides one pool of KV slots, or None.

    Relies on ``sglang/srt/managers/scheduler.py`` ``Scheduler.__init__``: ``model_config``, ``is_hybrid_swa``,
    ``is_hybrid_ssm``.
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
