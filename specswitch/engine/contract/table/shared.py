"""Rows of the modules that serve every release line."""

from __future__ import annotations

from specswitch.engine.contract.pieces import Need, Use, function
from specswitch.engine.contract.table import whys
from specswitch.engine.contract.table.owners import (
    ALGORITHM,
    BATCH,
    COMMAND_REPLY,
    COMMAND_REQUEST,
    CONFIG_BAG,
    DECODE_GRAPH_RUNNER,
    DISPATCHER,
    FORWARD_BATCH,
    FORWARD_MODE,
    FREQUENCY_PENALTY,
    FUTURE_MAP,
    GRAPH_CONFIG,
    GRAPH_PHASE,
    GRAPH_RUNNER,
    GRAPH_SHARED_OUTPUT,
    HIDDEN_MODE,
    HOOK_REGISTRY,
    HOOK_TYPE,
    INPUT_BLOCKER,
    LLAMA,
    LLAMA_LAYERS,
    LOGITS_OUTPUT,
    MIN_NEW_TOKENS,
    MODEL_CONFIG,
    MODEL_RUNNER,
    ORCHESTRATOR,
    PARALLEL_STATE,
    PENALIZER,
    PREFIX_CACHE,
    PRESENCE_PENALTY,
    REPETITION_PENALTY,
    REQ,
    REQUEST_RECEIVER,
    RESULT,
    ROWS,
    SAMPLING,
    SAMPLING_PARAMS,
    SCHEDULER,
    SERVER_ARGS,
    SLOT_ALLOCATOR,
    TARGET_WORKER,
    TOKENIZER_MANAGER,
)

_HOOK, _CALL, _READ, _WRITE = Use.HOOK, Use.CALL, Use.READ, Use.WRITE
_BOTH = Use.READ | Use.WRITE
_FLAGS = "add and read the --specswitch flags"
_REGISTER = "register the hooks of the plugin"
_START = "check the contract before the model loads"
_FEATURES = "see which sampling features a request uses"
_CENSUS = "count the requests of the next decode batch"
_LOOK = "count what each request of a sample puts out"
_OVERRIDES = "sglang.srt.arg_groups.overrides"

PLUGIN = Need(
    "specswitch.plugin",
    (
        function("sglang.srt.plugins", "load_plugins", _READ, "be loaded in the launcher and in every scheduler"),
        HOOK_REGISTRY.itself(_REGISTER),
        HOOK_REGISTRY.method("register", _CALL, _REGISTER, args=("target", "hook", "hook_type")),
        *HOOK_TYPE.members(_REGISTER, "AFTER", "AROUND"),
        SERVER_ARGS.itself(_FLAGS),
        SERVER_ARGS.method("add_cli_args", _HOOK, _FLAGS, args=("parser",)),
        SERVER_ARGS.method("from_cli_args", _HOOK, _FLAGS, args=("args",)),
        SERVER_ARGS.method("__post_init__", _HOOK, _START, until="0.5.18"),
        SERVER_ARGS.method("resolve_once", _HOOK, _START, since="0.5.19"),
        *SCHEDULER.attributes(_READ, whys.PROFILE, "server_args"),
        SCHEDULER.method("__init__", _HOOK, "wire the switch into each scheduler", args=("server_args",)),
    ),
)

BUILD = Need(
    "specswitch.engine.build",
    (
        *SERVER_ARGS.arguments("choose the engine path", "disable_overlap_schedule"),
        *SCHEDULER.attributes(_READ, "choose the engine path", "enable_overlap"),
        *SERVER_ARGS.arguments(
            "refuse a budget that would keep nothing", "speculative_algorithm", "enable_return_hidden_states"
        ),
    ),
)

ADMISSION = Need(
    "specswitch.engine.admission",
    (
        SERVER_ARGS.itself(whys.REQUEST_LIMIT),
        SERVER_ARGS.method("_handle_speculative_decoding", _HOOK, whys.REQUEST_LIMIT, until="0.5.12.post1"),
        function(
            "sglang.srt.arg_groups.speculative_hook",
            "handle_speculative_decoding",
            _HOOK,
            whys.REQUEST_LIMIT,
            args=("server_args",),
            since="0.5.13",
        ),
        SERVER_ARGS.method("resolve_once", _READ, whys.REQUEST_LIMIT, since="0.5.19"),
        function(
            _OVERRIDES,
            "resolution_result",
            _CALL,
            whys.REQUEST_LIMIT,
            args=("server_args", "field"),
            since="0.5.19",
        ),
        function(
            _OVERRIDES, "declare_resolution", _CALL, whys.REQUEST_LIMIT, args=("server_args", "source"), since="0.5.19"
        ),
        *SERVER_ARGS.arguments(whys.REQUEST_LIMIT, "max_running_requests", use=_BOTH),
        *SCHEDULER.attributes(
            _READ, "log how many requests may run", "server_args", "max_running_requests", "max_total_num_tokens"
        ),
    ),
)

GRAPH_SIZES = Need(
    "specswitch.engine.graph_sizes",
    (
        *SERVER_ARGS.arguments(whys.PLAIN_GRAPHS, "cuda_graph_bs", use=_BOTH, until="0.5.13.post1"),
        *SERVER_ARGS.arguments(whys.PLAIN_GRAPHS, "cuda_graph_config", since="0.5.14"),
        *GRAPH_CONFIG.attributes(_READ, whys.PLAIN_GRAPHS, "decode"),
        *GRAPH_PHASE.attributes(_BOTH, whys.PLAIN_GRAPHS, "bs"),
        function("sglang.srt.runtime_context", "get_exec", _READ, whys.PLAIN_GRAPHS, since="0.5.17"),
        *SERVER_ARGS.arguments(whys.PLAIN_GRAPHS, "max_running_requests", "tp_size"),
        *SCHEDULER.attributes(_READ, whys.PLAIN_GRAPHS, "server_args", "tp_worker"),
        *TARGET_WORKER.attributes(_READ, whys.PLAIN_GRAPHS, "model_runner"),
        *MODEL_RUNNER.attributes(_READ, whys.PLAIN_GRAPHS, "req_to_token_pool"),
        *ROWS.attributes(_READ, whys.PLAIN_GRAPHS, "size"),
    ),
)

PLAIN_GRAPHS = Need(
    "specswitch.engine.plain_graphs",
    (
        *SCHEDULER.attributes(_READ, whys.PLAIN_GRAPHS, "tp_worker"),
        SCHEDULER.method(
            "init_all_cuda_graphs", _HOOK, whys.PLAIN_GRAPHS, called_in=("init_model_worker",), since="0.5.14"
        ),
        *TARGET_WORKER.attributes(_READ, whys.PLAIN_GRAPHS, "model_runner"),
        *MODEL_RUNNER.attributes(_READ, whys.PLAIN_GRAPHS, "server_args", "model", "device"),
        *MODEL_RUNNER.attributes(_BOTH, whys.PLAIN_GRAPHS, "attn_backend", "spec_algorithm", "init_new_workspace"),
        *MODEL_RUNNER.attributes(_BOTH, whys.PLAIN_GRAPHS, "graph_runner", until="0.5.13.post1"),
        *MODEL_RUNNER.attributes(_BOTH, whys.PLAIN_GRAPHS, "decode_cuda_graph_runner", since="0.5.14"),
        *MODEL_RUNNER.attributes(_READ, whys.PLAIN_GRAPHS, "eager_runner", since="0.5.14"),
        *MODEL_RUNNER.attributes(_BOTH, whys.PLAIN_GRAPHS, "graph_shared_output", since="0.5.15"),
        MODEL_RUNNER.method("_get_attention_backend", _CALL, whys.PLAIN_GRAPHS, keywords=("init_new_workspace",)),
        GRAPH_RUNNER.itself(whys.PLAIN_GRAPHS, use=_CALL, args=("model_runner",), keywords=("attn_backend",)),
        GRAPH_RUNNER.method("can_run", _HOOK, whys.PLAIN_GRAPHS, args=("forward_batch",)),
        *GRAPH_RUNNER.attributes(_READ, whys.PLAIN_GRAPHS, "capture_bs", "capture_hidden_mode"),
        DECODE_GRAPH_RUNNER.itself(whys.PLAIN_GRAPHS, use=_CALL, args=("model_runner",), keywords=("attn_backend",)),
        DECODE_GRAPH_RUNNER.method("can_run_graph", _HOOK, whys.PLAIN_GRAPHS, args=("forward_batch",)),
        *DECODE_GRAPH_RUNNER.attributes(_READ, whys.PLAIN_GRAPHS, "capture_bs", "capture_hidden_mode"),
        GRAPH_SHARED_OUTPUT.method("create_for_model_runner", _CALL, whys.PLAIN_GRAPHS, args=("model_runner",)),
        *FORWARD_BATCH.attributes(_READ, whys.PLAIN_GRAPHS, "capture_hidden_mode", "batch_size"),
        *ALGORITHM.members(whys.PLAIN_GRAPHS, "NONE"),
        *SERVER_ARGS.arguments(
            whys.PLAIN_GRAPHS,
            "speculative_eagle_topk",
            "speculative_num_steps",
            "speculative_num_draft_tokens",
            use=_BOTH,
        ),
        function("sglang.srt.runtime_context", "get_spec", _READ, whys.PLAIN_GRAPHS, since="0.5.17"),
        *SERVER_ARGS.arguments(whys.PLAIN_GRAPHS, "enable_return_hidden_states", use=_BOTH),
        *SERVER_ARGS.arguments(whys.PLAIN_GRAPHS, "return_hidden_states_mode", use=_BOTH, since="0.5.17"),
        function("sglang.srt.runtime_context", "get_exec", _READ, whys.PLAIN_GRAPHS, since="0.5.17"),
        CONFIG_BAG.method("override", _CALL, whys.PLAIN_GRAPHS),
        *LLAMA.attributes(_BOTH, whys.PLAIN_GRAPHS, "capture_aux_hidden_states"),
        *LLAMA_LAYERS.attributes(_BOTH, whys.PLAIN_GRAPHS, "layers_to_capture"),
    ),
)

PLAIN_LAUNCH = Need(
    "specswitch.engine.plain_launch",
    (
        *SCHEDULER.attributes(_READ, whys.TO_TARGET, "tp_worker"),
        *SCHEDULER.attributes(_BOTH, whys.TO_TARGET, "model_worker", "spec_algorithm"),
        *TARGET_WORKER.attributes(_BOTH, whys.GRAMMAR, "enable_spec"),
        *FUTURE_MAP.attributes(_WRITE, whys.RELAY, "spec_algo"),
        *TARGET_WORKER.attributes(_READ, whys.PLAIN_GRAPHS, "model_runner"),
        *MODEL_RUNNER.attributes(_BOTH, whys.PLAIN_GRAPHS, "attn_backend", "spec_algorithm"),
        *ALGORITHM.members(whys.TO_TARGET, "NONE"),
    ),
)

DRAFT_ALONE = Need(
    "specswitch.engine.draft_alone",
    (
        *SCHEDULER.attributes(
            _READ,
            whys.KEPT_HIDDEN,
            "token_to_kv_pool_allocator",
            "req_to_token_pool",
            "tp_worker",
            "spec_algorithm",
            "page_size",
        ),
        *SLOT_ALLOCATOR.attributes(_READ, whys.KEPT_HIDDEN, "size", "device"),
        *ROWS.attributes(_READ, whys.KEPT_HIDDEN, "req_to_token"),
        *FORWARD_BATCH.attributes(_READ, whys.KEPT_HIDDEN, "out_cache_loc"),
        FORWARD_MODE.method("is_decode", _CALL, whys.KEPT_HIDDEN),
        ALGORITHM.method("is_none", _CALL, whys.KEPT_HIDDEN),
        ALGORITHM.method("is_standalone", _CALL, whys.KEPT_HIDDEN),
        ALGORITHM.method("is_ngram", _CALL, whys.KEPT_HIDDEN),
        *HIDDEN_MODE.members(whys.KEPT_HIDDEN, "FULL"),
        RESULT.itself(whys.KEPT_HIDDEN, use=_CALL, keywords=("logits_output", "next_token_ids")),
        *RESULT.attributes(_READ, whys.KEPT_HIDDEN, "logits_output"),
        LOGITS_OUTPUT.itself(whys.KEPT_HIDDEN, use=_CALL, keywords=("next_token_logits", "hidden_states")),
        *LOGITS_OUTPUT.attributes(_BOTH, whys.KEPT_HIDDEN, "hidden_states"),
        REQ.method("finished", _CALL, whys.KEPT_HIDDEN),
        *REQ.attributes(_READ, whys.KEPT_HIDDEN, "origin_input_ids", "output_ids"),
    ),
)

KV = Need(
    "specswitch.engine.kv",
    REQ.attributes(_READ, whys.CATCH_UP, "origin_input_ids", "output_ids"),
)

COMMON = Need(
    "specswitch.engine.common",
    (
        *SCHEDULER.attributes(_READ, "count the requests that wait", "waiting_queue"),
        *SCHEDULER.attributes(_READ, whys.TELL_APART, "spec_algorithm"),
        *ALGORITHM.members(whys.TELL_APART, "NONE"),
        ALGORITHM.method("is_ngram", _CALL, "know whether there is draft KV"),
        *BATCH.attributes(_READ, whys.TELL_APART, "reqs", "spec_algorithm"),
        BATCH.method("batch_size", _CALL, whys.DROP_FINISHED),
        BATCH.method("filter_batch", _CALL, whys.DROP_FINISHED),
        *BATCH.attributes(_WRITE, whys.BATCH_FIRST, "batch_is_full"),
        *SCHEDULER.attributes(_BOTH, whys.BATCH_FIRST, "enable_priority_preemption"),
        *RESULT.attributes(_READ, whys.VERIFY_ONLY, "num_correct_drafts"),
    ),
)

CENSUS = Need(
    "specswitch.engine.census",
    (
        *SCHEDULER.attributes(_READ, _CENSUS, "running_batch", "last_batch", "chunked_req", "req_to_token_pool"),
        *BATCH.attributes(_READ, _CENSUS, "reqs", "forward_mode"),
        FORWARD_MODE.method("is_extend", _CALL, _CENSUS),
        REQ.method("finished", _CALL, _CENSUS),
        *REQ.attributes(_READ, _CENSUS, "origin_input_ids", "output_ids"),
        ROWS.method("free", _HOOK, "know when a request has finished"),
    ),
)

LOOK = Need(
    "specswitch.engine.look",
    (REQ.method("finished", _CALL, _LOOK), *REQ.attributes(_READ, _LOOK, "rid", "output_ids")),
)

RETURN_ROOM = Need(
    "specswitch.engine.return_room",
    (
        *SCHEDULER.attributes(_READ, whys.COUNT_FREE, "token_to_kv_pool_allocator", "tree_cache", "waiting_queue"),
        SLOT_ALLOCATOR.method("available_size", _CALL, whys.COUNT_FREE),
        PREFIX_CACHE.method("evictable_size", _CALL, whys.COUNT_FREE),
        *REQ.attributes(_READ, whys.COUNT_FREE, "origin_input_ids", "output_ids"),
    ),
)

PREFIX_SLOTS = Need(
    "specswitch.engine.prefix_slots",
    (
        *SCHEDULER.attributes(_READ, whys.PREFIX, "tree_cache", "req_to_token_pool"),
        *ROWS.attributes(_READ, whys.PREFIX, "req_to_token"),
        PREFIX_CACHE.method("evictable_size", _CALL, whys.PREFIX),
        PREFIX_CACHE.method("protected_size", _CALL, whys.PREFIX),
        REQ.method("finished", _CALL, whys.PREFIX),
    ),
)

FEATURES = Need(
    "specswitch.engine.features",
    (
        *REQ.attributes(_READ, _FEATURES, "sampling_params", "grammar", "return_logprob", "return_hidden_states"),
        *SAMPLING_PARAMS.attributes(
            _READ,
            _FEATURES,
            "frequency_penalty",
            "presence_penalty",
            "repetition_penalty",
            "min_new_tokens",
            "logit_bias",
            "min_p",
        ),
    ),
)

PENALTIES = Need(
    "specswitch.engine.penalties",
    (
        *SAMPLING.attributes(_READ, whys.PENALTIES, "penalizer_orchestrator"),
        *ORCHESTRATOR.attributes(_READ, whys.PENALTIES, "is_required", "penalizers", "device"),
        PENALIZER.method("is_prepared", _CALL, whys.PENALTIES),
        *FREQUENCY_PENALTY.attributes(_READ, whys.PENALTIES, "cumulated_frequency_penalties", "frequency_penalties"),
        *PRESENCE_PENALTY.attributes(_READ, whys.PENALTIES, "cumulated_presence_penalties", "presence_penalties"),
        *REPETITION_PENALTY.attributes(_READ, whys.PENALTIES, "cumulated_repetition_penalties", "repetition_penalties"),
        *MIN_NEW_TOKENS.attributes(_WRITE, whys.PENALTIES, "len_output_tokens"),
    ),
)

REQUEST_METRICS = Need(
    "specswitch.engine.request_metrics",
    (
        TOKENIZER_MANAGER.method(
            "_calculate_spec_decoding_metrics",
            _HOOK,
            "count a request's accept length over verify steps alone",
            args=("meta_info", "recv_obj", "i"),
        ),
    ),
)

PROFILE_KEY = Need(
    "specswitch.engine.profile_key",
    (
        *SERVER_ARGS.arguments(
            whys.PROFILE,
            "model_path",
            "device",
            "speculative_algorithm",
            "speculative_eagle_topk",
            "speculative_num_steps",
            "speculative_num_draft_tokens",
            "speculative_draft_model_path",
            "page_size",
            "tp_size",
            "dtype",
            "quantization",
            "kv_cache_dtype",
            "attention_backend",
            "decode_attention_backend",
            "disable_cuda_graph",
        ),
        *SERVER_ARGS.arguments(whys.PROFILE, "cuda_graph_config", since="0.5.14"),
        *GRAPH_CONFIG.attributes(_READ, whys.PROFILE, "decode"),
        *GRAPH_PHASE.attributes(_READ, whys.PROFILE, "backend"),
    ),
)

WARM_UP = Need(
    "specswitch.engine.warm_up",
    (
        function(
            "sglang.srt.entrypoints.http_server", "_wait_and_warmup", _HOOK, whys.CALIBRATE, args=("server_args",)
        ),
        SERVER_ARGS.method("url", _CALL, whys.CALIBRATE),
        *SERVER_ARGS.arguments(whys.CALIBRATE, "api_key", "admin_api_key"),
    ),
)

CONTROL_CHANNEL = Need(
    "specswitch.engine.control_channel",
    (
        *SCHEDULER.attributes(_READ, whys.COMMANDS, "_request_dispatcher"),
        *DISPATCHER.attributes(_READ, whys.COMMANDS, "_mapping"),
        COMMAND_REQUEST.itself(whys.COMMANDS),
        *COMMAND_REQUEST.attributes(_READ, whys.COMMANDS, "server_args"),
        COMMAND_REPLY.itself(whys.COMMANDS),
        TOKENIZER_MANAGER.method("set_internal_state", _HOOK, whys.COMMANDS, args=("obj",)),
    ),
)

RANK_CHANNEL = Need(
    "specswitch.engine.rank_channel",
    (
        *SCHEDULER.attributes(_BOTH, whys.RANKS, "input_blocker", until="0.5.12.post1"),
        *SCHEDULER.attributes(_BOTH, whys.RANKS, "request_receiver", since="0.5.13"),
        *REQUEST_RECEIVER.attributes(_READ, whys.RANKS, "input_blocker"),
        INPUT_BLOCKER.itself(whys.RANKS),
        INPUT_BLOCKER.method("handle", _CALL, whys.RANKS, args=("recv_reqs",)),
        *SCHEDULER.attributes(_READ, whys.RANKS, "_request_dispatcher"),
        *DISPATCHER.attributes(_READ, whys.RANKS, "_mapping"),
        *SCHEDULER.attributes(_READ, whys.RANKS, "tp_rank", "tp_size", until="0.5.12.post1"),
        *SCHEDULER.attributes(_READ, whys.RANKS, "ps", since="0.5.13", until="0.5.20"),
        *PARALLEL_STATE.attributes(_READ, whys.RANKS, "tp_rank", "tp_size"),
        function("sglang.srt.runtime_context", "get_parallel", _CALL, whys.RANKS, since="0.5.21"),
    ),
)

REHEARSAL = Need(
    "specswitch.engine.rehearsal",
    (
        SCHEDULER.method("get_next_batch_to_run", _HOOK, whys.REHEARSE),
        *SCHEDULER.attributes(_READ, whys.REHEARSE, "req_to_token_pool", "device", "model_config"),
        *MODEL_CONFIG.attributes(_READ, whys.REHEARSE, "context_len"),
        *ROWS.attributes(_READ, whys.REHEARSE, "req_to_token"),
        REQ.itself(whys.REHEARSE, use=_CALL, args=("rid", "origin_input_text", "origin_input_ids", "sampling_params")),
        SAMPLING_PARAMS.itself(whys.REHEARSE, use=_CALL, keywords=("temperature",)),
    ),
)

SHARED = (
    PLUGIN,
    BUILD,
    ADMISSION,
    GRAPH_SIZES,
    PLAIN_GRAPHS,
    PLAIN_LAUNCH,
    DRAFT_ALONE,
    KV,
    COMMON,
    CENSUS,
    LOOK,
    RETURN_ROOM,
    PREFIX_SLOTS,
    FEATURES,
    PENALTIES,
    REQUEST_METRICS,
    RANK_CHANNEL,
    CONTROL_CHANNEL,
    PROFILE_KEY,
    WARM_UP,
    REHEARSAL,
)
