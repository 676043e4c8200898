"""What the engines of both release lines are alike in: what they count, and what they are asked for.

Relies on ``Scheduler.waiting_queue``, ``GenerationBatchResult.num_correct_drafts``, ``ScheduleBatch.filter_batch``, and
``batch_is_full``: without it, or with ``Scheduler.enable_priority_preemption``, ``Scheduler.get_new_batch_prefill``
looks for requests to admit (0.5.11 to 0.5.23).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specswitch.accept import AcceptMeter
from specswitch.config import SwitchConfig
from specswitch.engine.base import DraftKV, TurnListener
from specswitch.engine.beside import CatchUpBeside
from specswitch.engine.census import Census
from specswitch.engine.draft_kv import can_show, missing_tokens
from specswitch.engine.hooks import InstanceHooks, swapped
from specswitch.engine.look import Look
from specswitch.engine.readings import StepReadings
from specswitch.engine.return_room import ReturnRoom
from specswitch.signals import LoadSample, LocalReadings, Mode, SampleLook

_SPECULATIVE, _PLAIN, _NO_READINGS = Mode.SPECULATIVE, Mode.PLAIN, LocalReadings()


class CommonEngine(CatchUpBeside):
    """See :class:`specswitch.engine.base.Engine`."""

    _listener: TurnListener

    def _prepare(self, scheduler: Any, config: SwitchConfig) -> None:
        """
        Args:
            scheduler: SGLang's ``Scheduler``, fully constructed.
            config: what the operator decided.
        """
        from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

        self._scheduler = scheduler
        self._algorithm, self._none = scheduler.spec_algorithm, SpeculativeAlgorithm.NONE
        self._has_draft_kv = not self._algorithm.is_ngram()
        self._census = Census(scheduler, config.plain_for)
        self._return_room = ReturnRoom(scheduler)
        self._accept = AcceptMeter()
        self._readings = StepReadings() if config.policy == "goodput" else None
        self._hooks = InstanceHooks()
        self._plain = False
        """Whether the running batch is in plain form."""
        self._draining = False
        self._return_asked: DraftKV | None = None
        self._look: Look | None = None
        """From when a return is asked for that leaves requests out, until PLAIN is entered again."""

    # Engine

    def release(self) -> None:
        if self._plain or self._draining:
            raise RuntimeError("the hooks can only be taken out in speculative form")
        self._hooks.remove_all()

    def sample(self, mode: Mode, decode_step: int, steps_in_mode: int) -> LoadSample:
        census = self._census
        census.take()
        return LoadSample(
            mode,
            census.size,
            len(self._scheduler.waiting_queue),
            decode_step,
            steps_in_mode,
            self._accept.value,
            census.features,
            self,
            _NO_READINGS if self._readings is None else LocalReadings(self._readings.take()),
            self._look_so_far(),
        )

    def batch_version(self) -> int:
        return self._census.take()

    @property
    def context_tokens(self) -> int:
        """As results have been processed: under overlap one step late."""
        return self._census.context_tokens

    @property
    def missed_tokens(self) -> int:
        """See :class:`specswitch.signals.BatchTokens`."""
        return sum(map(missing_tokens, self._census.unfinished())) if self._plain and self._has_draft_kv else 0

    @property
    def missed_by_each(self) -> Sequence[int]:
        if not (self._plain and self._has_draft_kv):
            return ()
        return [missing_tokens(req) for req in self._able_to_show()]

    def start_drain(self) -> None:
        self._draining = True

    def cancel_drain(self) -> None:
        self._draining = False

    def request_return(self, draft_kv: DraftKV, sampled: int | None = None) -> None:
        self._return_asked = draft_kv
        if sampled is not None and draft_kv == "catch-up" and self._has_draft_kv:
            self._look = self._look_at(sampled)
        self._return_room.asked()
        self._wait.begin()

    def cancel_return(self) -> bool:
        if self._plain:
            self._return_asked = None
            self._wait.end()
            self.end_look()
        return self._plain

    def _look_at(self, sampled: int) -> Look | None:
        """At so many requests, those that have missed least; None where all that are worth it are no more than that."""
        able = self._able_to_show()
        if len(able) <= sampled:
            return None
        sample = able[:sampled]
        return Look(sample, [req for req in self._census.unfinished() if req not in sample])

    def _able_to_show(self) -> list[Any]:
        """Who can be brought back and has enough to generate for a look, those first that have missed least."""
        return sorted(filter(can_show, self._census.unfinished()), key=missing_tokens)

    def end_look(self) -> None:
        if self._look is not None:
            self._look.end()
            self._look = None

    def _look_so_far(self) -> SampleLook | None:
        if self._look is None or self._plain:
            return None
        shown = self._look.shown
        if shown is None:
            self.end_look()
        return shown

    # Counting

    def _count_step(self, batch: Any, result: Any) -> None:
        size = len(batch.reqs)
        mode, tokens = _PLAIN, size
        uncounted = uncounted_tokens = 0
        if batch.spec_algorithm is not self._none:
            mode, tokens = _SPECULATIVE, result.num_correct_drafts + size
            if self._look is not None:
                requests, shown = self._look.verified(batch.reqs)
                uncounted, uncounted_tokens = size - requests, tokens - shown
            self._accept.add(tokens - uncounted_tokens, size - uncounted)
            self._reentry.verified(tokens - uncounted_tokens, size - uncounted)
        elif self._return_asked is not None:
            self._has_next_token()
        if self._readings is not None:
            self._readings.decoded(mode, size, self._census.context_tokens, tokens, uncounted, uncounted_tokens)
        self._census.context_tokens += tokens
        self._listener.on_decode_step(mode)

    def _interrupted(self) -> None:
        if self._readings is not None:
            self._readings.interrupted()

    @staticmethod
    def _drop_finished(batch: Any) -> None:
        """``filter_batch`` as ``update_running_batch`` does it: a batch that shrank is full no longer."""
        before = batch.batch_size()
        batch.filter_batch()
        if batch.batch_size() < before:
            batch.batch_is_full = False

    @contextmanager
    def _no_prefill_before(self, batch: Any) -> Iterator[None]:
        """The running batch goes first; nor does a waiting request preempt one of it, for which SGLang would look in a
        full batch too."""
        batch.batch_is_full = True
        try:
            with swapped(self._scheduler, enable_priority_preemption=False):
                yield
        finally:
            batch.batch_is_full = False

    @contextmanager
    def _contained(self, doing: str) -> Iterator[None]:
        """What goes wrong in here is reported to the Switch and does not reach the scheduler."""
        try:
            yield
        except Exception as error:
            self._listener.on_fault(doing, error)
