"""The classes of SGLang that rows speak of, by where they are imported from."""

from __future__ import annotations

from specswitch.engine.contract.pieces import Owner

SCHEDULER = Owner("sglang.srt.managers.scheduler", "Scheduler")
NEXT_BATCH_PLAN = Owner("sglang.srt.managers.scheduler", "NextBatchPlan", since="0.5.16")
BATCH = Owner("sglang.srt.managers.schedule_batch", "ScheduleBatch")
WORKER_BATCH = Owner("sglang.srt.managers.schedule_batch", "ModelWorkerBatch", until="0.5.12.post1")
REQ = Owner("sglang.srt.managers.schedule_batch", "Req")
REQ_KV = Owner("sglang.srt.managers.schedule_batch", "ReqKvInfo")
RESULT = Owner("sglang.srt.managers.utils", "GenerationBatchResult")
TARGET_WORKER = Owner("sglang.srt.managers.tp_worker", "TpModelWorker")
REQUEST_RECEIVER = Owner(
    "sglang.srt.managers.scheduler_components.request_receiver", "SchedulerRequestReceiver", since="0.5.13"
)
INPUT_BLOCKER = Owner("sglang.srt.managers.scheduler_input_blocker", "SchedulerInputBlocker")
PARALLEL_STATE = Owner("sglang.srt.distributed.parallel_state_wrapper", "ParallelState", since="0.5.13", until="0.5.20")
STATE_REQUEST = Owner("sglang.srt.managers.io_struct", "GetInternalStateReq")
STATE_REPLY = Owner("sglang.srt.managers.io_struct", "GetInternalStateReqOutput")
COMMAND_REQUEST = Owner("sglang.srt.managers.io_struct", "SetInternalStateReq")
COMMAND_REPLY = Owner("sglang.srt.managers.io_struct", "SetInternalStateReqOutput")
METRICS_REPORTER = Owner("sglang.srt.managers.scheduler_components.metrics_reporter", "SchedulerMetricsReporter")
TOKENIZER_MANAGER = Owner("sglang.srt.managers.tokenizer_manager", "TokenizerManager")
DISPATCHER = Owner("sglang.utils", "TypeBasedDispatcher")
LOGITS_OUTPUT = Owner("sglang.srt.layers.logits_processor", "LogitsProcessorOutput")

FUTURE_MAP = Owner("sglang.srt.managers.overlap_utils", "FutureMap")
RELAY_PAYLOAD = Owner("sglang.srt.managers.overlap_utils", "RelayPayload", since="0.5.15")

SERVER_ARGS = Owner("sglang.srt.server_args", "ServerArgs")
MODEL_CONFIG = Owner("sglang.srt.configs.model_config", "ModelConfig")
HOOK_REGISTRY = Owner("sglang.srt.plugins.hook_registry", "HookRegistry")
HOOK_TYPE = Owner("sglang.srt.plugins.hook_registry", "HookType")
CONFIG_BAG = Owner("sglang.srt.runtime_context", "_ConfigBag", since="0.5.17")

MODEL_RUNNER = Owner("sglang.srt.model_executor.model_runner", "ModelRunner")
FORWARD_BATCH = Owner("sglang.srt.model_executor.forward_batch_info", "ForwardBatch")
FORWARD_MODE = Owner("sglang.srt.model_executor.forward_batch_info", "ForwardMode")
HIDDEN_MODE = Owner("sglang.srt.model_executor.forward_batch_info", "CaptureHiddenMode")
GRAPH_RUNNER = Owner("sglang.srt.model_executor.cuda_graph_runner", "CudaGraphRunner", until="0.5.13.post1")
DECODE_GRAPH_RUNNER = Owner(
    "sglang.srt.model_executor.runner.decode_cuda_graph_runner", "DecodeCudaGraphRunner", since="0.5.14"
)
GRAPH_SHARED_OUTPUT = Owner("sglang.srt.model_executor.graph_shared_output", "GraphSharedOutput", since="0.5.15")
GRAPH_CONFIG = Owner("sglang.srt.model_executor.cuda_graph_config", "CudaGraphConfig", since="0.5.14")
GRAPH_PHASE = Owner("sglang.srt.model_executor.cuda_graph_config", "PhaseConfig", since="0.5.14")
LLAMA = Owner("sglang.srt.models.llama", "LlamaForCausalLM")
LLAMA_LAYERS = Owner("sglang.srt.models.llama", "LlamaModel")

ALGORITHM = Owner("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm")
DRAFT_INPUT = Owner("sglang.srt.speculative.eagle_info", "EagleDraftInput")
NGRAM_INPUT = Owner("sglang.srt.speculative.ngram_info", "NgramVerifyInput")
EAGLE_V1 = Owner("sglang.srt.speculative.eagle_worker", "EAGLEWorker")
EAGLE_V2 = Owner("sglang.srt.speculative.eagle_worker_v2", "EAGLEWorkerV2")

SLOT_ALLOCATOR = Owner("sglang.srt.mem_cache.allocator", "BaseTokenToKVPoolAllocator")
PREFIX_CACHE = Owner("sglang.srt.mem_cache.base_prefix_cache", "BasePrefixCache")
ROWS = Owner("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool")

SAMPLING = Owner("sglang.srt.sampling.sampling_batch_info", "SamplingBatchInfo")
SAMPLING_PARAMS = Owner("sglang.srt.sampling.sampling_params", "SamplingParams")
ORCHESTRATOR = Owner("sglang.srt.sampling.penaltylib.orchestrator", "BatchedPenalizerOrchestrator")
PENALIZER = Owner("sglang.srt.sampling.penaltylib.orchestrator", "_BatchedPenalizer")
FREQUENCY_PENALTY = Owner("sglang.srt.sampling.penaltylib", "BatchedFrequencyPenalizer")
PRESENCE_PENALTY = Owner("sglang.srt.sampling.penaltylib", "BatchedPresencePenalizer")
REPETITION_PENALTY = Owner("sglang.srt.sampling.penaltylib", "BatchedRepetitionPenalizer")
MIN_NEW_TOKENS = Owner("sglang.srt.sampling.penaltylib", "BatchedMinNewTokensPenalizer")
