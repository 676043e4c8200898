"""The mode that puts out more tokens per second, by measured step times and the running accept length."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from specswitch.costs import StepTime, SwitchCost, advantage, break_even_accept_length, seconds_lost
from specswitch.policy.base import Wish
from specswitch.policy.unseen import Unseen
from specswitch.refine import AcceptEstimate, RefinedStepTime
from specswitch.signals import BatchTokens, LoadSample, Mode, StepReading

_NOTED = 0.1
"""Of the least that both switches cost: a loss that has come to so much may go on."""
_IN_FLIGHT = 2
"""Verify steps that are launched by when the ones that a look needs have been read."""


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """What bounds the policy's eagerness."""

    hysteresis: float = 0.005
    """The share by which the other mode's goodput must be higher before it counts for anything."""
    probe_share: float = 0.005
    """The share of decode time that probes may cost at worst; 0 never probes."""
    dwell_steps: int = 32
    """The least stay in a mode, as the surrounding Dwell keeps it."""
    accept_memory_steps: int = 2048
    """Decode steps after which a change of the accept length is expected, before any has been seen."""
    step_time_memory_steps: int = 16384
    """The same for the step time of PLAIN, which depends on no traffic."""
    step_time_doubt: float = 0.25
    """By how much PLAIN may be faster than calibrated once nothing is left of that trust."""
    read_step_time_doubt: float = 0.05
    """The same where PLAIN has been read at the batch size."""
    load_memory_steps: int = 512
    """Decode steps over which a load that goes up and down is averaged."""
    probe_gain: float = 0.02
    """The least advantage that a probe must make conceivable."""
    savings_seconds: float = 1800.0
    """Decode time whose share for probes may be saved up."""
    reinvested: float = 0.5
    """The share of what speculation has gained over PLAIN that may be spent on probes for it."""
    probes_ahead: float = 8.0
    """For how many probes that may be saved up."""
    least_look_steps: int = 3
    """Verify steps after which a probe may end."""
    alike_steps: float = 12.0
    """Verify steps of a request that are taken to say no more than one, since easy and hard passages are longer."""
    certainty: float = 2.0
    """Standard errors by which the accept length must be too low for a probe to end before its dwell."""
    probe_growth: float = 2.0
    """The growth of its worst cost at which a probe that has been asked for, and not come yet, is given up."""


class _Outlook(NamedTuple):
    """What both modes promise for the batch at hand."""

    mode: Mode
    other: Mode
    size: int
    """Decode batch size."""
    accept: float
    plain: float
    """Predicted seconds of a plain step."""
    speculative: float
    """Predicted seconds of a verify step."""

    here: float
    """Predicted seconds of a step in the present mode."""
    other_over_here: float
    """Goodput of the other mode over that of the present one."""

    def __str__(self) -> str:
        return (
            f"decode batch {self.size}, accept length {self.accept:.2f}: speculative"
            f" {self.accept * self.size / self.speculative:.0f} tokens/s, plain {self.size / self.plain:.0f}"
        )


class _ProbeCost(NamedTuple):
    """Seconds that a probe costs."""

    decoding: float
    switching: float

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
    smallest: float = inf
    """Of the batches."""
    lost: float = 0.0
    """Seconds, over what PLAIN would have taken for the same tokens."""

    def add(self, step: StepReading, plain: float, speculative: float) -> None:
        self.steps += 1
        self.tokens += step.tokens
        self.requests += step.batch_size
        self.smallest = min(self.smallest, step.batch_size)
        self.lost += speculative - plain * step.tokens / step.batch_size


class Goodput:
    """Wishes for the other mode once staying has cost as much as going there and back.

    Each turn adds up the seconds that the other mode would have saved, as far as its advantage exceeds the
    hysteresis; a turn at which it would have lost takes as much away again, down to zero.  A wish follows when the
    sum reaches the least that both switches would have cost at any moment since it left zero, the catch-up of what
    has been or would be missed included: the catch-up grows while one waits, and that is no reason to wait longer.
    A large advantage so counts at once, a small one after a while, and a load that hovers at the break-even never
    adds up.

    A server that has run empty chooses anew, since it can be in either mode for nothing: for one dwell from then on the
    drain alone has to be made good, and no dwell be kept.  But it has to have seen for a dwell what texts are like.

    The other mode is known from when it last ran, and trusted less with every step since.  When the gain that may
    have been overlooked reaches, by expectation, what a look costs, a probe is wished for: a stay of one dwell at most.
    Its worst cost is paid for in advance, from ``probe_share`` of the decode time, and from a part of what speculation
    has gained over PLAIN: where it never gains, probes cost no more than that share.  One that is asked for, and comes
    to cost far more before it has begun, is given up.

    A probe of speculation ends where it came from unless the accept length exceeds what the load has called for of
    late: it was made to learn that length, and says nothing about the load.  It ends as soon as chance cannot explain
    an accept length that low; so that there is no more than one switch per dwell all the same, it begins no sooner than
    two dwells after the last verify step.  What it has not lost of its worst cost is given back when the stay ends.

    Steers by ``sample.local.steps``, which differ between ranks: one rank decides for all
    (:mod:`specswitch.ranks`).  Without such readings the calibrated step times and ``sample.accept_length`` hold.
    """

    def __init__(
        self,
        plain: StepTime,
        speculative: StepTime,
        switching: SwitchCost,
        accept_length: float,
        longest_accept_length: float,
        settings: GoodputSettings | None = None,
    ) -> None:
        self.plain = RefinedStepTime(plain)
        self.speculative = RefinedStepTime(speculative)
        self.accept = AcceptEstimate(accept_length, longest_accept_length)
        self._best_accept = accept_length
        self._longest_accept = longest_accept_length
        self._verify_steps = 0
        """Read so far: until the first one the sample's own accept length holds, if it has one."""
        self._switching = switching
        self._settings = settings or GoodputSettings()
        self._hurdle = 1.0 + self._settings.hysteresis
        self._mode = Mode.SPECULATIVE
        self._step = 0
        self._lost = 0.0
        """Seconds that the other mode would have saved."""
        self._due = inf
        """The sum of them at which the mode is to change."""
        self._anew_until = 0
        """The decode step up to which a mode is chosen as by a server that has run empty."""
        self._overlooked = 0.0
        """Seconds that the other mode would have saved if it had been all that it may be."""
        self._break_even: float | None = None
        """The accept length that the load has called for of late."""
        self._savings = 0.0
        """Seconds that probes may still cost."""
        self._unseen = {
            Mode.SPECULATIVE: Unseen(self._settings.accept_memory_steps),
            Mode.PLAIN: Unseen(self._settings.step_time_memory_steps),
        }
        self._probe: _ProbeCost | None = None
        """At worst, of the probe wished for and not come yet."""
        self._probe_may_cost = 0.0
        """Up to which the one not come yet is still wished for."""
        self._probing = False
        self._looked = _Look()
        self._owed: float | None = None
        """Seconds that were paid in advance for what the verify steps of the present stay lose, if a probe began it."""
        self._asked = False
        """Whether a return has been wished for and not come yet."""

    def __call__(self, sample: LoadSample) -> Wish | None:
        mode = sample.mode
        for step in sample.local.steps:
            if step.mode is mode is not self._mode:
                self._enter(mode)
            self._learn(step)
        if mode is Mode.DRAINING:
            return None
        steps = sample.decode_step - self._step
        self._step = sample.decode_step
        if mode is not self._mode:
            self._enter(mode)
        if self._probing and sample.steps_in_mode > self._settings.dwell_steps:
            self._probing = False
            if mode is Mode.SPECULATIVE:
                self._unseen[mode].changed()
        if not sample.decode_batch_size:
            return self._idle()
        outlook = self._outlook(sample)
        if steps:
            self._count(outlook, steps)
        return self._decide(outlook, sample.batch)

    def _outlook(self, sample: LoadSample) -> _Outlook:
        size, context = sample.decode_batch_size, sample.batch.context_tokens
        accept = self.accept.value
        if not self._verify_steps and sample.accept_length is not None:
            accept = sample.accept_length
        plain, speculative = self.plain.seconds(size, context), self.speculative.seconds(size, context)
        gain = advantage(accept, plain, speculative)
        if sample.mode is Mode.PLAIN:
            return _Outlook(sample.mode, Mode.SPECULATIVE, size, accept, plain, speculative, plain, gain)
        return _Outlook(sample.mode, Mode.PLAIN, size, accept, plain, speculative, speculative, 1.0 / gain)

    def _decide(self, outlook: _Outlook, batch: BatchTokens) -> Wish | None:
        settings = self._settings
        plain = outlook.mode is Mode.PLAIN
        ratio = outlook.other_over_here
        at_once = self._chooses_anew()
        if self._probing:
            # PLAIN was looked at for its step time: no reason to stay because of an accept length grown old there.
            go = ratio > 1.0 - settings.probe_gain if plain else outlook.accept < (self._break_even or 0.0)
            at_once = not plain and self._has_seen_enough()
        else:
            go = ratio > self._hurdle and self._is_due(outlook, batch)
            self._probe = None if go else self._worth_a_probe(outlook, batch)
        if go:
            self._asked = plain
            return Wish(outlook.other, str(outlook), at_once)
        if self._probe is not None:
            self._asked = plain
            return Wish(outlook.other, f"probe after {self._unseen[outlook.other].steps} steps; {outlook}")
        if self._asked and ratio < 1.0:
            self._asked = False
            return Wish(outlook.mode, str(outlook))
        return None

    def _is_due(self, outlook: _Outlook, batch: BatchTokens) -> bool:
        """Whether the other mode would have saved what both switches cost, now or at any moment since it began to.

        What was missed is counted when that can decide, and once as soon as the loss is worth noting.
        """
        if self._chooses_anew():
            return self._lost >= self._switching.drain
        least = self._switching.there_and_back(0)
        if self._lost < _NOTED * least:
            return False
        if self._due == inf:
            self._due = self._lost + self._there_and_back(outlook, batch)
        if self._lost < least:
            return False
        if self._lost < self._due:
            cost = self._there_and_back(outlook, batch)
            self._due = min(self._due, self._lost + cost)
            return self._lost >= cost
        return True

    def _there_and_back(self, outlook: _Outlook, batch: BatchTokens) -> float:
        return self._switching.there_and_back(self._missed(outlook, batch))

    def _idle(self) -> Wish | None:
        """With no request there is nothing to drain or to catch up: be where the first one will be served best."""
        self._probe = None  # it would be for nothing, and for another load
        knows = self._knows_texts() and not self._probing
        if knows:
            self._anew_until = self._step + self._settings.dwell_steps
        self._lost, self._due = 0.0, inf
        gain = advantage(self.accept.value, self.plain.seconds(1, 0), self.speculative.seconds(1, 0))
        better, by = (Mode.SPECULATIVE, gain) if self._mode is Mode.PLAIN else (Mode.PLAIN, 1.0 / gain)
        return Wish(better, "idle, for the first request", knows) if by > self._hurdle else None

    def _knows_texts(self) -> bool:
        """Whether the accept length has been seen for a dwell, and is no longer the one to start from."""
        return self._verify_steps >= self._settings.dwell_steps

    def _chooses_anew(self) -> bool:
        return self._step < self._anew_until and not self._probing

    # What a turn teaches

    def _learn(self, step: StepReading) -> None:
        size = step.batch_size
        speculative = step.mode is Mode.SPECULATIVE
        if speculative and size > 0:
            self._verify_steps += 1
            self.accept.add(step.tokens, size)
            self._best_accept = min(max(self._best_accept, self.accept.value), self._longest_accept)
            if self._owed is not None and self._mode is step.mode:
                context = step.context_tokens
                self._looked.add(step, self.plain.seconds(size, context), self.speculative.seconds(size, context))
        if step.seconds is not None:
            curve = self.speculative if speculative else self.plain
            curve.add(size, step.context_tokens, step.seconds)

    def _settle_probe(self) -> None:
        """As a stay ends that a probe began: what it has not lost of what was paid in advance goes back.

        Not before, since a probe that found an accept length too high by chance goes on as a stay that loses.
        """
        if self._owed is not None and self._looked.steps:
            self._savings += min(self._owed, self._owed - self._looked.lost)
        self._owed = None

    def _enter(self, mode: Mode) -> None:
        self._settle_probe()
        self._mode = mode
        self._lost = self._overlooked = 0.0
        self._due = inf
        self._asked = False
        self._probing = self._probe is not None
        if self._probe is not None:
            self._savings -= self._probe.total
            if mode is Mode.SPECULATIVE:
                self._owed, self._looked = self._probe.decoding, _Look()
            self._probe = None
        if mode is Mode.SPECULATIVE:
            self.accept.doubt(self._unseen[mode].trust)

    def _count(self, outlook: _Outlook, steps: int) -> None:
        settings = self._settings
        mode, other = outlook.mode, outlook.other
        seconds = steps * outlook.here
        lost = seconds_lost(seconds, outlook.other_over_here)
        # of that, what lies within the hysteresis is not counted
        self._lost = max(0.0, self._lost + seconds - self._hurdle * (seconds - lost))
        if not self._lost:
            self._due = inf
        at_best = self._at_best(outlook)
        if at_best >= self._hurdle + settings.probe_gain:
            self._overlooked += seconds_lost(seconds, at_best)
        self._save(settings.probe_share * seconds, settings.probe_share * settings.savings_seconds)
        if lost < 0.0 and mode is Mode.SPECULATIVE and not self._probing and self._knows_texts():
            self._save(settings.reinvested * -lost, settings.probes_ahead * self._usual_cost(outlook))
        self._unseen[other].passed(steps)
        if self._probing:
            self._unseen[mode].looked()
        else:
            self._unseen[mode].settled()
            needed = break_even_accept_length(outlook.plain, outlook.speculative)
            known = needed if self._break_even is None else self._break_even
            self._break_even = known + (needed - known) * min(1.0, steps / settings.load_memory_steps)

    def _missed(self, outlook: _Outlook, batch: BatchTokens) -> int:
        """What will have to be caught up: what has been missed, or would be after one dwell in PLAIN."""
        return batch.missed_tokens if outlook.mode is Mode.PLAIN else outlook.size * self._settings.dwell_steps

    def _save(self, seconds: float, upto: float) -> None:
        if self._savings < upto:
            self._savings = min(self._savings + seconds, upto)

    # Probes

    def _worth_a_probe(self, outlook: _Outlook, batch: BatchTokens) -> _ProbeCost | None:
        """The worst cost of a look at the other mode, if it is worth looking by expectation and can be paid.

        Doubt has grown evenly while the other mode was not seen, so half of that time's conceivable gain, times the
        doubt there is now, has been lost by expectation.  Should it have changed, the look costs nothing: the switch
        was due.
        """
        if self._at_best(outlook) < self._hurdle + self._settings.probe_gain:
            return None
        if self._probe is not None:  # it has been asked for
            worst = self._worst_cost(outlook, self._missed(outlook, batch))
            return worst if worst.total <= self._probe_may_cost or outlook.other_over_here >= 1.0 else None
        if outlook.mode is Mode.PLAIN and self._unseen[outlook.other].steps < 2 * self._settings.dwell_steps:
            return None
        if self._payable(outlook, missed=0) is None:  # whatever was missed, which takes counting
            return None
        worst_now = self._payable(outlook, self._missed(outlook, batch))
        if worst_now is not None:
            self._probe_may_cost = self._settings.probe_growth * worst_now.total
        return worst_now

    def _payable(self, outlook: _Outlook, missed: int) -> _ProbeCost | None:
        worst = self._worst_cost(outlook, missed)
        if worst.total >= self._savings:
            return None
        trust = self._unseen[outlook.other].trust
        # the step time of PLAIN does not change with the traffic, so that looks at it are for when nothing is lost
        usual = self._cost(outlook, missed, outlook.accept) if outlook.mode is Mode.PLAIN else worst
        return worst if trust * usual.total <= 0.5 * (1.0 - trust) * self._overlooked else None

    def _at_best(self, outlook: _Outlook) -> float:
        """The other mode's goodput over the present one's, were all that was not seen of it as good as it may be."""
        if outlook.mode is Mode.PLAIN:
            return outlook.other_over_here * max(1.0, self._best_accept / outlook.accept)
        settings, calibrated = self._settings, self.plain.calibrated_share(outlook.size)
        return outlook.other_over_here * (
            1.0 + max(settings.read_step_time_doubt, settings.step_time_doubt * calibrated)
        )

    def _worst_cost(self, outlook: _Outlook, missed: int) -> _ProbeCost:
        """Of the accept lengths that there may be: of 1, at which every request still gets the token that it would have
        got from a plain step, or of the lowest one that takes a dwell to tell from the break-even."""
        lowest = self._cost(outlook, missed, 1.0)
        if outlook.mode is not Mode.PLAIN or self._break_even is None:
            return lowest
        margin = self._chance(outlook.size, self._settings.dwell_steps)
        return max(lowest, self._cost(outlook, missed, max(1.0, self._break_even - margin)))

    def _cost(self, outlook: _Outlook, missed: int, accept: float) -> _ProbeCost:
        """What a probe loses with an accept length of ``accept``, both switches included.

        In PLAIN, for a dwell, a step may take as much longer than predicted as a doubted one may take less.
        """
        if outlook.mode is Mode.PLAIN:
            lost = self._look_steps(outlook.size, accept) * (outlook.speculative - accept * outlook.plain)
        else:
            step = outlook.plain * (1.0 + self._settings.step_time_doubt) - outlook.speculative / outlook.accept
            lost = self._settings.dwell_steps * step
        return _ProbeCost(max(0.0, lost), self._switching.there_and_back(missed))

    def _look_steps(self, size: int, accept: float) -> float:
        """Verify steps of a probe that finds the accept length to be ``accept``."""
        settings = self._settings
        short = (self._break_even or 0.0) - accept
        if short <= 0.0:
            return settings.dwell_steps + _IN_FLIGHT
        looks = (self._chance(size, 1) / short) ** 2
        needed = settings.least_look_steps if looks <= 1.0 else looks * settings.alike_steps
        return min(needed, settings.dwell_steps) + _IN_FLIGHT

    def _has_seen_enough(self) -> bool:
        """Whether the probe has found less than chance explains, were the accept length that of the break-even."""
        look = self._looked
        if look.steps < self._settings.least_look_steps:
            return False
        return (self._break_even or 0.0) - look.tokens / look.requests > self._chance(look.smallest, look.steps)

    def _chance(self, size: float, steps: int) -> float:
        """How far a mean over so many verify steps of ``size`` requests may lie below the break-even by chance.

        A request's tokens are taken to vary as widely as they can: between 1 and all that is drafted.
        """
        settings, mean = self._settings, self._break_even or 1.0
        variance = max(0.0, (mean - 1.0) * (self._longest_accept - mean))
        looks = size * max(1.0, steps / settings.alike_steps)
        return settings.certainty * float((variance / looks) ** 0.5)

    def _usual_cost(self, outlook: _Outlook) -> float:
        """What a probe of speculation will cost after a stay of four dwells in PLAIN."""
        steps = self._settings.dwell_steps
        return steps * outlook.speculative + self._switching.there_and_back(4 * steps * outlook.size)
