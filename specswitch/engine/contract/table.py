"""The contract's table: what specswitch needs of SGLang, per release line and per module of specswitch.

A row names a piece of SGLang by the path it is imported from, its parameters as the code passes them, what is
done with it (hook, call, read, write) and what for.  ``tests/unit/test_contract_covers_engine.py`` keeps the
rows and the code together: a name that the code touches and no row states fails there, and so does a row that
the code does not need.

A release joins ``tested`` when the real-engine tests run on it, and nowhere else.
"""

from __future__ import annotations

from specswitch.engine.contract.pieces import Kind, Need, Owner, Piece, ReleaseLine, Use

_HOOK, _CALL, _READ, _WRITE = Use.HOOK, Use.CALL, Use.READ, Use.WRITE
_BOTH = Use.READ | Use.WRITE

_SCHEDULER = Owner("sglang.srt.managers.scheduler", "Scheduler")
_BATCH = Owner("sglang.srt.managers.schedule_batch", "ScheduleBatch")
_REQ = Owner("sglang.srt.managers.schedule_batch", "Req")
_RESULT = Owner("sglang.srt.managers.utils", "GenerationBatchResult")
_TARGET_WORKER = Owner("sglang.srt.managers.tp_worker", "TpModelWorker")
_SERVER_ARGS = Owner("sglang.srt.server_args", "ServerArgs")
_MODEL_CONFIG = Owner("sglang.srt.configs.model_config", "ModelConfig")
_DISPATCHER = Owner("sglang.utils", "TypeBasedDispatcher")
_STATE_REPLY = Owner("sglang.srt.managers.io_struct", "GetInternalStateReqOutput")
_ALGORITHM = Owner("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm")
_FORWARD_MODE = Owner("sglang.srt.model_executor.forward_batch_info", "ForwardMode")
_HIDDEN_MODE = Owner("sglang.srt.model_executor.forward_batch_info", "CaptureHiddenMode")
_FUTURE_MAP = Owner("sglang.srt.managers.overlap_utils", "FutureMap")
_FUTURE_INDICES = Owner("sglang.srt.managers.overlap_utils", "FutureIndices")
_DRAFT_INPUT = Owner("sglang.srt.speculative.eagle_info", "EagleDraftInput")
_EAGLE_V1 = Owner("sglang.srt.speculative.eagle_worker", "EAGLEWorker")
_EAGLE_V2 = Owner("sglang.srt.speculative.eagle_worker_v2", "EAGLEWorkerV2")
_SLOT_ALLOCATOR = Owner("sglang.srt.mem_cache.allocator", "BaseTokenToKVPoolAllocator")
_PREFIX_CACHE = Owner("sglang.srt.mem_cache.base_prefix_cache", "BasePrefixCache")
_ROWS = Owner("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool")
_SAMPLING = Owner("sglang.srt.sampling.sampling_batch_info", "SamplingBatchInfo")
_SAMPLING_PARAMS = Owner("sglang.srt.sampling.sampling_params", "SamplingParams")
_PENALTIES = "sglang.srt.sampling.penaltylib"
_ORCHESTRATOR = Owner("sglang.srt.sampling.penaltylib.orchestrator", "BatchedPenalizerOrchestrator")
_PENALIZER = Owner("sglang.srt.sampling.penaltylib.orchestrator", "_BatchedPenalizer")

_FREQUENCY_PENALTY = Owner(_PENALTIES, "BatchedFrequencyPenalizer")
_PRESENCE_PENALTY = Owner(_PENALTIES, "BatchedPresencePenalizer")
_REPETITION_PENALTY = Owner(_PENALTIES, "BatchedRepetitionPenalizer")
_MIN_NEW_TOKENS = Owner(_PENALTIES, "BatchedMinNewTokensPenalizer")

_ENTER_PLAIN = "rebuild the running batch for plain decode"

_PLUGIN_LOADING = (
    Piece(
        "sglang.srt.plugins",
        "load_plugins",
        Kind.FUNCTION,
        _READ,
        "be loaded by SGLang's launcher and in every scheduler process",
    ),
)

_FEATURES = Need(
    "specswitch.engine.features",
    (
        *_REQ.attributes(
            _READ,
            {
                "sampling_params": "see which sampling features a request uses",
                "grammar": "see whether a request's output is structured",
                "return_logprob": "see whether a request wants logprobs",
                "return_hidden_states": "see whether a request wants hidden states",
            },
        ),
        *_SAMPLING_PARAMS.attributes(
            _READ,
            {
                "frequency_penalty": "see whether a request's tokens are penalised",
                "presence_penalty": "see whether a request's tokens are penalised",
                "repetition_penalty": "see whether a request's tokens are penalised",
                "min_new_tokens": "see whether a request's end is held back",
                "logit_bias": "see whether a request biases logits",
                "min_p": "see whether a request filters by min_p",
            },
        ),
    ),
)

_PENALTY_STATE = Need(
    "specswitch.engine.penalties",
    (
        *_SAMPLING.attributes(_READ, {"penalizer_orchestrator": "reach the penalizers of a batch"}),
        *_ORCHESTRATOR.attributes(
            _READ,
            {
                "is_required": "see whether any request uses penalties",
                "penalizers": "reach each penalizer",
                "device": "put the rebuilt counts where the penalizers keep theirs",
            },
        ),
        _PENALIZER.method("is_prepared", _CALL, "rebuild only penalizers in use"),
        *_FREQUENCY_PENALTY.attributes(
            _READ,
            {
                "cumulated_frequency_penalties": "rebuild it from every token put out",
                "frequency_penalties": "weigh each token",
            },
        ),
        *_PRESENCE_PENALTY.attributes(
            _READ,
            {
                "cumulated_presence_penalties": "rebuild it from every token put out",
                "presence_penalties": "weigh each token",
            },
        ),
        *_REPETITION_PENALTY.attributes(
            _READ,
            {
                "cumulated_repetition_penalties": "rebuild it from every token put out",
                "repetition_penalties": "weigh each token",
            },
        ),
        *_MIN_NEW_TOKENS.attributes(_WRITE, {"len_output_tokens": "count the tokens put out"}),
    ),
)

_KEEP_DRAFT_LEN = "know up to which token a request's draft KV is written"

_LINE_0512 = Need(
    "specswitch.engine.line_0_5_12",
    (
        *_PLUGIN_LOADING,
        _SCHEDULER.method(
            "get_next_batch_to_run",
            _HOOK,
            "decide once a turn, before the batch is chosen",
            called_in=("event_loop_normal", "event_loop_overlap"),
        ),
        _SCHEDULER.method(
            "update_running_batch",
            _HOOK,
            "hold the decode batch while draining and rebuild it on return",
            args=("batch",),
            called_in=("get_next_batch_to_run",),
        ),
        _SCHEDULER.method(
            "run_batch",
            _HOOK,
            "launch a plain batch as a server without speculation does",
            args=("batch",),
            called_in=("event_loop_normal", "event_loop_overlap"),
        ),
        _SCHEDULER.method(
            "process_batch_result",
            _HOOK,
            "count decode steps and process a catch-up as one plain step",
            args=("batch", "result"),
            called_in=("event_loop_normal", "event_loop_overlap"),
        ),
        _SCHEDULER.method(
            "report_decode_stats", _HOOK, "keep SGLang's log line from dividing by a verify count of zero"
        ),
        _SCHEDULER.method("get_internal_state", _CALL, "add the switch's state to /server_info", args=("recv_req",)),
        *_SCHEDULER.attributes(
            _READ,
            {
                "_request_dispatcher": "add the switch's state to /server_info",
                "tp_rank": "speak on rank 0 only",
                "server_args": "read the speculative settings",
                "enable_overlap": "tell which engine path runs",
                "draft_worker": "name the speculative worker and read its shape",
                "tp_worker": "send plain batches to the target worker",
                "last_batch": "bring a prefill that joins while PLAIN into plain form",
                "chunked_req": "leave a request out of the decode batch until its prefill is complete",
                "waiting_queue": "count the requests that wait",
                "req_to_token_pool": "find the KV slots of a request",
                "token_to_kv_pool_allocator": "give reserved KV slots back and count the free ones",
                "tree_cache": "count the KV slots that eviction would free",
                "page_size": "round to whole pages",
                "model_config": "know the vocabulary's size",
                "spec_num_forward_ct": "see whether a log interval had a verify step",
            },
        ),
        *_SCHEDULER.attributes(
            _BOTH,
            {
                "running_batch": "hold the decode batch back while draining",
                "spec_algorithm": "take the plain path while a plain batch is launched",
            },
        ),
        *_SCHEDULER.attributes(_WRITE, {"model_worker": "send plain batches to the target worker"}),
        *_DISPATCHER.attributes(_READ, {"_mapping": "add the switch's state to /server_info"}),
        Piece(
            "sglang.srt.managers.io_struct",
            "GetInternalStateReq",
            Kind.CLASS,
            _READ,
            "add the switch's state to /server_info",
        ),
        *_STATE_REPLY.attributes(_READ, {"internal_state": "add the switch's state to /server_info"}),
        *_TARGET_WORKER.attributes(_WRITE, {"enable_spec": "sample a plain batch the plain way"}),
        *_SERVER_ARGS.attributes(
            _READ,
            {
                "speculative_algorithm": "log which path is active",
                "speculative_eagle_topk": "log which path is active",
                "speculative_num_steps": "log which path is active",
                "speculative_num_draft_tokens": "log which path is active",
            },
        ),
        *_ALGORITHM.members("mark a batch as plain", "NONE"),
        _ALGORITHM.method("is_none", _CALL, "tell a plain batch from a speculative one"),
        _ALGORITHM.method("is_ngram", _CALL, "know whether there is draft KV"),
        *_FORWARD_MODE.members("end a catch-up", "DECODE"),
        _FORWARD_MODE.method("is_decode", _CALL, "tell decode from prefill"),
        _FORWARD_MODE.method("is_extend", _CALL, "tell decode from prefill"),
        Piece(
            _BATCH.module,
            "ScheduleBatch",
            Kind.CLASS,
            _CALL,
            "hand SGLang an empty batch while draining",
            keywords=("reqs", "batch_is_full"),
        ),
        _BATCH.method("batch_size", _CALL, "notice that a filtered batch shrank"),
        _BATCH.method("is_empty", _CALL, "leave an empty batch alone"),
        _BATCH.method("filter_batch", _CALL, "drop finished requests before a rebuild"),
        _BATCH.method("new_tokens_required_next_decode", _CALL, "see whether the speculative reserve fits the pool"),
        *_BATCH.attributes(
            _READ,
            {
                "reqs": "go through the running requests",
                "device": _ENTER_PLAIN,
                "sampling_info": "rebuild penalties from the tokens put out",
            },
        ),
        *_BATCH.attributes(
            _WRITE,
            {
                "seq_lens": _ENTER_PLAIN,
                "orig_seq_lens": _ENTER_PLAIN,
                "seq_lens_sum": _ENTER_PLAIN,
                "output_ids": _ENTER_PLAIN,
                "input_ids": _ENTER_PLAIN,
                "out_cache_loc": _ENTER_PLAIN,
                "return_hidden_states": "undo what the v1 worker clears",
                "spec_info": "drop or rebuild the draft input",
            },
        ),
        *_BATCH.attributes(
            _BOTH,
            {
                "seq_lens_cpu": _ENTER_PLAIN,
                "spec_algorithm": "mark a batch as plain or speculative",
                "forward_mode": "end a catch-up and tell decode from prefill",
                "batch_is_full": "let requests in again after a batch shrank",
            },
        ),
        _REQ.method("finished", _CALL, "count unfinished requests only"),
        *_REQ.attributes(
            _READ,
            {
                "rid": "know which requests' tokens were all seen",
                "kv_committed_len": "keep the slots that hold tokens",
                "req_pool_idx": "find the KV slots of a request",
                "output_ids": "know the last token",
                "return_hidden_states": "undo what the v1 worker clears",
            },
        ),
        *_REQ.attributes(_BOTH, {"kv_allocated_len": "give reserved KV slots back"}),
        *_RESULT.attributes(_READ, {"num_correct_drafts": "measure the accept length of verify steps alone"}),
        _SLOT_ALLOCATOR.method("free", _CALL, "give reserved KV slots back", args=("free_index",)),
        _SLOT_ALLOCATOR.method("available_size", _CALL, "see whether the speculative reserve fits the pool"),
        _PREFIX_CACHE.method("evictable_size", _CALL, "see whether the speculative reserve fits the pool"),
        *_ROWS.attributes(_READ, {"req_to_token": "find the KV slots of a request"}),
        *_SAMPLING.attributes(_READ, {"penalizer_orchestrator": "see whether any request uses penalties"}),
        *_ORCHESTRATOR.attributes(_READ, {"is_required": "see whether any request uses penalties"}),
        *_MODEL_CONFIG.attributes(_READ, {"vocab_size": "rebuild penalties from the tokens put out"}),
    ),
)

_CATCH_UP = "write the draft's KV for tokens decoded while PLAIN"

_CATCH_UP_0512 = Need(
    "specswitch.engine.draft_kv",
    (
        *_FORWARD_MODE.members(_CATCH_UP, "EXTEND"),
        *_BATCH.attributes(
            _READ,
            {"reqs": _CATCH_UP, "seq_lens_cpu": _CATCH_UP, "device": _CATCH_UP, "req_to_token_pool": _CATCH_UP},
        ),
        *_BATCH.attributes(
            _WRITE,
            {
                "forward_mode": _CATCH_UP,
                "input_ids": _CATCH_UP,
                "out_cache_loc": _CATCH_UP,
                "prefix_lens": _CATCH_UP,
                "extend_lens": _CATCH_UP,
                "extend_num_tokens": _CATCH_UP,
                "extend_logprob_start_lens": _CATCH_UP,
                "extend_input_logprob_token_ids": _CATCH_UP,
                "decoding_reqs": _CATCH_UP,
                "spec_info": _CATCH_UP,
            },
        ),
        *_REQ.attributes(_READ, {"origin_input_ids": _CATCH_UP, "output_ids": _CATCH_UP, "req_pool_idx": _CATCH_UP}),
        *_ROWS.attributes(_READ, {"req_to_token": _CATCH_UP}),
    ),
)

_UNSWITCHED = "refuse what is not switched, before the model loads"

_SUPPORTED_0512 = Need(
    "specswitch.engine.supported_0_5_12",
    (
        *_SERVER_ARGS.attributes(
            _READ,
            dict.fromkeys(
                (
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
                    "dllm_algorithm",
                ),
                _UNSWITCHED,
            ),
        ),
        *_SCHEDULER.attributes(
            _READ,
            dict.fromkeys(("model_config", "is_hybrid_swa", "is_hybrid_ssm"), "refuse models with other state"),
        ),
        *_MODEL_CONFIG.attributes(_READ, {"is_encoder_decoder": "refuse models with other state"}),
    ),
)

_COLD = "return without a catch-up"

_V1_0512 = Need(
    "specswitch.engine.v1",
    (
        *_SCHEDULER.attributes(_READ, {"draft_worker": _COLD}),
        Piece(_EAGLE_V1.module, "EAGLEWorker", Kind.CLASS, _READ, "know the worker whose coupling this engine undoes"),
        *_EAGLE_V1.attributes(_READ, {"topk": _COLD}),
        *_HIDDEN_MODE.members(_COLD, "NULL", "LAST"),
        Piece(
            _DRAFT_INPUT.module,
            "EagleDraftInput",
            Kind.CLASS,
            _CALL,
            _COLD,
            keywords=(
                "topk_p",
                "topk_index",
                "hidden_states",
                "bonus_tokens",
                "new_seq_lens",
                "capture_hidden_mode",
            ),
        ),
        _DRAFT_INPUT.method("hidden_size_for", _CALL, _COLD, args=("worker",)),
        _DRAFT_INPUT.method("dtype_for", _CALL, _COLD, args=("worker",)),
        Piece(_BATCH.module, "ScheduleBatch", Kind.CLASS, _READ, _COLD),
        _BATCH.method("batch_size", _CALL, _COLD),
        *_BATCH.attributes(_READ, {"reqs": _COLD, "device": _COLD, "seq_lens": _COLD}),
        _REQ.method("finished", _CALL, "drop draft inputs of requests that a catch-up finished"),
        *_REQ.attributes(_READ, {"output_ids": "know the last token"}),
    ),
)

_RELAY = "relay plain token ids from one overlapped step to the next"

_V2_0512 = Need(
    "specswitch.engine.v2_0_5_12",
    (
        *_SCHEDULER.attributes(
            _READ,
            {
                "future_map": _RELAY,
                "result_queue": "know whether a launched step's result has yet to be processed",
                "draft_worker": _COLD,
            },
        ),
        Piece(
            "sglang.srt.managers.overlap_utils",
            "_resolve_future_token_ids",
            Kind.FUNCTION,
            _CALL,
            _RELAY,
            args=("input_ids", "future_token_ids_map"),
        ),
        _FUTURE_MAP.method("resolve_future", _HOOK, _RELAY, args=("model_worker_batch",)),
        _FUTURE_MAP.method("store_to_map", _HOOK, _RELAY, args=("future_indices", "batch_result")),
        _FUTURE_MAP.method("store_to_map_for_new_batch", _CALL, _COLD, args=("future_indices", "draft_input")),
        _FUTURE_MAP.method("alloc_future_indices", _CALL, _COLD, args=("bs",)),
        *_FUTURE_MAP.attributes(_READ, {"future_buffer_len": _RELAY, "device": _RELAY}),
        *_FUTURE_INDICES.attributes(_READ, {"interval": _RELAY}),
        *_RESULT.attributes(_READ, {"accept_lens": _RELAY, "next_token_ids": _RELAY, "next_draft_input": _RELAY}),
        *_DRAFT_INPUT.attributes(_WRITE, {"future_indices": _COLD}),
        *_EAGLE_V2.attributes(_READ, {"draft_worker": _COLD, "topk": _COLD}),
    ),
)


RELEASE_LINES: tuple[ReleaseLine, ...] = (
    ReleaseLine(
        name="0.5.11-0.5.12",
        first="0.5.11",
        before="0.5.13",
        paths={"v1": "specswitch.engine.v1", "v2": "specswitch.engine.v2_0_5_12"},
        supported="specswitch.engine.supported_0_5_12",
        tested=("0.5.12.post1",),
        needs=(_LINE_0512, _CATCH_UP_0512, _SUPPORTED_0512, _FEATURES, _PENALTY_STATE, _V1_0512, _V2_0512),
    ),
)
