"""What a profile for this server is made for, from SGLang's resolved arguments.

All of it is known before the model loads: ``ServerArgs`` resolves attention backend, page size and CUDA graphs in
``__post_init__`` (up to 0.5.18) or ``resolve_once``.
"""

from __future__ import annotations

from typing import Any

from specswitch import gpu
from specswitch.engine import v2_compat
from specswitch.engine.contract import EnginePath
from specswitch.profile import ProfileKey


def key_of(server_args: Any, release: str, path: EnginePath) -> ProfileKey:
    """The key of a server with these arguments, in the launcher as in its schedulers."""
    server_args = v2_compat.resolved(server_args)
    device = str(server_args.device)
    draft = server_args.speculative_draft_model_path
    return ProfileKey(
        model=str(server_args.model_path),
        gpu="cpu" if device == "cpu" else gpu.name() or device,
        release=release,
        path=path,
        algorithm=str(server_args.speculative_algorithm),
        topk=server_args.speculative_eagle_topk,
        num_steps=server_args.speculative_num_steps,
        num_draft_tokens=server_args.speculative_num_draft_tokens,
        page_size=server_args.page_size,
        tp_size=server_args.tp_size,
        dtype=str(server_args.dtype),
        attention_backend=str(server_args.decode_attention_backend or server_args.attention_backend),
        draft_model=None if draft is None else str(draft),
        quantization=str(server_args.quantization or "none"),
        kv_cache_dtype=str(server_args.kv_cache_dtype),
        cuda_graphs=_decodes_by_graphs(server_args),
    )


def _decodes_by_graphs(server_args: Any) -> bool:
    config = getattr(server_args, "cuda_graph_config", None)  # 0.5.14 and later
    if config is None:
        return not server_args.disable_cuda_graph
    return bool(config.decode.backend != "disabled")
