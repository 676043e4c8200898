"""Rows of the engines for SGLang 0.5.11-0.5.12: ``EAGLEWorker`` without overlap, ``EAGLEWorkerV2`` with it."""

from __future__ import annotations

from specswitch.engine.contract.pieces import Need, ReleaseLine, Use
from specswitch.engine.contract.table import whys
from specswitch.engine.contract.table.owners import (
    ALGORITHM,
    BATCH,
    DISPATCHER,
    DRAFT_INPUT,
    EAGLE_V1,
    EAGLE_V2,
    FORWARD_MODE,
    FUTURE_MAP,
    HIDDEN_MODE,
    MODEL_CONFIG,
    ORCHESTRATOR,
    PREFIX_CACHE,
    REQ,
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
    WORKER_BATCH,
)
from specswitch.engine.contract.table.shared import SHARED

_HOOK, _CALL, _READ, _WRITE = Use.HOOK, Use.CALL, Use.READ, Use.WRITE
_BOTH = Use.READ | Use.WRITE
_LOOPS = ("event_loop_normal", "event_loop_overlap")

_SUPPORTED = Need(
    "specswitch.engine.supported_0_5_12",
    (
        *SERVER_ARGS.arguments(
            whys.UNSWITCHED,
            "speculative_algorithm",
            "speculative_adaptive",
            "enable_multi_layer_eagle",
            "enable_dp_attention",
            "pp_size",
            "attn_cp_size",
            "disaggregation_mode",
            "enable_mixed_chunk",
            "enable_hisparse",
            "enable_pdmux",
            "enable_hierarchical_cache",
            "dllm_algorithm",
        ),
        *SCHEDULER.attributes(_READ, whys.OTHER_STATE, "model_config", "is_hybrid_swa", "is_hybrid_ssm"),
        *MODEL_CONFIG.attributes(_READ, whys.OTHER_STATE, "is_encoder_decoder", "is_multimodal"),
    ),
)

_LINE = Need(
    "specswitch.engine.line_0_5_12",
    (
        SCHEDULER.method("get_next_batch_to_run", _HOOK, whys.BEFORE_CHOICE, called_in=_LOOPS),
        SCHEDULER.method(
            "update_running_batch", _HOOK, whys.HELD_BACK, args=("batch",), called_in=("get_next_batch_to_run",)
        ),
        SCHEDULER.method("run_batch", _HOOK, whys.TO_TARGET, args=("batch",), called_in=_LOOPS),
        SCHEDULER.method(
            "process_batch_result", _HOOK, "count decode steps", args=("batch", "result"), called_in=_LOOPS
        ),
        SCHEDULER.method("report_decode_stats", _HOOK, whys.DIVISION),
        SCHEDULER.method("get_internal_state", _CALL, whys.STATUS, args=("recv_req",)),
        STATE_REQUEST.itself(whys.STATUS),
        *SCHEDULER.attributes(_READ, whys.STATUS, "_request_dispatcher"),
        *DISPATCHER.attributes(_READ, whys.STATUS, "_mapping"),
        *STATE_REPLY.attributes(_READ, whys.STATUS, "internal_state"),
        *SCHEDULER.attributes(_READ, "write the log on rank 0 only", "tp_rank", "tp_size"),
        *SCHEDULER.attributes(_READ, whys.LOG_ACTIVE, "server_args", "enable_overlap", "draft_worker"),
        *SERVER_ARGS.arguments(
            whys.LOG_ACTIVE,
            "speculative_algorithm",
            "speculative_eagle_topk",
            "speculative_num_steps",
            "speculative_num_draft_tokens",
        ),
        *SERVER_ARGS.arguments("bound the tokens of one catch-up", "chunked_prefill_size"),
        *SERVER_ARGS.arguments(whys.PREFIX, "disable_radix_cache"),
        *SCHEDULER.attributes(_BOTH, whys.DIVISION, "spec_algorithm"),
        *SCHEDULER.attributes(_BOTH, whys.HELD_BACK, "running_batch"),
        *SCHEDULER.attributes(_READ, whys.JOINS_PLAIN, "last_batch"),
        *SCHEDULER.attributes(_READ, whys.ROW, "req_to_token_pool", "page_size"),
        *ROWS.attributes(_READ, whys.ROW, "req_to_token"),
        *SCHEDULER.attributes(_READ, whys.COUNT_FREE, "token_to_kv_pool_allocator", "tree_cache"),
        SLOT_ALLOCATOR.method("free", _CALL, whys.GIVE_BACK, args=("free_index",)),
        *SLOT_ALLOCATOR.attributes(_READ, whys.PREFIX, "size", "device"),
        PREFIX_CACHE.method("cache_finished_req", _HOOK, whys.PREFIX, args=("req",), keywords=("is_insert",)),
        PREFIX_CACHE.method("cache_unfinished_req", _HOOK, whys.PREFIX, args=("req",)),
        *SCHEDULER.attributes(_READ, whys.DIVISION, "spec_num_forward_ct"),
        *SCHEDULER.attributes(_READ, whys.PENALTIES, "model_config"),
        *MODEL_CONFIG.attributes(_READ, whys.PENALTIES, "vocab_size"),
        *SAMPLING.attributes(_READ, whys.PENALTIES, "penalizer_orchestrator"),
        *ORCHESTRATOR.attributes(_READ, whys.PENALTIES, "is_required"),
        *ALGORITHM.members(whys.MARK_PLAIN, "NONE"),
        *FORWARD_MODE.members(whys.TELL_APART, "DECODE"),
        FORWARD_MODE.method("is_extend", _CALL, whys.TELL_APART),
        BATCH.itself(whys.HELD_BACK, use=_CALL, keywords=("reqs", "batch_is_full")),
        BATCH.method("is_empty", _CALL, whys.DROP_FINISHED),
        BATCH.method("new_tokens_required_next_decode", _CALL, whys.COUNT_FREE),
        *BATCH.attributes(_READ, whys.ENTER_PLAIN, "reqs", "device"),
        *BATCH.attributes(_READ, whys.PENALTIES, "sampling_info"),
        *BATCH.attributes(_READ, whys.PREFIX, "prefix_lens", "input_embeds", "replace_embeds", "token_type_ids"),
        *BATCH.attributes(_BOTH, whys.ENTER_PLAIN, "spec_algorithm", "seq_lens_cpu"),
        *BATCH.attributes(_READ, whys.HELD_BACK, "batch_is_full"),
        *BATCH.attributes(_BOTH, "end a catch-up", "forward_mode"),
        *BATCH.attributes(_WRITE, whys.PLAIN_OVERLAP, "enable_overlap"),
        *BATCH.attributes(
            _WRITE,
            whys.ENTER_PLAIN,
            "spec_info",
            "output_ids",
            "input_ids",
            "out_cache_loc",
            "seq_lens",
            "orig_seq_lens",
            "seq_lens_sum",
            "return_hidden_states",
        ),
        REQ.method("finished", _CALL, "count unfinished requests only"),
        *REQ.attributes(
            _READ, whys.ENTER_PLAIN, "rid", "output_ids", "kv_committed_len", "req_pool_idx", "return_hidden_states"
        ),
        *REQ.attributes(_READ, whys.PREFIX, "origin_input_ids", "fill_ids", "cache_protected_len"),
        *REQ.attributes(_BOTH, whys.GIVE_BACK, "kv_allocated_len"),
    ),
)

_DRAFT_KV = Need(
    "specswitch.engine.draft_kv",
    (
        *FORWARD_MODE.members(whys.CATCH_UP, "EXTEND"),
        *BATCH.attributes(_READ, whys.CATCH_UP, "reqs", "device", "req_to_token_pool"),
        *ROWS.attributes(_READ, whys.CATCH_UP, "req_to_token"),
        *BATCH.attributes(_BOTH, whys.CATCH_UP, "seq_lens", "seq_lens_cpu", "prefix_lens", "extend_logprob_start_lens"),
        *BATCH.attributes(_BOTH, whys.CATCH_UP, "sampling_info"),
        REQ.method("finished", _CALL, whys.CATCH_UP),
        *BATCH.attributes(
            _WRITE,
            whys.CATCH_UP,
            "forward_mode",
            "input_ids",
            "out_cache_loc",
            "extend_lens",
            "extend_num_tokens",
            "extend_input_logprob_token_ids",
            "decoding_reqs",
            "spec_info",
            "orig_seq_lens",
            "seq_lens_sum",
            "req_pool_indices",
            "return_logprob",
            "has_grammar",
            "return_hidden_states",
        ),
        BATCH.itself(whys.CATCH_UP),
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
        *SAMPLING.attributes(_WRITE, whys.CATCH_UP, "is_all_greedy"),
        *REQ.attributes(_READ, whys.CATCH_UP, "origin_input_ids", "output_ids", "req_pool_idx"),
        *REQ.attributes(_READ, "see whether a catch-up pays", "sampling_params"),
        *SAMPLING_PARAMS.attributes(_READ, "see whether a catch-up pays", "max_new_tokens"),
    ),
)

_V1 = Need(
    "specswitch.engine.v1",
    (
        EAGLE_V1.itself("know the worker whose coupling this engine undoes"),
        EAGLE_V1.method("forward_batch_generation", _CALL, whys.CATCH_UP, args=("batch",)),
        *EAGLE_V1.attributes(_READ, whys.COLD, "topk"),
        *SCHEDULER.attributes(_READ, whys.COLD, "draft_worker"),
        *HIDDEN_MODE.members(whys.COLD, "NULL", "LAST"),
        DRAFT_INPUT.itself(
            whys.COLD,
            use=_CALL,
            keywords=("topk_p", "topk_index", "hidden_states", "bonus_tokens", "new_seq_lens", "capture_hidden_mode"),
        ),
        DRAFT_INPUT.method("hidden_size_for", _CALL, whys.COLD, args=("worker",)),
        DRAFT_INPUT.method("dtype_for", _CALL, whys.COLD, args=("worker",)),
        BATCH.itself(whys.COLD),
        BATCH.method("batch_size", _CALL, whys.COLD),
        BATCH.method("is_empty", _CALL, whys.PLAIN_OVERLAP),
        *BATCH.attributes(_READ, whys.COLD, "reqs", "device", "seq_lens"),
        *BATCH.attributes(_READ, whys.TELL_APART, "forward_mode"),
        *BATCH.attributes(_WRITE, whys.PLAIN_OVERLAP, "output_ids", "enable_overlap"),
        *BATCH.attributes(_READ, whys.PENALTIES, "sampling_info"),
        *SAMPLING.attributes(_WRITE, whys.PENALTIES, "acc_additive_penalties", "acc_scaling_penalties"),
        FORWARD_MODE.method("is_extend", _CALL, whys.TELL_APART),
        *SCHEDULER.attributes(
            _READ,
            whys.PLAIN_OVERLAP,
            "running_batch",
            "last_batch",
            "result_queue",
            "tp_worker",
            "forward_stream",
            "schedule_stream",
        ),
        *SCHEDULER.attributes(_WRITE, whys.PLAIN_OVERLAP, "enable_overlap"),
        *TARGET_WORKER.attributes(_WRITE, whys.PLAIN_OVERLAP, "enable_overlap"),
        REQ.method("finished", _CALL, "drop draft inputs of requests that a catch-up finished"),
        *REQ.attributes(_READ, whys.COLD, "output_ids"),
        *REQ.attributes(_READ, whys.PENALTIES, "rid"),
    ),
)

_EVENT_LOOPS = Need(
    "specswitch.engine.event_loops",
    (
        SCHEDULER.method("event_loop_normal", _HOOK, whys.PLAIN_OVERLAP),
        SCHEDULER.method("event_loop_overlap", _READ, whys.PLAIN_OVERLAP),
        FUTURE_MAP.itself(whys.PLAIN_OVERLAP),
        *SCHEDULER.attributes(_READ, whys.PLAIN_OVERLAP, "tp_worker", "running_batch"),
        *SCHEDULER.attributes(
            _WRITE,
            whys.PLAIN_OVERLAP,
            "batch_record_buf",
            "batch_record_ct",
            "last_batch",
            "enable_overlap",
            "future_map",
            "result_queue",
        ),
        *TARGET_WORKER.attributes(_WRITE, whys.PLAIN_OVERLAP, "enable_overlap"),
        *BATCH.attributes(_WRITE, whys.PLAIN_OVERLAP, "enable_overlap"),
    ),
    frozenset({"v1"}),
)

_PLAIN_RELAY = Need(
    "specswitch.engine.plain_relay",
    (
        FUTURE_MAP.itself(
            whys.RELAY,
            use=_CALL,
            args=("max_running_requests", "chunked_prefill_size", "context_len", "device", "spec_algo"),
        ),
        *ALGORITHM.members(whys.RELAY, "NONE"),
        *SCHEDULER.attributes(
            _READ, whys.RELAY, "max_running_requests", "chunked_prefill_size", "model_config", "device"
        ),
        *MODEL_CONFIG.attributes(_READ, whys.RELAY, "context_len"),
    ),
)

_V2 = Need(
    "specswitch.engine.v2_0_5_12",
    (
        EAGLE_V2.itself("know the worker whose relay this engine extends"),
        EAGLE_V2.method("forward_batch_generation", _CALL, whys.CATCH_UP, args=("model_worker_batch",)),
        *EAGLE_V2.attributes(_READ, whys.COLD, "draft_worker", "topk"),
        *SCHEDULER.attributes(_READ, whys.RELAY, "future_map"),
        *SCHEDULER.attributes(_READ, "know whether a launched step's result has yet to be processed", "result_queue"),
        *SCHEDULER.attributes(
            _READ, whys.CATCH_UP, "draft_worker", "forward_stream_ctx", "forward_stream", "schedule_stream"
        ),
        FUTURE_MAP.method("resolve_future", _HOOK | _CALL, whys.RELAY, args=("model_worker_batch",)),
        FUTURE_MAP.method("store_to_map", _HOOK | _CALL, whys.RELAY, args=("future_indices", "batch_result")),
        FUTURE_MAP.method("store_to_map_for_new_batch", _CALL, whys.COLD, args=("future_indices", "draft_input")),
        FUTURE_MAP.method("alloc_future_indices", _CALL, whys.COLD, args=("bs",)),
        *RESULT.attributes(_READ, whys.RELAY, "accept_lens", "next_draft_input"),
        DRAFT_INPUT.itself(whys.COLD),
        *DRAFT_INPUT.attributes(_WRITE, whys.COLD, "future_indices"),
        BATCH.itself(whys.CATCH_UP),
        BATCH.method("get_model_worker_batch", _CALL, whys.CATCH_UP),
        BATCH.method("batch_size", _CALL, whys.COLD),
        *BATCH.attributes(_READ, whys.RELAY, "forward_mode", "spec_algorithm"),
        FORWARD_MODE.method("is_extend", _CALL, whys.TELL_APART),
    ),
    frozenset({"v2"}),
)

_DRAFT_ALONE = Need(
    "specswitch.engine.draft_alone",
    (
        TARGET_WORKER.method(
            "forward_batch_generation", _HOOK, whys.KEPT_HIDDEN, args=("model_worker_batch", "forward_batch")
        ),
        *WORKER_BATCH.attributes(_READ, whys.KEPT_HIDDEN, "forward_mode", "spec_algorithm", "out_cache_loc"),
        *WORKER_BATCH.attributes(_BOTH, whys.KEPT_HIDDEN, "capture_hidden_mode"),
        HIDDEN_MODE.method("need_capture", _CALL, whys.KEPT_HIDDEN),
    ),
)

LINE_0_5_12 = ReleaseLine(
    name="0.5.11-0.5.12",
    first="0.5.11",
    before="0.5.13",
    paths={"v1": "specswitch.engine.v1", "v2": "specswitch.engine.v2_0_5_12"},
    tested=("0.5.12.post1",),
    needs=(*SHARED, _SUPPORTED, _LINE, _DRAFT_KV, _DRAFT_ALONE, _V1, _EVENT_LOOPS, _PLAIN_RELAY, _V2),
)
