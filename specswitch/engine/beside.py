"""Writing draft KV beside the running batch, between its plain steps: by the draft alone where it can, else by both.

What every engine does alike; how a release runs such a forward is the engine's own ``write_draft_kv``.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from specswitch.engine import rehearsal
from specswitch.engine.base import Rehearsal
from specswitch.engine.draft_alone import FEW, DraftAlone, Range, begun_earlier, within
from specswitch.engine.draft_gap import set_gap
from specswitch.engine.draft_kv import is_worth, missing_of_worthy, missing_tokens, ranges_beside
from specswitch.engine.draft_stats import DraftStats
from specswitch.engine.look import is_left_out
from specswitch.engine.pause import PauseBudget, PauseWatch, Waits
from specswitch.engine.reentry import Reentry

_LEFT = 3
"""Missing tokens of a request that a forward beside the batch does not bring down: it ends before the last known token,
the one before that stays to be written with what followed it, and a plain step comes in between."""


class CatchUpBeside(abc.ABC):
    """The part of an engine that catches up before a return, and fills reused prefixes, without the running batch."""

    _scheduler: Any
    _has_draft_kv: bool

    def _prepare_beside(
        self, max_pause_ms: float, most_tokens: int, alone: DraftAlone | None, overlap: bool, ranks: int
    ) -> None:
        """
        Args:
            max_pause_ms: how long the running batch may wait for one forward.
            most_tokens: what one forward may hold.
            alone: None where the draft cannot write without the target.
            overlap: whether plain decode overlaps one step with the next.
            ranks: that have to write the same tokens in the same turn.
        """
        self._pause = PauseBudget(max_pause_ms, most_tokens)
        self._alone = alone
        self._wait = PauseWatch(overlap)
        self._ranks = ranks
        self.draft_stats = DraftStats()
        self._reentry = Reentry(self._wait)

    @abc.abstractmethod
    def write_draft_kv(self, ranges: Sequence[Range], alone: bool = False) -> None:
        """Write the draft's KV of ``(request, start, end)`` token ranges in place, beside the event loop.

        Args:
            alone: leave the target out; only for what :class:`DraftAlone` says the draft can write alone.
        """

    @abc.abstractmethod
    def _interrupted(self) -> None:
        """Something else comes before the next decode result."""

    @abc.abstractmethod
    def _after_launches(self) -> AbstractContextManager[None]:
        """Where forwards run beside the event loop: on a stream, after all that was launched on either."""

    def rehearse(self, report: Callable[[Rehearsal | Exception], None]) -> None:
        """Before the first turn run a forward of each size that a return may come to run.

        Nothing happens where there is no draft KV to write, or where a first forward has nothing to load.
        """
        if self._has_draft_kv and rehearsal.is_of_use(self._scheduler):
            # the draft of STANDALONE writes all by itself; where hidden states are kept the target has to run at times
            alone = self._alone is not None and self._alone.kept is None
            write = partial(self.write_draft_kv, alone=alone)
            rehearsal.before_first_turn(self._scheduler, write, self._pause.sizes, report)

    def _catch_up_alone(self, reqs: Sequence[Any]) -> bool:
        """Let the draft write by itself what it can, up to one pause; whether a plain step is to follow on that.

        It is if more is left than one pause allows, or if this was so much that the last forward would be too long a
        wait on top of it.
        """
        if self._alone is None:
            return False
        room = self._alone.pause.tokens_for(len(reqs))
        with self._after_launches():
            ranges, is_more = self._alone.what_is_missing(reqs, room)
        if ranges:
            self._write_alone(ranges, self._filled_up(ranges) if self._alone.kept is None else ranges)
            self._reentry.covered(_tokens(ranges))
            for req, _, end in ranges:
                set_gap(req, end)
        return (is_more or 2 * _tokens(ranges) > room) and self._alone.pause.keeps_up(len(reqs))

    def _is_more_than_a_pause(self, reqs: Sequence[Any]) -> bool:
        """Whether so much is missing that some of it is to be written beside the batch before the last forward.

        A part leaves the last tokens of each request, and where parts do not keep up the last forward takes it all.
        """
        left = _LEFT if self._alone is None else FEW + 1
        most = max(self._pause.last_tokens_for(len(reqs)), left * len(reqs))
        return self._pause.keeps_up(len(reqs)) and missing_of_worthy(reqs) > most

    def _catch_up_aside(self, reqs: Sequence[Any]) -> None:
        """Write draft KV for as many missing tokens as one pause allows, while the batch stays plain."""
        ranges = self._ranges_beside(reqs, self._pause.tokens_for(len(reqs)))
        if not ranges:
            return
        self.draft_stats.pause(_tokens(ranges), self._write(self._filled_up(ranges), self._pause))
        self._reentry.covered(_tokens(ranges) - len(ranges))
        for req, _, end in ranges:
            # the last position was written with the token that the target sampled, not with the one that followed
            set_gap(req, end - 1)

    def _filled_up(self, ranges: Sequence[Range]) -> Sequence[Range]:
        """The ranges of a forward, begun earlier if they can so that it covers as many tokens as one rehearsed."""
        tokens = _tokens(ranges)
        return begun_earlier(ranges, self._pause.filled_up(tokens) - tokens)

    def _note_caught_up(self, reqs: Sequence[Any], catch_up: bool, tokens: int) -> None:
        """The last forward of a return covers ``tokens`` missing tokens; nothing is caught up by a cold one."""
        skipped = not_worth_it = left_out = 0
        for req in reqs:
            if catch_up and is_worth(req):
                set_gap(req, None)
            elif is_left_out(req):
                left_out += 1
            else:
                skipped += missing_tokens(req)
                not_worth_it += catch_up
        stats = self.draft_stats
        stats.tokens_caught_up += tokens
        stats.tokens_skipped += skipped
        stats.requests_not_worth_it += not_worth_it
        stats.requests_left_out += left_out
        stats.tokens_missed += self._reentry.caught_up(tokens, skipped, not_worth_it, left_out)

    @contextmanager
    def _timed_return(self) -> Iterator[None]:
        """In here the last forward of a return is launched."""
        began = time.perf_counter()
        yield
        self.draft_stats.seconds_catching_up += time.perf_counter() - began

    def _fill_alone(
        self, reqs: Sequence[Any], gaps: Sequence[int | None], prefix_lens: Sequence[int]
    ) -> list[int | None]:
        """Let the draft write by itself what it can of the gaps in cached prefixes, up to one pause; returns what is
        left of them."""
        prefixes = zip(reqs, gaps, prefix_lens, strict=True)
        ranges = [(req, gap, prefix) for req, gap, prefix in prefixes if gap is not None]
        if self._alone is None or not ranges:
            return list(gaps)
        with self._after_launches():
            written = within(self._alone.leading(ranges), self._alone.pause.tokens_for(len(reqs)))
        if written:
            self._write_alone(written, written)
            self.draft_stats.prefix_tokens_filled += _tokens(written)
        ends = {id(req): end for req, _, end in written}
        after = [ends.get(id(req), gap) for req, gap in zip(reqs, gaps, strict=True)]
        return [None if gap == prefix else gap for gap, prefix in zip(after, prefix_lens, strict=True)]

    def _target_aside(self, ranges: Sequence[Range], slots: torch.Tensor, alone: bool) -> AbstractContextManager[None]:
        """What becomes of the target in an extend over ``ranges``, at ``slots``, beside the running batch."""
        if self._alone is None:
            return nullcontext()
        return self._alone.without_target(ranges, slots) if alone else self._alone.over_known_tokens()

    def _draft_kv_status(self) -> dict[str, Any]:
        """JSON-able state for ``/server_info``."""
        status = {**self.draft_stats.as_dict(), "reentry": self._reentry.as_dict()}
        if self._alone is not None and self._alone.kept is not None:
            status["kept_hidden_states"] = self._alone.kept.as_dict()
        return status

    def _ranges_beside(self, reqs: Sequence[Any], room: int) -> list[Range]:
        if self._alone is None:
            return ranges_beside(reqs, room)
        with self._after_launches():
            ranges = self._alone.short_of_kept(ranges_beside(reqs, sum(map(missing_tokens, reqs))))
        return [reach for reach in within(ranges, room) if reach[2] - reach[1] > 1]

    def _write_alone(self, missing: Sequence[Range], ranges: Sequence[Range]) -> None:
        """Let the draft write ``ranges`` by itself, in which it has missed ``missing``."""
        assert self._alone is not None
        milliseconds = self._write(ranges, self._alone.pause, alone=True)
        self.draft_stats.pause_alone(_tokens(missing), milliseconds)

    def _write(self, ranges: Sequence[Range], budget: PauseBudget, **how: bool) -> float:
        """:meth:`write_draft_kv`; returns the milliseconds that the launch took."""
        self._interrupted()
        self._wait.wrote(budget, _tokens(ranges))
        began = time.perf_counter()
        self.write_draft_kv(ranges, **how)
        return (time.perf_counter() - began) * 1e3

    def _has_next_token(self) -> None:
        """The running batch has: learn from how long it waited for that."""
        waited = self._wait.token()
        if waited is None:
            return
        budget, tokens, milliseconds = waited
        budget.waited(tokens, milliseconds)
        if self._ranks == 1:
            budget.in_force = budget.measured

    def _has_last_token(self) -> None:
        """The one that the last forward of a return put out, if there was a return."""
        self._wait.token()
        self._wait.end()

    def waits(self) -> tuple[tuple[float, float, int], ...]:
        return tuple(budget.measured for budget in self._budgets)

    def use_waits(self, waits: tuple[tuple[float, float, int], ...]) -> None:
        for budget, measured in zip(self._budgets, waits, strict=True):
            budget.in_force = Waits(*measured)

    @property
    def _budgets(self) -> list[PauseBudget]:
        return [self._pause] if self._alone is None else [self._pause, self._alone.pause]


def _tokens(ranges: Sequence[Range]) -> int:
    return sum(end - start for _, start, end in ranges)
