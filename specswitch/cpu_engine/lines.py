"""Where the supported SGLang releases differ for :mod:`specswitch.cpu_engine.inprocess`.

One class per way in which a Scheduler is built, reached and checked; :func:`line_of` picks it.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Protocol

from specswitch.cpu_engine.releases import Release


class Line(Protocol):
    """What the in-process scheduler asks of a release line."""

    def build(self, server_args: Any) -> Any:
        """The release's ``Scheduler`` for ``server_args``, as ``run_scheduler_process`` builds it."""

    def replace_sockets(self, scheduler: Any, tokenizer: Any, rpc: Any, output: Any) -> list[Any]:
        """Put ``tokenizer`` and ``rpc`` in the place of the sockets it receives from, ``output`` in the place of
        those it sends to; returns the real ones."""

    def input_ids(self, input_ids: Sequence[int]) -> Any:
        """A prompt in the form ``TokenizedGenerateReqInput`` wants."""

    def check_busy(self, scheduler: Any) -> None:
        """SGLang's pool check while requests run, also where SGLang itself leaves it out; ``AssertionError``."""


def line_of(release: Release) -> Line:
    """The line that ``release`` belongs to."""
    lines: dict[str, type[Line]] = {"0.5.12.post1": Line0512, "0.5.17": Line0517, "0.5.23": Line0523}
    return lines[release.version]()


class Line0512:
    """0.5.12.post1: channels and checks are the Scheduler's own (managers/scheduler.py ``init_ipc_channels``,
    managers/scheduler_runtime_checker_mixin.py)."""

    def build(self, server_args: Any) -> Any:
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.server_args import PortArgs, set_global_server_args_for_scheduler

        set_global_server_args_for_scheduler(server_args)
        return Scheduler(
            server_args,
            PortArgs.init_new(server_args),
            gpu_id=0,
            tp_rank=0,
            moe_ep_rank=0,
            pp_rank=0,
            attn_cp_rank=0,
            moe_dp_rank=0,
            dp_rank=None,
        )

    def replace_sockets(self, scheduler: Any, tokenizer: Any, rpc: Any, output: Any) -> list[Any]:
        real = [scheduler.recv_from_tokenizer, scheduler.recv_from_rpc]
        scheduler.recv_from_tokenizer, scheduler.recv_from_rpc = tokenizer, rpc
        return real + _replace_output(scheduler, output)

    def input_ids(self, input_ids: Sequence[int]) -> Any:
        return list(input_ids)

    def check_busy(self, scheduler: Any) -> None:
        """``self_check_during_busy`` (:424) returns at once for topk > 1, and without a last batch (a turn that
        launched nothing while requests run), so its parts are called."""
        last = scheduler.last_batch
        scheduler.last_batch = scheduler.running_batch if last is None else last
        try:
            if not scheduler.last_batch.reqs:
                return
            uncached, _ = scheduler._get_total_uncached_sizes()
            leak, message = scheduler._check_full_pool(scheduler.get_pool_stats(), uncached=uncached)
        finally:
            scheduler.last_batch = last
        assert not leak, f"Full Pool Mem Leak Detected! {message}"


class Line0517:
    """0.5.17: channels, receiver and checks are objects of managers/scheduler_components."""

    def build(self, server_args: Any) -> Any:
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.runtime_context import publish
        from sglang.srt.server_args import PortArgs

        publish(server_args, role="scheduler")
        return Scheduler(
            server_args,
            PortArgs.init_new(server_args),
            gpu_id=0,
            tp_rank=0,
            moe_ep_rank=0,
            pp_rank=0,
            attn_cp_rank=0,
            moe_dp_rank=0,
            dp_rank=None,
        )

    def replace_sockets(self, scheduler: Any, tokenizer: Any, rpc: Any, output: Any) -> list[Any]:
        receiver = scheduler.request_receiver
        real = [receiver.recv_from_tokenizer, receiver.recv_from_rpc]
        # a frozen dataclass that keeps the sockets it was built with
        object.__setattr__(receiver, "recv_from_tokenizer", tokenizer)
        object.__setattr__(receiver, "recv_from_rpc", rpc)
        return real + _replace_output(scheduler.ipc_channels, output)

    def input_ids(self, input_ids: Sequence[int]) -> Any:
        return array("q", input_ids)

    def check_busy(self, scheduler: Any) -> None:
        """``SchedulerInvariantChecker.self_check_during_busy``, the last thing in a turn, skips one that launched
        nothing and is left out while the engine is paused, so its parts are called then, on the running batch."""
        checker = scheduler.invariant_checker
        last = scheduler.last_batch
        if last is not None and not scheduler._engine_paused:
            return
        scheduler.last_batch = scheduler.running_batch if last is None else last
        try:
            if not scheduler.last_batch.reqs:
                return
            uncached, _ = checker._get_total_uncached_sizes()
            stats = checker.pool_stats_observer.get_pool_stats()
            leak, message = checker._check_full_pool(stats, uncached=uncached)
            checker._check_kv_page_invariants()
        finally:
            scheduler.last_batch = last
        assert not leak, f"Full Pool Mem Leak Detected! {message}"


class Line0523(Line0517):
    """0.5.23: as 0.5.17, but arguments are resolved by hand and ranks come from the published context."""

    def build(self, server_args: Any) -> Any:
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import PortArgs

        server_args.resolve_once()
        publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0))
        return Scheduler(server_args, PortArgs.init_new(server_args))


def _replace_output(owner: Any, output: Any) -> list[Any]:
    """Swap the socket inside the two ``SenderWrapper`` of ``owner``, whose bound methods others hold already."""
    senders = [owner.send_to_tokenizer, owner.send_to_detokenizer]
    real = [sender.socket for sender in senders]
    for sender in senders:
        sender.socket = output
    return real
