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
_TOKENIZER_MANAGER = Owner("sglang.srt.managers.tokenizer_manager", "TokenizerManager")
_TARGET_WORKER = Owner("sglang.srt.managers.tp_worker", "TpModelWorker")
_SERVER_ARGS = Owner("sglang.srt.server_args", "ServerArgs")
_MODEL_RUNNER = Owner("sglang.srt.model_executor.model_runner", "ModelRunner")
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
_HOOK_REGISTRY = Owner("sglang.srt.plugins.hook_registry", "HookRegistry")
_HOOK_TYPE = Owner("sglang.srt.plugins.hook_registry", "HookType")
_PENALTIES = "sglang.srt.sampling.penaltylib"
_ORCHESTRATOR = Owner("sglang.srt.sampling.penaltylib.orchestrator", "BatchedPenalizerOrchestrator")
_PENALIZER = Owner("sglang.srt.sampling.penaltylib.orchestrator", "_BatchedPenalizer")

_FREQUENCY_PENALTY = Owner(_PENALTIES, "BatchedFrequencyPenalizer")
_PRESENCE_PENALTY = Owner(_PENALTIES, "BatchedPresencePenalizer")
_REPETITION_PENALTY = Owner(_PENALTIES, "BatchedRepetitionPenalizer")
_MIN_NEW_TOKENS = Owner(_PENALTIES, "BatchedMinNewTokensPenalizer")

_RUNNING_PLAN = Owner("sglang.srt.managers.scheduler", "NextBatchPlan", since="0.5.16")
_REQ_KV = Owner("sglang.srt.managers.schedule_batch", "ReqKvInfo")
_METRICS = Owner("sglang.srt.managers.scheduler_components.metrics_reporter", "SchedulerMetricsReporter")
_RELAYED = Owner("sglang.srt.managers.overlap_utils", "RelayPayload", since="0.5.15")
_NGRAM_INPUT = Owner("sglang.srt.speculative.ngram_info", "NgramVerifyInput")
_NGRAM_WORKER = Owner("sglang.srt.speculative.ngram_worker", "NGRAMWorker")

_ENTER_PLAIN = "rebuild the running batch for plain decode"

_FLAGS = "add the --specswitch flags"
_START = "check the contract before the model loads"
_REGISTER = "register the hooks of the plugin"

_PLUGIN = Need(
    "specswitch.plugin",
    (
        Piece("sglang.srt.plugins", "load_plugins", Kind.FUNCTION, _READ, "be loaded in the launcher and scheduler"),
        Piece("sglang.srt.plugins.hook_registry", "HookRegistry", Kind.CLASS, _READ, _REGISTER),
        _HOOK_REGISTRY.method("register", _CALL, _REGISTER, args=("target", "hook", "hook_type")),
        *_HOOK_TYPE.members(_REGISTER, "AFTER", "AROUND"),
        Piece(_SERVER_ARGS.module, "ServerArgs", Kind.CLASS, _READ, _FLAGS),
        _SERVER_ARGS.method("add_cli_args", _HOOK, _FLAGS, args=("parser",)),
        _SERVER_ARGS.method("from_cli_args", _HOOK, "read the --specswitch flags", args=("args",)),
        _SERVER_ARGS.method("__post_init__", _HOOK, _START, until="0.5.18"),
        _SERVER_ARGS.method("resolve_once", _HOOK, _START, since="0.5.19"),
        _SCHEDULER.method("__init__", _HOOK, "wire the switch into each scheduler"),
        *_SCHEDULER.attributes(_READ, {"tp_rank": "write the log on rank 0 only"}, until="0.5.12.post1"),
    ),
)

_REQUEST_METRICS = Need(
    "specswitch.engine.request_metrics",
    (
        _TOKENIZER_MANAGER.method(
            "_calculate_spec_decoding_metrics",
            _HOOK,
            "count a request's accept length over verify steps alone",
            args=("meta_info", "recv_obj", "i"),
        ),
    ),
)

_BUILD = Need(
    "specswitch.engine.build",
    (
        *_SERVER_ARGS.attributes(_READ, {"disable_overlap_schedule": "choose the engine path"}, until="0.5.18"),
        *_SCHEDULER.attributes(_READ, {"enable_overlap": "choose the engine path"}),
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


_PLAIN_GRAPHS_0512 = Need(
    "specswitch.engine.plain_graphs",
    (
        *_SCHEDULER.attributes(_READ, {"tp_worker": "reach the target's model runner"}),
        *_TARGET_WORKER.attributes(_READ, {"model_runner": "reach the target's model runner"}),
        *_MODEL_RUNNER.attributes(_WRITE, {"graph_runner": "keep a plain batch off the graphs of verification"}),
    ),
)

_STATUS = "add the switch's state to /server_info"
_CALLED_IN_LOOPS = ("event_loop_normal", "event_loop_overlap")

_V2 = Need(
    "specswitch.engine.v2",
    (
        _SCHEDULER.method(
            "get_next_batch_to_run",
            _HOOK,
            "decide once a turn, before the batch is chosen",
            called_in=_CALLED_IN_LOOPS,
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
            called_in=_CALLED_IN_LOOPS,
        ),
        _SCHEDULER.method(
            "launch_batch_sample_if_needed",
            _HOOK,
            "sample a plain batch with a grammar the plain way",
            args=("batch_result",),
            called_in=("event_loop_overlap",),
        ),
        _SCHEDULER.method(
            "process_batch_result", _HOOK, "count decode steps", args=("batch", "result"), called_in=_CALLED_IN_LOOPS
        ),
        _SCHEDULER.method(
            "_apply_war_barrier",
            _HOOK,
            "let the next turn wait for the target's reads after a plain batch",
            called_in=("event_loop_overlap",),
            since="0.5.14",
        ),
        *_SCHEDULER.attributes(
            _READ,
            {
                "enable_overlap": "know whether results lag the batch",
                "draft_worker": "name the speculative worker and read its shape",
                "tp_worker": "send plain batches to the target worker",
                "running_batch": "rebuild the running batch for plain decode",
                "last_batch": "bring a prefill that joins while PLAIN into plain form",
                "chunked_req": "leave a request out of the decode batch until its prefill is complete",
                "waiting_queue": "count the requests that wait",
                "result_queue": "know whether a launched step's result has yet to be processed",
                "req_to_token_pool": "find the KV slots of a request",
                "token_to_kv_pool_allocator": "give reserved KV slots back and count the free ones",
                "tree_cache": "count the KV slots that eviction would free",
                "max_total_num_tokens": "tell which share of the KV slots is in use",
                "page_size": "round to whole pages",
                "device": "put tensors where the scheduler's are",
                "model_config": "know the vocabulary's size",
                "future_map": _RELAY,
                "forward_stream_ctx": "keep a prefill's tokens on the stream that makes them",
                "metrics_reporter": "keep SGLang's log line from dividing by a verify count of zero",
            },
        ),
        *_SCHEDULER.attributes(_BOTH, {"spec_algorithm": "take the plain path while a plain batch is launched"}),
        *_SCHEDULER.attributes(_WRITE, {"model_worker": "send plain batches to the target worker"}),
        _FUTURE_MAP.method("stash", _HOOK, _RELAY, args=("future_indices", "payload")),
        *_FUTURE_MAP.attributes(_READ, {"output_tokens_buf": _RELAY}),
        *_FUTURE_MAP.attributes(_WRITE, {"spec_algo": _RELAY}),
        _METRICS.method("report_decode_stats", _HOOK, "keep SGLang's log line from dividing by a verify count of zero"),
        _METRICS.method(
            "report_prefill_stats",
            _HOOK,
            "keep a running batch launched as an extend out of the prefill log",
            keywords=("prefill_stats",),
        ),
        *_METRICS.attributes(_READ, {"spec_num_forward_ct": "see whether a log interval had a verify step"}),
        *_STATE_REPLY.attributes(_READ, {"internal_state": _STATUS}),
        *_TARGET_WORKER.attributes(_READ, {"model_runner": "choose the target's graphs for plain decode"}),
        *_TARGET_WORKER.attributes(_WRITE, {"enable_spec": "sample a plain batch the plain way"}),
        *_EAGLE_V2.attributes(
            _READ,
            {
                "topk": "log which path is active",
                "speculative_num_steps": "log which path is active",
                "speculative_num_draft_tokens": "log which path is active",
            },
        ),
        *_NGRAM_WORKER.attributes(_READ, {"speculative_num_draft_tokens": "log which path is active"}),
        *_ALGORITHM.members("mark a batch as plain", "NONE"),
        _ALGORITHM.method("is_none", _CALL, "tell a plain batch from a speculative one"),
        _ALGORITHM.method("is_ngram", _CALL, "know whether there is draft KV"),
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
        _BATCH.method("is_empty", _CALL, "leave an empty batch alone"),
        _BATCH.method("new_tokens_required_next_decode", _CALL, "see whether the speculative reserve fits the pool"),
        *_BATCH.attributes(
            _READ,
            {
                "reqs": "go through the running requests",
                "req_pool_indices": "keep a prefill's tokens for plain decode",
                "forward_mode": "tell decode from prefill",
                "batch_is_full": "hand SGLang an empty batch while draining",
                "spec_info": "keep a prefill's tokens for plain decode",
                "sampling_info": "rebuild penalties from the tokens put out",
            },
        ),
        *_BATCH.attributes(_BOTH, {"spec_algorithm": "mark a batch as plain or speculative"}),
        *_BATCH.attributes(
            _WRITE,
            {
                "input_ids": _ENTER_PLAIN,
                "out_cache_loc": _ENTER_PLAIN,
                "decoding_reqs": "keep a catch-up's requests out of the prefix cache",
            },
        ),
        _REQ.method("finished", _CALL, "count unfinished requests only"),
        *_REQ.attributes(
            _READ,
            {
                "rid": "name a request in an error",
                "origin_input_ids": "see that a request's KV ends where its tokens do",
                "output_ids": "know the last token",
            },
        ),
        *_RESULT.attributes(
            _READ,
            {
                "delay_sample_func": "sample a plain batch with a grammar the plain way",
                "num_correct_drafts": "measure the accept length of verify steps alone",
            },
        ),
        *_DRAFT_INPUT.attributes(_READ, {"bonus_tokens": "keep a prefill's tokens for plain decode"}),
        *_NGRAM_INPUT.attributes(_READ, {"accept_tokens": "keep a prefill's tokens for plain decode"}),
        _SLOT_ALLOCATOR.method("available_size", _CALL, "see whether the speculative reserve fits the pool"),
        _PREFIX_CACHE.method("evictable_size", _CALL, "see whether the speculative reserve fits the pool"),
        *_ROWS.attributes(_READ, {"req_to_token": "find the KV slots of a request"}),
        *_SAMPLING.attributes(_READ, {"penalizer_orchestrator": "see whether any request uses penalties"}),
        *_ORCHESTRATOR.attributes(_READ, {"is_required": "see whether any request uses penalties"}),
        *_MODEL_CONFIG.attributes(_READ, {"vocab_size": "rebuild penalties from the tokens put out"}),
    ),
)

_V2_BATCH = Need(
    "specswitch.engine.v2_batch",
    (
        *_ALGORITHM.members("mark a batch as plain", "NONE"),
        *_FORWARD_MODE.members(_CATCH_UP, "EXTEND"),
        _BATCH.method("batch_size", _CALL, "notice that a filtered batch shrank"),
        _BATCH.method("filter_batch", _CALL, "drop finished requests before a rebuild"),
        *_BATCH.attributes(
            _READ, {"device": _ENTER_PLAIN, "req_to_token_pool": _CATCH_UP, "return_logprob": _CATCH_UP}
        ),
        *_BATCH.attributes(
            _WRITE,
            {
                "spec_algorithm": "mark a batch as plain",
                "batch_is_full": "let requests in again after a batch shrank",
                "seq_lens": _ENTER_PLAIN,
                "seq_lens_cpu": _ENTER_PLAIN,
                "orig_seq_lens": _ENTER_PLAIN,
                "seq_lens_sum": _ENTER_PLAIN,
                "spec_info": _ENTER_PLAIN,
                "forward_mode": _CATCH_UP,
                "prefill_input_ids_cpu": _CATCH_UP,
                "input_ids": _CATCH_UP,
                "out_cache_loc": _CATCH_UP,
                "prefix_lens": _CATCH_UP,
                "extend_lens": _CATCH_UP,
                "extend_num_tokens": _CATCH_UP,
                "extend_logprob_start_lens": _CATCH_UP,
                "extend_input_logprob_token_ids": _CATCH_UP,
                "chunked_req": _CATCH_UP,
                "prefill_stats": _CATCH_UP,
                "mix_running_indices": _CATCH_UP,
                "chunked_req_next_prompt_token": _CATCH_UP,
                "is_prefill_only": _CATCH_UP,
            },
        ),
        *_BATCH.attributes(_WRITE, {"mix_running_indices_cpu": _CATCH_UP}, since="0.5.19"),
        *_ROWS.attributes(_READ, {"req_to_token": "find the KV slots of a request"}),
    ),
)

_WHOLE_PAGES = "give reserved KV slots back"
_COMMITTED = "keep the slots that hold tokens"
_ALLOCATED = "give reserved KV slots back"
_ROW = "find the KV slots of a request"
_EXTEND_END = "say which tokens of a request the catch-up covers"

_V2_COMPAT = Need(
    "specswitch.engine.v2_compat",
    (
        *_REQ.attributes(_BOTH, {"kv_committed_len": _COMMITTED}, until="0.5.18"),
        *_REQ.attributes(_BOTH, {"kv_allocated_len": _ALLOCATED}, until="0.5.15.post1"),
        *_REQ.attributes(_READ, {"req_pool_idx": _ROW, "cache_protected_len": _ROW}, until="0.5.18"),
        *_REQ.attributes(_READ, {"kv": _COMMITTED}, since="0.5.16"),
        *_REQ_KV.attributes(_BOTH, {"kv_allocated_len": _ALLOCATED}, since="0.5.16"),
        *_REQ_KV.attributes(_BOTH, {"kv_committed_len": _COMMITTED}, since="0.5.19"),
        *_REQ_KV.attributes(_READ, {"req_pool_idx": _ROW, "cache_protected_len": _ROW}, since="0.5.19"),
        _SLOT_ALLOCATOR.method("free", _CALL, _WHOLE_PAGES, args=("free_index",), until="0.5.16"),
        _SLOT_ALLOCATOR.method(
            "free_segment", _CALL, _WHOLE_PAGES, args=("free_index",), keywords=("start_pos",), since="0.5.17"
        ),
        _REQ.method("_refresh_fill_ids", _CALL, _EXTEND_END, since="0.5.14", until="0.5.21"),
        _REQ.method("refresh_fill_ids", _CALL, _EXTEND_END, since="0.5.22"),
        *_REQ.attributes(_WRITE, {"full_untruncated_fill_ids": _EXTEND_END}, until="0.5.13.post1"),
        *_REQ.attributes(_READ, {"origin_input_ids": _EXTEND_END, "output_ids": _EXTEND_END}, until="0.5.13.post1"),
        *_REQ.attributes(_BOTH, {"fill_len": _EXTEND_END}, until="0.5.14"),
        _REQ.method("set_extend_input_len", _CALL, _EXTEND_END, args=("extend_input_len",), until="0.5.14"),
        _REQ.method("set_extend_range", _CALL, _EXTEND_END, args=("start", "end"), since="0.5.15", until="0.5.21"),
        *_REQ.attributes(_READ, {"extend_range": _EXTEND_END}, since="0.5.15", until="0.5.21"),
        *_REQ.attributes(_BOTH, {"extend_end": _EXTEND_END}, since="0.5.22"),
        Piece(_BATCH.module, "ScheduleBatch", Kind.CLASS, _READ, "tell how a catch-up's result is processed"),
        _BATCH.method("convert_decode_to_extend", _READ, "tell how a catch-up's result is processed", since="0.5.19"),
        *_SCHEDULER.attributes(_WRITE, {"running_batch": "hold the decode batch back"}, until="0.5.15.post1"),
        *_RUNNING_PLAN.attributes(_BOTH, {"running_batch": "hold the decode batch back"}),
        *_MODEL_RUNNER.attributes(
            _WRITE, {"graph_runner": "keep a plain batch off the graphs of verification"}, until="0.5.13.post1"
        ),
        *_MODEL_RUNNER.attributes(
            _WRITE, {"decode_cuda_graph_runner": "keep a plain batch off the graphs of verification"}, since="0.5.14"
        ),
        Piece("sglang.srt.managers.io_struct", "GetInternalStateReq", Kind.CLASS, _READ, _STATUS),
        _SCHEDULER.method("get_internal_state", _HOOK, _STATUS, args=("recv_req",)),
        *_SCHEDULER.attributes(_READ, {"_request_dispatcher": _STATUS}),
        *_DISPATCHER.attributes(_READ, {"_mapping": _STATUS}),
        *_RELAYED.attributes(_READ, {"bonus_tokens": _RELAY}),
    ),
)

_TOKENS_OF_REQUEST = Need(
    "specswitch.engine.draft_kv",
    _REQ.attributes(_READ, {"origin_input_ids": _CATCH_UP, "output_ids": _CATCH_UP}),
)

RELEASE_LINES: tuple[ReleaseLine, ...] = (
    ReleaseLine(
        name="0.5.11-0.5.12",
        first="0.5.11",
        before="0.5.13",
        paths={"v1": "specswitch.engine.v1", "v2": "specswitch.engine.v2_0_5_12"},
        tested=("0.5.12.post1",),
        needs=(
            _PLUGIN,
            _REQUEST_METRICS,
            _BUILD,
            _LINE_0512,
            _PLAIN_GRAPHS_0512,
            _CATCH_UP_0512,
            _SUPPORTED_0512,
            _FEATURES,
            _PENALTY_STATE,
            _V1_0512,
            _V2_0512,
        ),
    ),
    ReleaseLine(
        name="0.5.13 and later",
        first="0.5.13",
        before=None,
        paths={"v2": "specswitch.engine.v2"},
        tested=("0.5.17", "0.5.23"),
        needs=(_PLUGIN, _BUILD, _V2, _V2_BATCH, _V2_COMPAT, _TOKENS_OF_REQUEST, _FEATURES, _PENALTY_STATE),
    ),
)
