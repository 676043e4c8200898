"""How many requests may run at once.

SGLang limits a server with speculation to 48 running requests where the operator has set no limit
(0.5.12 ``ServerArgs._handle_speculative_decoding``; later ``arg_groups/speculative_hook.py``
``handle_speculative_decoding``), and sizes request pool, relay buffers and n-gram buffers by it.  PLAIN exists
for the load beyond, so the limit is left open here; then SGLang derives it from the KV pool, as for a plain server
(0.5.12 ``model_executor/model_runner_kv_cache_mixin.py`` ``_resolve_max_num_reqs``: half the pool's tokens, at most
4096).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specswitch.config import SwitchConfig

_FIELD = "max_running_requests"


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """The limit a scheduler serves under; logged as ``specswitch.admission``."""

    max_running_requests: int
    set_by_operator: bool
    kv_slots: int
    """Tokens that the KV pool holds; it may bind before the limit does."""


def leaves_speculation(config: SwitchConfig) -> bool:
    """Whether the server will ever decode plainly because of load."""
    return config.mode not in ("observe", "speculative")


def without_default_limit(resolve: Callable[..., None], server_args: Any) -> None:
    """Call SGLang's ``resolve(server_args)`` for speculation, and leave a request limit open that was open before."""
    was_open = _limit(server_args) is None
    resolve(server_args)
    if was_open and _limit(server_args) is not None:
        _open_limit(server_args)


def facts(scheduler: Any) -> AdmissionFacts:
    """What a constructed scheduler admits."""
    return AdmissionFacts(
        max_running_requests=scheduler.max_running_requests,
        set_by_operator=_limit(scheduler.server_args) is not None,
        kv_slots=scheduler.max_total_num_tokens,
    )


def resolver() -> str:
    """Dotted path of the function that :func:`without_default_limit` wraps."""
    from sglang.srt.server_args import ServerArgs

    if hasattr(ServerArgs, "_handle_speculative_decoding"):  # up to 0.5.12
        return "sglang.srt.server_args.ServerArgs._handle_speculative_decoding"
    return "sglang.srt.arg_groups.speculative_hook.handle_speculative_decoding"


def _limit(server_args: Any) -> int | None:
    limit: int | None
    if hasattr(server_args, "resolve_once"):  # 0.5.19 on: the record keeps what was asked for, decisions lie beside it
        from sglang.srt.arg_groups.overrides import resolution_result

        limit = resolution_result(server_args, _FIELD)
    else:
        limit = server_args.max_running_requests
    return limit


def _open_limit(server_args: Any) -> None:
    if hasattr(server_args, "resolve_once"):
        from sglang.srt.arg_groups.overrides import declare_resolution

        declare_resolution(server_args, "specswitch", **{_FIELD: None})
    else:
        server_args.max_running_requests = None
