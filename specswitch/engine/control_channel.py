"""Commands of an operator on their way from HTTP to every scheduler.

SGLang sends a ``SetInternalStateReq`` (``POST /set_internal_state``) as it sends requests to be served: broadcast to
all tensor-parallel ranks and handled by ``Scheduler.process_input_requests`` of each in the same turn, before its batch
is chosen.  The answer holds a yes or no and no text, so that what is wrong with a command is said in the process that
answers HTTP (``managers/tokenizer_control_mixin.py`` ``set_internal_state``).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from specswitch import control
from specswitch.engine.hooks import InstanceHooks
from specswitch.errors import ControlError

TARGET = "sglang.srt.managers.tokenizer_manager.TokenizerManager.set_internal_state"
"""Runs in the process that answers HTTP."""


def attach(hooks: InstanceHooks, scheduler: Any, handle: Callable[[Mapping[str, Any]], bool | None]) -> None:
    """Ask ``handle`` first what to answer to a ``SetInternalStateReq``; None leaves it to SGLang."""
    from sglang.srt.managers.io_struct import SetInternalStateReq

    mapping = scheduler._request_dispatcher._mapping
    answer = functools.partial(_answer, handle, mapping[SetInternalStateReq])
    hooks.replace_item(mapping, SetInternalStateReq, answer)


def _answer(handle: Callable[[Mapping[str, Any]], bool | None], original: Callable[[Any], Any], request: Any) -> Any:
    from sglang.srt.managers.io_struct import SetInternalStateReqOutput

    updated = handle(request.server_args)
    if updated is None:
        return original(request)
    try:
        return SetInternalStateReqOutput(updated=updated)
    except TypeError:  # up to 0.5.12
        return SetInternalStateReqOutput(updated=updated, server_args={})


async def check_at_the_door(
    original: Callable[..., Awaitable[list[bool]]], tokenizer_manager: Any, request: Any, switches: bool
) -> list[bool]:
    """Refuse a bad command with a sentence, before it is sent.  Around :data:`TARGET`.

    Args:
        original: what is hooked.
        tokenizer_manager: its ``self``.
        request: SGLang's ``SetInternalStateReq``.
        switches: whether the schedulers were given a Switch.

    Raises:
        HTTPException: FastAPI's, status 400 for a command that says nothing, 409 where no scheduler follows it.
    """
    from fastapi import HTTPException

    try:
        command = control.parse(request.server_args)
    except ControlError as error:
        raise HTTPException(400, str(error)) from None
    if command is not None and not switches:
        raise HTTPException(409, f"This server serves without switching, so that {command.key} has no effect.")
    replies = await original(tokenizer_manager, request)
    if command is not None and not all(replies):
        raise HTTPException(409, f"The server did not follow {command.key}: its log says why.")
    return replies
