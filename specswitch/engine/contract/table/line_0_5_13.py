"""Rows of the engine for SGLang 0.5.13 and later, whose only speculative workers are the ``EAGLEWorkerV2`` family.

``since`` and ``until`` follow the alternatives in ``specswitch.engine.v2_compat``, which looks at the objects at hand;
here they are tied to the releases that were read, so that a renamed piece cannot pass for an older release's.
"""

from __future__ import annotations

from specswitch.engine.contract.pieces import Need, ReleaseLine, Use, function
from specswitch.engine.contract.table import whys
from specswitch.engine.contract.table.owners import (
    ALGORITHM,
    BATCH,
    DISPATCHER,
    DRAFT_INPUT,
    EAGLE_V2,
    FORWARD_MODE,
    FUTURE_MAP,
    METRICS_REPORTER,
    MODEL_CONFIG,
    NEXT_BATCH_PLAN,
    NGRAM_INPUT,
    ORCHESTRATOR,
    PREFIX_CACHE,
    RELAY_PAYLOAD,
    REQ,
    REQ_KV,
    RESULT,
    ROWS,
    SAMPLING,
    SAMPLING_PARAMS,
    SCHEDULER,
    SERVER_ARGS,
    SLOT_ALLOCATOR,
    STATE_REPLY,
    STATE_REQUEST,
    TARGET_WORKER,
)
from specswitch.engine.contract.table.shared import SHARED

_HOOK, _CALL, _READ, _WRITE = Use.HOOK, Use.CALL, Use.READ, Use.WRITE
_BOTH = Use.READ | Use.WRITE
_LOOPS = ("event_loop_normal", "event_loop_overlap")
_EXTEND_END = "say which tokens of a request the catch-up covers"
_PREFILLED = "keep a prefill's tokens for plain decode"
_PREFILL_LOG = "keep a running batch launched as an extend out of the prefill log"
_TAIL = "tell whether processing a catch-up counts its last token"

_SUPPORTED = Need(
    "specswitch.engine.supported_v2",
    (
        *SERVER_ARGS.arguments(
            whys.UNSWITCHED,
            "speculative_algorithm",
            "enable_multi_layer_eagle",
            "enable_dp_attention",
            "pp_size",
            "attn_cp_size",
            "disaggregation_mode",
            "enable_mixed_chunk",
            "enable_hisparse",
            "enable_pdmux",
            "enable_two_batch_overlap",
            "dllm_algorithm",
            "enable_hierarchical_cache",
            "enable_lmcache",
            "enable_streaming_session",
        ),
        *SERVER_ARGS.arguments(whys.UNSWITCHED, "dcp_size", "enable_unified_memory", since="0.5.15"),
        *SERVER_ARGS.arguments(whys.UNSWITCHED, "enable_flexkv", since="0.5.16"),
        *SCHEDULER.attributes(_READ, whys.OTHER_STATE, "model_config", "is_hybrid_swa", "is_hybrid_ssm"),
        *MODEL_CONFIG.attributes(_READ, whys.OTHER_STATE, "is_encoder_decoder", "is_multimodal"),
    ),
)

_V2 = Need(
    "specswitch.engine.v2",
    (
        SCHEDULER.method("get_next_batch_to_run", _HOOK, whys.BEFORE_CHOICE, called_in=_LOOPS),
        SCHEDULER.method(
            "update_running_batch", _HOOK, whys.HELD_BACK, args=("batch",), called_in=("get_next_batch_to_run",)
        ),
        SCHEDULER.method("run_batch", _HOOK, whys.TO_TARGET, args=("batch",), called_in=_LOOPS),
        SCHEDULER.method(
            "launch_batch_sample_if_needed",
            _HOOK,
            whys.GRAMMAR,
            args=("batch_result",),
            called_in=("event_loop_overlap",),
        ),
        SCHEDULER.method(
            "process_batch_result", _HOOK, "count decode steps", args=("batch", "result"), called_in=_LOOPS
        ),
        SCHEDULER.method(
            "_apply_war_barrier",
            _HOOK,
            "let the next turn wait for the target's reads after a plain batch",
            called_in=("event_loop_overlap",),
            since="0.5.14",
        ),
        *SCHEDULER.attributes(_READ, whys.LOG_ACTIVE, "enable_overlap", "draft_worker"),
        *EAGLE_V2.attributes(_READ, whys.LOG_ACTIVE, "topk", "speculative_num_steps"),
        *SERVER_ARGS.arguments(whys.LOG_ACTIVE, "speculative_num_draft_tokens"),
        *SCHEDULER.attributes(_READ, whys.TO_TARGET, "tp_worker"),
        *SCHEDULER.attributes(_WRITE, whys.TO_TARGET, "model_worker"),
        *SCHEDULER.attributes(_BOTH, whys.DIVISION, "spec_algorithm"),
        *RESULT.attributes(_READ, whys.GRAMMAR, "delay_sample_func"),
        *SCHEDULER.attributes(_READ, whys.ENTER_PLAIN, "running_batch"),
        *SCHEDULER.attributes(
            _READ,
            whys.CATCH_UP,
            "device",
            "server_args",
            "chunked_prefill_size",
            "forward_stream",
            "schedule_stream",
        ),
        *SERVER_ARGS.arguments(whys.CATCH_UP, "tp_size"),
        function(
            "sglang.srt.managers.overlap_utils",
            "resolve_forward_inputs",
            _CALL,
            whys.CATCH_UP,
            args=("batch", "future_map"),
        ),
        EAGLE_V2.method("forward_batch_generation", _CALL, whys.CATCH_UP, args=("batch",)),
        *SLOT_ALLOCATOR.attributes(_READ, whys.PREFIX, "size", "device"),
        *SCHEDULER.attributes(_READ, "know whether a launched step's result has yet to be processed", "result_queue"),
        *SCHEDULER.attributes(_READ, whys.ROW, "req_to_token_pool", "page_size"),
        *ROWS.attributes(_READ, whys.ROW, "req_to_token"),
        *SCHEDULER.attributes(_READ, whys.COUNT_FREE, "token_to_kv_pool_allocator", "tree_cache"),
        *SCHEDULER.attributes(_READ, whys.RELAY, "future_map", "forward_stream_ctx"),
        FUTURE_MAP.method("stash", _HOOK, whys.RELAY, args=("future_indices", "payload")),
        *FUTURE_MAP.attributes(_READ, whys.RELAY, "output_tokens_buf"),
        *SCHEDULER.attributes(_READ, whys.DIVISION, "metrics_reporter"),
        METRICS_REPORTER.method("report_decode_stats", _HOOK, whys.DIVISION),
        METRICS_REPORTER.method("report_prefill_stats", _HOOK, _PREFILL_LOG, keywords=("prefill_stats",)),
        *METRICS_REPORTER.attributes(_READ, whys.DIVISION, "spec_num_forward_ct"),
        *STATE_REPLY.attributes(_READ, whys.STATUS, "internal_state"),
        *SCHEDULER.attributes(_READ, whys.PENALTIES, "model_config"),
        *MODEL_CONFIG.attributes(_READ, whys.PENALTIES, "vocab_size"),
        *SAMPLING.attributes(_READ, whys.PENALTIES, "penalizer_orchestrator"),
        *ORCHESTRATOR.attributes(_READ, whys.PENALTIES, "is_required"),
        *FORWARD_MODE.members(whys.TELL_APART, "DECODE"),
        FORWARD_MODE.method("is_extend", _CALL, whys.TELL_APART),
        *SCHEDULER.attributes(_READ, _PREFILLED, "last_batch"),
        BATCH.method("is_empty", _CALL, whys.DROP_FINISHED),
        BATCH.method("new_tokens_required_next_decode", _CALL, whys.COUNT_FREE, args=("selected_indices",)),
        *BATCH.attributes(_READ, whys.ENTER_PLAIN, "reqs", "forward_mode"),
        *BATCH.attributes(_READ, whys.PREFIX, "prefix_lens", "extend_num_tokens"),
        *BATCH.attributes(_READ, "stay PLAIN while a request wants hidden states", "return_hidden_states"),
        *BATCH.attributes(_READ, _PREFILLED, "req_pool_indices", "spec_info"),
        *BATCH.attributes(_READ, whys.PENALTIES, "sampling_info"),
        *BATCH.attributes(_BOTH, whys.MARK_PLAIN, "spec_algorithm"),
        *BATCH.attributes(_WRITE, whys.ENTER_PLAIN, "input_ids", "out_cache_loc"),
        *BATCH.attributes(_WRITE, "keep a catch-up's requests out of the prefix cache", "decoding_reqs"),
        *DRAFT_INPUT.attributes(_READ, _PREFILLED, "bonus_tokens"),
        *NGRAM_INPUT.attributes(_READ, _PREFILLED, "accept_tokens"),
        REQ.method("finished", _CALL, "count unfinished requests only"),
        *REQ.attributes(_READ, whys.ENTER_PLAIN, "rid", "origin_input_ids", "output_ids"),
    ),
)

_V2_BATCH = Need(
    "specswitch.engine.v2_batch",
    (
        *ALGORITHM.members(whys.MARK_PLAIN, "NONE"),
        *FORWARD_MODE.members(whys.CATCH_UP, "EXTEND"),
        BATCH.itself(whys.HELD_BACK, use=_CALL, keywords=("reqs", "batch_is_full")),
        BATCH.method(
            "init_new",
            _CALL,
            whys.CATCH_UP,
            args=(
                "reqs",
                "req_to_token_pool",
                "token_to_kv_pool_allocator",
                "tree_cache",
                "model_config",
                "enable_overlap",
                "spec_algorithm",
            ),
        ),
        *SCHEDULER.attributes(
            _READ,
            whys.CATCH_UP,
            "req_to_token_pool",
            "token_to_kv_pool_allocator",
            "tree_cache",
            "model_config",
            "enable_overlap",
            "spec_algorithm",
        ),
        *MODEL_CONFIG.attributes(_READ, whys.CATCH_UP, "vocab_size"),
        SAMPLING.itself(whys.CATCH_UP),
        SAMPLING.method("from_schedule_batch", _CALL, whys.CATCH_UP, args=("batch", "vocab_size")),
        SAMPLING.method("copy_for_forward", _CALL, whys.CATCH_UP),
        *BATCH.attributes(_READ, whys.CATCH_UP, "reqs", "device", "req_to_token_pool"),
        *BATCH.attributes(_READ, whys.PREFIX, "input_embeds", "replace_embeds"),
        *BATCH.attributes(_BOTH, whys.CATCH_UP, "return_logprob"),
        *BATCH.attributes(_READ, whys.HELD_BACK, "batch_is_full"),
        *BATCH.attributes(
            _WRITE,
            whys.ENTER_PLAIN,
            "spec_algorithm",
            "spec_info",
            "seq_lens",
            "orig_seq_lens",
            "seq_lens_sum",
        ),
        *BATCH.attributes(_BOTH, whys.ENTER_PLAIN, "seq_lens_cpu"),
        *BATCH.attributes(
            _WRITE,
            whys.CATCH_UP,
            "forward_mode",
            "prefill_input_ids_cpu",
            "input_ids",
            "out_cache_loc",
            "extend_lens",
            "extend_num_tokens",
            "extend_input_logprob_token_ids",
            "chunked_req",
            "prefill_stats",
            "mix_running_indices",
            "chunked_req_next_prompt_token",
            "is_prefill_only",
            "req_pool_indices",
            "req_pool_indices_cpu",
            "has_grammar",
            "return_hidden_states",
            "sampling_info",
        ),
        *BATCH.attributes(_BOTH, whys.CATCH_UP, "prefix_lens", "extend_logprob_start_lens"),
        *BATCH.attributes(_WRITE, whys.CATCH_UP, "mix_running_indices_cpu", since="0.5.19"),
        *SAMPLING.attributes(_WRITE, whys.PENALTIES, "acc_additive_penalties", "acc_scaling_penalties"),
        *ROWS.attributes(_READ, whys.ROW, "req_to_token"),
    ),
)

_V2_COMPAT = Need(
    "specswitch.engine.v2_compat",
    (
        *SERVER_ARGS.attributes(_READ, whys.UNSWITCHED, "_resolved_overrides", since="0.5.15", until="0.5.18"),
        function(
            "sglang.srt.arg_groups.overrides",
            "resolved_view",
            _CALL,
            whys.UNSWITCHED,
            args=("server_args",),
            since="0.5.15",
            until="0.5.18",
        ),
        function(
            "sglang.srt.arg_groups.model_override_base",
            "resolved_view",
            _CALL,
            whys.UNSWITCHED,
            args=("server_args",),
            since="0.5.19",
        ),
        *REQ.attributes(_BOTH, whys.ROW, "kv_committed_len", until="0.5.18"),
        *REQ.attributes(_BOTH, whys.GIVE_BACK, "kv_allocated_len", until="0.5.15.post1"),
        *REQ.attributes(_BOTH, whys.ROW, "req_pool_idx", until="0.5.18"),
        *REQ.attributes(_READ, whys.ROW, "cache_protected_len", until="0.5.18"),
        *REQ.attributes(_READ, whys.ROW, "kv", since="0.5.16"),
        *REQ_KV.attributes(_BOTH, whys.GIVE_BACK, "kv_allocated_len", since="0.5.16"),
        *REQ_KV.attributes(_BOTH, whys.ROW, "kv_committed_len", since="0.5.19"),
        *REQ_KV.attributes(_BOTH, whys.ROW, "req_pool_idx", since="0.5.19"),
        *REQ_KV.attributes(_READ, whys.ROW, "cache_protected_len", since="0.5.19"),
        SLOT_ALLOCATOR.method("free", _CALL, whys.GIVE_BACK, args=("free_index",), until="0.5.16"),
        SLOT_ALLOCATOR.method(
            "free_segment", _CALL, whys.GIVE_BACK, args=("free_index",), keywords=("start_pos",), since="0.5.17"
        ),
        *REQ.attributes(_WRITE, _EXTEND_END, "full_untruncated_fill_ids", until="0.5.13.post1"),
        *REQ.attributes(_READ, _EXTEND_END, "origin_input_ids", "output_ids", until="0.5.13.post1"),
        REQ.method("_refresh_fill_ids", _READ, _EXTEND_END, since="0.5.14", until="0.5.21"),
        REQ.method("refresh_fill_ids", _READ, _EXTEND_END, since="0.5.22"),
        *REQ.attributes(_BOTH, _EXTEND_END, "fill_len", until="0.5.14"),
        REQ.method("set_extend_input_len", _CALL, _EXTEND_END, args=("extend_input_len",), until="0.5.14"),
        REQ.method("set_extend_range", _CALL, _EXTEND_END, args=("start", "end"), since="0.5.15", until="0.5.21"),
        *REQ.attributes(_READ, _EXTEND_END, "extend_range", since="0.5.15", until="0.5.21"),
        *REQ.attributes(_BOTH, _EXTEND_END, "extend_end", since="0.5.22"),
        BATCH.itself(_TAIL),
        BATCH.method("convert_decode_to_extend", _READ, _TAIL, since="0.5.19"),
        *SCHEDULER.attributes(_WRITE, whys.HELD_BACK, "running_batch", until="0.5.15.post1"),
        *NEXT_BATCH_PLAN.attributes(_BOTH, whys.HELD_BACK, "running_batch"),
        *NEXT_BATCH_PLAN.attributes(_READ, whys.PREFIX, "batch_to_run"),
        STATE_REQUEST.itself(whys.STATUS),
        SCHEDULER.method("get_internal_state", _HOOK, whys.STATUS, args=("recv_req",)),
        *SCHEDULER.attributes(_READ, whys.STATUS, "_request_dispatcher"),
        *DISPATCHER.attributes(_READ, whys.STATUS, "_mapping"),
        PREFIX_CACHE.method(
            "cache_finished_req", _HOOK, whys.PREFIX, args=("req",), keywords=("is_insert",), until="0.5.20"
        ),
        PREFIX_CACHE.method("cache_unfinished_req", _HOOK, whys.PREFIX, args=("req",), until="0.5.21"),
        PREFIX_CACHE.method(
            "insert_req", _HOOK, whys.PREFIX, args=("req",), keywords=("up_to",), since="0.5.21", until="0.5.21"
        ),
        PREFIX_CACHE.method("checkpoint", _HOOK, whys.PREFIX, args=("req",), keywords=("up_to",), since="0.5.22"),
        *RELAY_PAYLOAD.attributes(_READ, whys.RELAY, "bonus_tokens"),
        *FUTURE_MAP.attributes(_READ, whys.RELAY, "output_tokens_buf"),
    ),
)

_DRAFT_KV = Need(
    "specswitch.engine.draft_kv",
    (
        BATCH.itself(whys.CATCH_UP),
        FORWARD_MODE.itself(whys.CATCH_UP),
        SAMPLING.itself(whys.CATCH_UP),
        REQ.method("finished", _CALL, whys.CATCH_UP),
        *REQ.attributes(_READ, whys.CATCH_UP, "origin_input_ids", "output_ids"),
        *REQ.attributes(_READ, "see whether a catch-up pays", "sampling_params"),
        *SAMPLING_PARAMS.attributes(_READ, "see whether a catch-up pays", "max_new_tokens"),
    ),
)

_DRAFT_ALONE = Need(
    "specswitch.engine.draft_alone",
    (
        TARGET_WORKER.method(
            "forward_batch_generation", _HOOK, whys.KEPT_HIDDEN, args=("batch", "forward_batch"), until="0.5.15.post1"
        ),
        TARGET_WORKER.method(
            "forward_batch_generation",
            _HOOK,
            whys.KEPT_HIDDEN,
            args=("batch", "forward_batch"),
            keywords=("capture_hidden_mode",),
            since="0.5.16",
        ),
        *BATCH.attributes(_BOTH, whys.KEPT_HIDDEN, "capture_hidden_mode", until="0.5.15.post1"),
        *BATCH.attributes(
            _READ, whys.KEPT_HIDDEN, "forward_mode", "spec_algorithm", "return_hidden_states", "out_cache_loc"
        ),
    ),
)

LINE_0_5_13 = ReleaseLine(
    name="0.5.13 and later",
    first="0.5.13",
    before=None,
    paths={"v2": "specswitch.engine.v2"},
    tested=("0.5.17", "0.5.23"),
    needs=(*SHARED, _SUPPORTED, _V2, _V2_BATCH, _V2_COMPAT, _DRAFT_KV, _DRAFT_ALONE),
)
