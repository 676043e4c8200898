"""The real SGLang Scheduler in this process, stepped by hand.

No part of SGLang's turn is rewritten: ``Scheduler.run_event_loop`` itself runs, in a thread of its own, and
hands control back whenever it polls for requests.  One :meth:`InProcessScheduler.step` is therefore
exactly one turn of ``event_loop_normal`` or ``event_loop_overlap``, plugins and their hooks included.
The sockets to the tokenizer side are replaced by queues, so requests arrive at the turn one chooses.

Never do two threads run at once.  One scheduler may live at a time, because SGLang keeps its
arguments and process groups in globals; after :meth:`~InProcessScheduler.close` another can be built.
"""

from __future__ import annotations

import argparse
import contextvars
import gc
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specswitch.cpu_engine import environment
from specswitch.cpu_engine.lines import Line, line_of
from specswitch.cpu_engine.releases import DEFAULT_MODELS, ArgumentValue, Release, as_flags
from specswitch.cpu_engine.server import free_port


@dataclass(slots=True)
class Output:
    """What the server would have sent to the client of one request so far."""

    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """One per output token when asked for, else empty."""
    logprob_ids: list[int] = field(default_factory=list)
    """The token each logprob belongs to."""
    hidden_states: list[Any] = field(default_factory=list)
    """When asked for: those of the prompt (or its part that was not cached), then one entry per decode step."""
    finish_reason: dict[str, Any] | None = None
    """SGLang's finish reason, for example ``{"type": "length", "length": 32}``; None while unfinished."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of the event loop launched."""

    forward_mode: str | None
    """``EXTEND``, ``DECODE``, ...; None when nothing was launched."""
    batch_size: int
    speculative: bool
    """Whether the batch went through the speculative worker's own path."""


class InProcessScheduler:
    """A Scheduler of the installed SGLang release, on the CPU, with SGLang's own checks after every turn.

    ``mode`` is a name of the release's table (:mod:`specswitch.cpu_engine.releases`), ``overlap`` chooses where the
    mode runs both ways.  Further keyword arguments are any ``ServerArgs`` fields (``decode_log_interval=5``), and
    ``flags`` are handed to SGLang's argument parser as they are (``["--enable-specswitch"]``).  With ``checks`` False
    the pool is checked when idle alone.

    Raises ``ValueError`` for a mode the release does not have and ``RuntimeError`` when another scheduler is open or
    torch was imported before the CPU environment was set up.
    """

    _open: InProcessScheduler | None = None
    _frozen = False

    def __init__(
        self,
        mode: str,
        models: Path | str = DEFAULT_MODELS,
        *,
        overlap: bool | None = None,
        page_size: int = 1,
        flags: Sequence[str] = (),
        checks: bool = True,
        **server_args: ArgumentValue | None,
    ) -> None:
        if InProcessScheduler._open is not None:
            raise RuntimeError("another InProcessScheduler is open in this process; close it first")
        self.release: Release = environment.activate(strict=True)
        self.mode = self.release.mode(mode)
        self.checks = checks
        arguments = self.release.server_arguments(mode, Path(models), overlap=overlap, page_size=page_size)
        # 0.5.23 draws one from the seeded dice, so that two processes that start at the same time draw the same
        arguments["nccl_port"] = free_port()
        arguments.update({name: value for name, value in server_args.items() if value is not None})
        self._line: Line = line_of(self.release)
        self.server_args: Any = _parse([*as_flags(arguments), *flags])
        InProcessScheduler._open = self
        try:
            _let_watchdogs_sleep()
            self.scheduler: Any = self._line.build(self.server_args)
            self._loop = _TurnByTurn(self.scheduler.run_event_loop)
            self._requests = _RequestSocket(self._loop.pause)
            self._outputs = _OutputSocket()
            self._real_sockets = self._line.replace_sockets(
                self.scheduler, self._requests, _SilentSocket(), self._outputs
            )
            self._loop.resume()
        except BaseException:
            self._release_globals()
            raise
        self.turns = 0
        self.total_slots: int = self.scheduler.max_total_num_tokens
        """KV slots of the pool."""

    def __enter__(self) -> InProcessScheduler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def overlap(self) -> bool:
        """Whether the overlap loop runs."""
        return bool(self.scheduler.enable_overlap)

    @property
    def worker(self) -> str:
        """Class name of the worker that decode batches go to."""
        draft = self.scheduler.draft_worker
        return type(self.scheduler.tp_worker if draft is None else draft).__name__

    def add(
        self,
        rid: str,
        input_ids: Sequence[int],
        max_new_tokens: int,
        *,
        return_logprob: bool = False,
        logprob_start_len: int = -1,
        return_hidden_states: bool = False,
        stream: bool = False,
        ignore_eos: bool = True,
        temperature: float = 0.0,
        **sampling: Any,
    ) -> None:
        """Let a request arrive at the next turn.

        ``sampling`` are fields of ``SamplingParams``: ``stop_token_ids``, ``frequency_penalty``, ``json_schema``...
        Greedy unless said otherwise, and of the full length: SGLang's ``ignore_eos`` is blind to stop tokens, too.
        """
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        if rid in self._outputs.by_rid:
            raise ValueError(f"a request {rid!r} was added before; choose another rid")
        params = SamplingParams(
            max_new_tokens=max_new_tokens, temperature=temperature, ignore_eos=ignore_eos, **sampling
        )
        params.normalize(self.scheduler.tokenizer)
        params.verify(self.scheduler.model_config.vocab_size)
        request = TokenizedGenerateReqInput(
            rid=rid,
            input_text="",
            input_ids=self._line.input_ids(input_ids),
            input_embeds=None,
            token_type_ids=None,
            mm_inputs=None,
            sampling_params=params,
            return_logprob=return_logprob,
            logprob_start_len=logprob_start_len,
            top_logprobs_num=0,
            token_ids_logprob=None,
            stream=stream,
            return_hidden_states=return_hidden_states,
        )
        self._outputs.by_rid[rid] = Output()
        self._requests.pending.append(request)

    def abort(self, rid: str) -> None:
        """Let the client of ``rid`` go away at the next turn."""
        from sglang.srt.managers.io_struct import AbortReq

        self._requests.pending.append(AbortReq(rid=rid))

    def pause_retract(self) -> None:
        """Retract every running request now, as ``/pause_generation`` with mode ``retract`` does, and resume with
        the next turn."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        self._requests.pending.append(PauseGenerationReqInput(mode="retract"))
        self._resume()
        self._requests.pending.append(ContinueGenerationReqInput())

    def step(self) -> Turn:
        """One turn of SGLang's event loop; raises whatever the scheduler raised, leaks found by its checks included.

        After an exception the scheduler is dead, as its process would be.
        """
        self._resume()
        self.turns += 1
        if self.checks:
            self.check()
        batch = self.scheduler.last_batch
        if batch is None or not batch.reqs:
            return Turn(None, 0, False)
        speculative = batch.spec_algorithm is not None and not batch.spec_algorithm.is_none()
        return Turn(batch.forward_mode.name, len(batch.reqs), speculative)

    def run_until_idle(self, max_turns: int = 5000) -> int:
        """Step until nothing is left to do and SGLang's idle checks have passed; returns the turns taken.

        Raises ``TimeoutError`` after ``max_turns``, and ``AssertionError`` when slots are missing at the end.
        """
        start = self.turns
        while True:
            if self.turns - start >= max_turns:
                raise TimeoutError(f"requests are still unfinished after {max_turns} turns of the scheduler")
            turn = self.step()
            if turn.forward_mode is None:
                if self.idle:
                    break
                # a grammar is being compiled, or a hook holds decode back
                time.sleep(0.001)
        self.step()
        assert self.free_slots() == self.total_slots, f"{self.total_slots - self.free_slots()} KV slots are lost"
        return self.turns - start

    @property
    def idle(self) -> bool:
        """SGLang's own word for it (``Scheduler.is_fully_idle``), and nothing about to arrive."""
        return not self._requests.pending and bool(self.scheduler.is_fully_idle())

    def outputs(self) -> dict[str, Output]:
        """What each request's client has received so far."""
        return self._outputs.by_rid

    def output_ids(self) -> dict[str, list[int]]:
        """The output tokens each request's client has received so far."""
        return {rid: output.output_ids for rid, output in self._outputs.by_rid.items()}

    def check(self) -> None:
        """SGLang's pool check while busy, at every topk and also in a turn that launched nothing; raises
        ``AssertionError`` with SGLang's own account of the pool.  The idle checks are the event loop's own."""
        self._line.check_busy(self.scheduler)

    def free_slots(self) -> int:
        """KV slots that are free or hold nothing but a reusable prefix."""
        return int(
            self.scheduler.token_to_kv_pool_allocator.available_size() + self.scheduler.tree_cache.evictable_size()
        )

    def request(self, rid: str) -> Any:
        """SGLang's ``Req`` of that rid, wherever it is now; ``KeyError`` when it has finished or never arrived."""
        scheduler = self.scheduler
        for batch in (scheduler.running_batch, scheduler.last_batch):
            for req in batch.reqs if batch is not None else ():
                if req.rid == rid:
                    return req
        for req in scheduler.waiting_queue:
            if req.rid == rid:
                return req
        raise KeyError(rid)

    def close(self) -> None:
        """Unwind the event loop and free what SGLang keeps in globals."""
        if InProcessScheduler._open is not self:
            return
        self._loop.close()
        for socket in self._real_sockets:
            if socket is not None:
                socket.close(linger=0)
        self._release_globals()

    def _resume(self) -> None:
        if self._loop.ended:
            raise RuntimeError("the scheduler has ended (an exception in an earlier turn, or close()); build a new one")
        self._loop.resume()

    def _release_globals(self) -> None:
        from sglang.srt.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

        InProcessScheduler._open = None
        destroy_model_parallel()
        destroy_distributed_environment()
        self.scheduler = None
        gc.collect()
        if not InProcessScheduler._frozen:
            InProcessScheduler._frozen = True
            # what is left are modules, a million objects that every later collection, SGLang's own too, would visit
            gc.freeze()


def _let_watchdogs_sleep() -> None:
    """SGLang's watchdog would end the parent process (here: of the tests) when the scheduler, closed with a batch or
    waiting for its next step, has not moved for a while; and its thread, which never ends, would keep each closed
    scheduler alive, process groups and their polling threads included (utils/watchdog.py)."""
    from sglang.srt.utils.watchdog import WatchdogRaw

    WatchdogRaw._watchdog_thread = lambda self: None


class _Closed(BaseException):
    """Unwinds a function that is not wanted any more; nothing in SGLang catches it."""


class _TurnByTurn:
    """A function that runs in a thread of its own, and only while the caller of :meth:`resume` waits.

    A thread and no greenlet, because torch walks the C stack down to its first frame when it raises.
    """

    def __init__(self, function: Callable[[], object]) -> None:
        self.ended = False
        self._may_run, self._stands_still = threading.Semaphore(0), threading.Semaphore(0)
        self._closing = False
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run, function), name="scheduler", daemon=True)

    def resume(self) -> None:
        """Let it run until it pauses or ends; raises what it raised."""
        if self._thread.ident is None:
            self._thread.start()
        self._may_run.release()
        self._stands_still.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pause(self) -> None:
        """To be called by the function: stand still until resumed."""
        self._stands_still.release()
        self._may_run.acquire()
        if self._closing:
            raise _Closed

    def close(self) -> None:
        """End the function where it stands, unless it has ended or never started."""
        if self._thread.ident is not None:
            self._closing = True
            self._may_run.release()
            self._thread.join()

    def _run(self, function: Callable[[], object]) -> None:
        self._may_run.acquire()
        try:
            function()
        except _Closed:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self.ended = True
            self._stands_still.release()


class _RequestSocket:
    """Stands for the socket from the tokenizer side; a poll after an empty one marks the turn's end."""

    def __init__(self, end_turn: Callable[[], None]) -> None:
        self.pending: deque[Any] = deque()
        self._came_up_empty = True
        self._end_turn = end_turn

    def recv_pyobj(self, flags: int = 0) -> Any:
        """The next request; hands control to the driver first when a turn has ended; ``zmq.Again`` when empty."""
        import zmq

        if self._came_up_empty:
            self._came_up_empty = False
            self._end_turn()
        if self.pending:
            return self.pending.popleft()
        self._came_up_empty = True
        raise zmq.Again

    def recv(self, flags: int = 0) -> bytes:
        """As :meth:`recv_pyobj`, in the encoding of 0.5.17 and later."""
        from sglang.srt.managers.io_struct import msgpack_encode

        request = self.recv_pyobj(flags)
        if hasattr(request, "wrap_pickle_fields"):
            request.wrap_pickle_fields()
        return msgpack_encode(request)


class _SilentSocket:
    """Stands for the RPC socket: nothing ever arrives."""

    def recv_pyobj(self, flags: int = 0) -> Any:
        import zmq

        raise zmq.Again

    recv = recv_pyobj


class _OutputSocket:
    """Stands for the sockets towards tokenizer and detokenizer; collects what each client would get."""

    def __init__(self) -> None:
        self.by_rid: dict[str, Output] = {}

    def send(self, data: bytes, flags: int = 0) -> None:
        """A message in the encoding of 0.5.17 and later."""
        from sglang.srt.managers.io_struct import msgpack_decode

        self.send_pyobj(msgpack_decode(data))

    def send_pyobj(self, message: Any, flags: int = 0, protocol: int = -1) -> None:
        """``BatchTokenIDOutput`` extends the outputs, ``AbortReq`` ends what never ran; the rest is control."""
        kind = type(message).__name__
        if kind == "AbortReq":
            output = self.by_rid[message.rid]
            output.finish_reason = dict(message.finished_reason or {"type": "abort"})
        elif kind == "BatchTokenIDOutput":
            for i, rid in enumerate(message.rids):
                output = self.by_rid[rid]
                output.output_ids.extend(message.output_ids[i])
                if message.output_token_logprobs_val:
                    output.logprobs.extend(message.output_token_logprobs_val[i])
                    output.logprob_ids.extend(message.output_token_logprobs_idx[i])
                if message.output_hidden_states:
                    output.hidden_states = message.output_hidden_states[i]
                output.finish_reason = message.finished_reasons[i]


def _parse(flags: list[str]) -> Any:
    """``ServerArgs`` from launcher flags, after the plugins were loaded: what launch_server does before it starts
    processes (``sglang.srt.server_args.prepare_server_args``), but leaving Python's logging alone.

    SGLang loads plugins once per process, and a plugin may look at the command line then: it finds ``flags`` there.
    """
    from sglang.srt.plugins import load_plugins

    command_line, sys.argv = sys.argv, ["sglang.launch_server", *flags]
    try:
        load_plugins()
    finally:
        sys.argv = command_line
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang serve")
    ServerArgs.add_cli_args(parser)
    return ServerArgs.from_cli_args(parser.parse_args(flags))
