"""Looks at the mode that does not run: what one may cost, when it is worth that, and when it has shown enough."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, sqrt
from statistics import fmean, stdev
from typing import NamedTuple

from specswitch.costs import SwitchCost, break_even_accept_length
from specswitch.policy.outlook import Outlook
from specswitch.policy.settings import GoodputSettings
from specswitch.signals import BatchTokens, Mode, SampleLook, StepReading


class _Scope(NamedTuple):
    """Whom a probe is to look at."""

    sampled: int | None
    """How many requests; None: all."""
    missed: int
    """Tokens that they have to catch up."""


_CONSIDERED_EVERY = 8
"""Turns; what was missed takes a look at every request."""
_IN_FLIGHT = 2
"""Verify steps that are launched by when the ones that a look needs have been read."""


class _Cost(NamedTuple):
    """Seconds that a probe costs."""

    decoding: float
    switching: float
    sampled: int | None = None
    """How many requests it catches up, None for all."""

    @property
    def total(self) -> float:
        return self.decoding + self.switching


@dataclass(slots=True)
class _Look:
    """What the verify steps of a stay in SPECULATIVE have shown since it began."""

    steps: int = 0
    tokens: int = 0
    requests: int = 0
    """Verified, over all steps."""
    means: list[float] = field(default_factory=list)
    """Accept length of each step of a look at a sample."""
    lost: float = 0.0
    """Seconds, over what PLAIN would have taken for the same tokens."""

    def add(self, step: StepReading, plain: float, speculative: float) -> None:
        requests, tokens = step.batch_size - step.uncounted, step.tokens - step.uncounted_tokens
        self.steps += 1
        self.tokens += tokens
        self.requests += requests
        if requests and step.uncounted:
            self.means.append(tokens / requests)
        self.lost += speculative - plain * step.tokens / step.batch_size


class Probes:
    """A probe is a stay of one dwell at most in the other mode.

    Its worst cost is paid for in advance, from ``probe_share`` of the decode time, and from a part of what speculation
    has gained over PLAIN: where it never gains, probes cost no more than that share.  One that is asked for, and comes
    to cost far more before it has begun, is given up.  What a probe of speculation has not lost of its worst cost is
    given back when the stay that it began ends, and what it has lost beyond is owed.
    """

    def __init__(self, settings: GoodputSettings, switching: SwitchCost, longest_accept_length: float) -> None:
        self._running = False
        self.break_even = 0.0
        """The accept length that the load has called for of late; 0 before any load."""
        self._settings = settings
        self._switching = switching
        self._longest_accept = longest_accept_length
        self._savings = 0.0
        """Seconds that probes may still cost."""
        self._wished: _Cost | None = None
        """At worst, of the probe wished for and not come yet."""
        self._not_considered = 0
        """Turns since it was last considered to wish for one."""
        self._may_cost = 0.0
        """Up to which the one not come yet is still wished for."""
        self._looked = _Look()
        self._owed: float | None = None
        """Seconds that were paid in advance for what the verify steps of the present stay lose, if a probe began it."""

    @property
    def running(self) -> bool:
        return self._running

    @property
    def wished_for(self) -> bool:
        """Whether one is wished for that has not come yet."""
        return self._wished is not None

    @property
    def sampled(self) -> int | None:
        """How many requests the probe wished for is to catch up, None for all or where none is wished for."""
        return None if self._wished is None else self._wished.sampled

    @property
    def has_begun_stay(self) -> bool:
        """Whether the present stay in SPECULATIVE is, or began as, a probe."""
        return self._owed is not None

    # What happens

    def decoded(self, seconds: float) -> None:
        """So much decode time has passed."""
        share = self._settings.probe_share
        self._save(share * seconds, share * self._settings.savings_seconds)

    def gained(self, seconds: float, outlook: Outlook) -> None:
        """So much of it would PLAIN have taken longer for the same tokens."""
        self._save(self._settings.reinvested * seconds, self._settings.probes_ahead * self._usual_cost(outlook))

    def called_for(self, outlook: Outlook, steps: int) -> None:
        """So many steps were decoded under a load like this."""
        needed = break_even_accept_length(outlook.plain, outlook.speculative)
        known = self.break_even or needed
        self.break_even = known + (needed - known) * min(1.0, steps / self._settings.load_memory_steps)

    def verified(self, step: StepReading, plain: float, speculative: float) -> None:
        """A verify step of a stay that a probe has begun was read; beside it what was predicted of it in both modes."""
        self._looked.add(step, plain, speculative)

    def entered(self, mode: Mode) -> None:
        """The mode has changed: to a probe, if one was wished for."""
        self._settle()
        self._running = self._wished is not None
        if self._wished is not None:
            self._savings -= self._wished.total
            if mode is Mode.SPECULATIVE:
                self._owed, self._looked = self._wished.decoding, _Look()
            self._wished = None

    def becomes_stay(self) -> None:
        """The one that is running has lasted a dwell."""
        self._running = False

    def forget(self) -> None:
        """None is wished for any more."""
        self._wished = None

    def _settle(self) -> None:
        """As a stay ends that a probe began.

        Not before, since a probe that found an accept length too high by chance goes on as a stay that loses.
        """
        if self._owed is not None and self._looked.steps:
            self._savings += min(self._owed, self._owed - self._looked.lost)
        self._owed = None

    def _save(self, seconds: float, upto: float) -> None:
        if self._savings < upto:
            self._savings = min(self._savings + seconds, upto)

    # What is asked

    def consider(self, outlook: Outlook, batch: BatchTokens, trust: float, overlooked: float) -> bool:
        """Wish for a probe if it is worth looking by expectation and can be paid; returns whether one is wished for.

        Doubt has grown evenly while the other mode was not seen, so half of that time's conceivable gain, times the
        doubt there is now, has been lost by expectation.  Should it have changed, the look costs nothing: the switch
        was due.

        Args:
            outlook: for the batch at hand.
            batch: what it has missed.
            trust: that the other mode is what it was.
            overlooked: seconds that it would have saved if it had been all that it may be.
        """
        if self._wished is not None:
            worst = self._worst_cost(outlook, self._scope(outlook, batch, self._wished.sampled))
            still = worst.total <= self._may_cost or outlook.other_over_here >= 1.0
            self._wished = worst if still else None
            return still
        self._not_considered += 1
        if self._not_considered < _CONSIDERED_EVERY:
            return False
        self._not_considered = 0
        worth = 0.5 * (1.0 - trust) * overlooked / trust if trust else inf
        if all(self._payable(outlook, _Scope(size, 0), worth) is None for size in self._sizes(outlook.size)):
            return False  # whatever was missed, which takes counting
        self._wished = self._payable(outlook, self._cheapest(outlook, batch), worth)
        if self._wished is None:
            return False
        self._may_cost = self._settings.probe_growth * self._wished.total
        return True

    def has_seen_enough(self) -> bool:
        """Whether the probe has found less than chance explains, were the accept length that of the break-even."""
        look = self._looked
        if look.steps < self._settings.least_look_steps or not look.requests:
            return False
        return self.break_even - look.tokens / look.requests > self._chance(look.requests / look.steps, look.steps)

    def has_seen_enough_of(self, look: SampleLook) -> bool:
        """Whether chance does not explain how far the sample's accept length lies from the break-even, above or below.

        By how the requests differ from each other, so that it does not matter how alike the steps of one are, and by
        how the steps do, for what requests have in common.
        """
        by_request, by_step = look.accept_lengths, self._looked.means
        if look.sampled < 2:
            return True  # nobody is left to show more
        if min(look.steps, len(by_step)) < self._settings.least_look_steps or min(len(by_request), len(by_step)) < 2:
            return False
        error = max(_standard_error(by_request), _standard_error(by_step))
        return abs(fmean(by_request) - self.break_even) > self._settings.certainty * error

    # Costs

    def _sizes(self, able: int) -> Iterator[int | None]:
        """Of the scopes that there may be, where so many requests can show something."""
        yield None
        yield from (size for size in self._settings.sample_sizes if 2 * size <= able)

    def _scope(self, outlook: Outlook, batch: BatchTokens, sampled: int | None) -> _Scope:
        if outlook.mode is not Mode.PLAIN:
            return _Scope(None, outlook.size * self._settings.dwell_steps)
        return _Scope(sampled, batch.missed_tokens if sampled is None else sum(batch.missed_by_each[:sampled]))

    def _cheapest(self, outlook: Outlook, batch: BatchTokens) -> _Scope:
        """All, or a sample if a look at that usually costs less than half."""
        whole = self._scope(outlook, batch, None)
        if outlook.mode is not Mode.PLAIN:
            return whole
        each = batch.missed_by_each
        scopes = [_Scope(size, sum(each[:size])) for size in self._sizes(len(each)) if size is not None]
        least = min(scopes, key=partial(self._usual, outlook), default=whole)
        return least if 2.0 * self._usual(outlook, least) < self._usual(outlook, whole) else whole

    def _payable(self, outlook: Outlook, scope: _Scope, worth: float) -> _Cost | None:
        worst = self._worst_cost(outlook, scope)
        if worst.total >= self._savings:
            return None
        # the step time of PLAIN does not change with the traffic, so that looks at it are for when nothing is lost
        usual = self._usual(outlook, scope) if outlook.mode is Mode.PLAIN else worst.total
        return worst if usual <= worth else None

    def _usual(self, outlook: Outlook, scope: _Scope) -> float:
        return self._cost(outlook, scope, outlook.accept).total

    def _worst_cost(self, outlook: Outlook, scope: _Scope) -> _Cost:
        """Of the accept lengths that there may be: of 1, at which every request still gets the token that it would have
        got from a plain step, or of the lowest one that takes a dwell to tell from the break-even."""
        lowest = self._cost(outlook, scope, 1.0)
        if outlook.mode is not Mode.PLAIN:
            return lowest
        margin = self._chance(scope.sampled or outlook.size, self._settings.dwell_steps)
        return max(lowest, self._cost(outlook, scope, max(1.0, self.break_even - margin)))

    def _cost(self, outlook: Outlook, scope: _Scope, accept: float) -> _Cost:
        """What a probe loses with an accept length of ``accept``, both switches included.

        In PLAIN, for a dwell, a step may take as much longer than predicted as a doubted one may take less.  Requests
        left out of a sample are taken to get no draft token accepted.
        """
        if outlook.mode is Mode.PLAIN:
            share = 1.0 if scope.sampled is None else scope.sampled / outlook.size
            put_out = 1.0 + (accept - 1.0) * share
            lost = self._look_steps(outlook.size, scope.sampled, accept) * (
                outlook.speculative - put_out * outlook.plain
            )
        else:
            step = outlook.plain * (1.0 + self._settings.step_time_doubt) - outlook.speculative / outlook.accept
            lost = self._settings.dwell_steps * step
        return _Cost(max(0.0, lost), self._switching.there_and_back(scope.missed), scope.sampled)

    def _usual_cost(self, outlook: Outlook) -> float:
        """What a probe of speculation will cost after a stay of four dwells in PLAIN."""
        steps = self._settings.dwell_steps
        return steps * outlook.speculative + self._switching.there_and_back(4 * steps * outlook.size)

    def _look_steps(self, size: int, sampled: int | None, accept: float) -> float:
        """Verify steps of a probe that finds the accept length to be ``accept``."""
        settings = self._settings
        short = self.break_even - accept
        if sampled is not None:
            short = abs(short)
        if short <= 0.0:
            return settings.dwell_steps + _IN_FLIGHT
        looks = (self._chance(sampled or size, 1) / short) ** 2
        if sampled is None:
            looks *= settings.alike_steps if looks > 1.0 else 0.0
        return min(max(looks, settings.least_look_steps), settings.dwell_steps) + _IN_FLIGHT

    def _chance(self, size: float, steps: int) -> float:
        """How far a mean over so many verify steps of ``size`` requests may lie below the break-even by chance.

        A request's tokens are taken to vary as widely as they can: between 1 and all that is drafted.
        """
        settings, mean = self._settings, self.break_even
        variance = max(0.0, (mean - 1.0) * (self._longest_accept - mean))
        looks = size * max(1.0, steps / settings.alike_steps)
        return settings.certainty * float((variance / looks) ** 0.5)


def _standard_error(values: Sequence[float]) -> float:
    """Of their mean; a little more for how few they are, as two of Student's t are more than two of the normal law."""
    few = 1.0 + 1.25 / (len(values) - 1)
    return few * stdev(values) / sqrt(len(values))
