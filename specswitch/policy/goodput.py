"""The mode that puts out more tokens per second, by measured step times and the running accept length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from specswitch.costs import StepTime, SwitchCost, advantage, seconds_lost
from specswitch.policy.base import Wish
from specswitch.refine import AcceptEstimate, RefinedStepTime
from specswitch.signals import BatchTokens, LoadSample, Mode, StepReading


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """What bounds the policy's eagerness."""

    hysteresis: float = 0.005
    """The share by which the other mode's goodput must be higher before it counts for anything."""
    probe_share: float = 0.005
    """The share of decode time that probes may cost at worst; 0 never probes."""
    dwell_steps: int = 32
    """The least stay in a mode, as the surrounding Dwell keeps it."""
    accept_memory_steps: int = 1024
    """Decode steps without speculation after which the accept length last seen is trusted by half."""
    step_time_memory_steps: int = 16384
    """The same for the step time of PLAIN, which depends on no traffic."""
    step_time_doubt: float = 0.25
    """By how much PLAIN may be faster than predicted once nothing is left of that trust."""
    probe_gain: float = 0.02
    """The least advantage that a probe must make conceivable."""
    savings_seconds: float = 1800.0
    """Decode time whose share for probes may be saved up."""
    reinvested: float = 0.5
    """The share of what speculation has gained over PLAIN that may be spent on probes for it."""
    probes_ahead: float = 8.0
    """For how many probes that may be saved up."""


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


class Goodput:
    """Wishes for the other mode once staying has cost as much as going there and back.

    Each turn adds up the seconds that the other mode would have saved, as far as its advantage exceeds the
    hysteresis; a turn at which it would have lost takes as much away again, down to zero.  A wish follows when the
    sum reaches the cost of both switches, the catch-up of what has been or would be missed included.  A large
    advantage so counts at once, a small one after a while, and a load that hovers at the break-even never adds up.

    The other mode is known from when it last ran, and trusted less with every step since.  When the gain that may
    have been overlooked reaches, by expectation, the worst cost of a look (not one draft token accepted), a probe is
    wished for: a stay of one dwell.  It is paid for in advance, from ``probe_share`` of the decode time, and from a
    part of what speculation has gained over PLAIN: where it never gains, probes cost no more than that share.

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
        self.accept = AcceptEstimate(accept_length)
        self._best_accept = accept_length
        self._longest_accept = longest_accept_length
        self._verified = False
        """Whether a verify step has been read: until then the sample's own accept length holds, if it has one."""
        self._switching = switching
        self._settings = settings or GoodputSettings()
        self._hurdle = 1.0 + self._settings.hysteresis
        self._mode = Mode.SPECULATIVE
        self._step = 0
        self._lost = 0.0
        """Seconds that the other mode would have saved."""
        self._savings = 0.0
        """Seconds that probes may still cost."""
        self._unseen = {Mode.SPECULATIVE: 0, Mode.PLAIN: 0}
        """Decode steps since each mode last ran."""
        self._away = {Mode.SPECULATIVE: 0, Mode.PLAIN: 0}
        """Decode steps since each mode last ran other than to probe."""
        self._probe_cost: float | None = None
        """Of the probe wished for."""
        self._probing = False
        self._asked = False
        """Whether a return has been wished for and not come yet."""

    def __call__(self, sample: LoadSample) -> Wish | None:
        for step in sample.local.steps:
            self._learn(step)
        mode = sample.mode
        if mode is Mode.DRAINING:
            return None
        steps = sample.decode_step - self._step
        self._step = sample.decode_step
        if mode is not self._mode:
            self._enter(mode)
        if self._probing and sample.steps_in_mode > self._settings.dwell_steps:
            self._probing = False
        if not sample.decode_batch_size:
            return self._idle()
        outlook = self._outlook(sample)
        if steps:
            self._count(outlook, steps)
        return self._decide(outlook, sample.batch)

    def _outlook(self, sample: LoadSample) -> _Outlook:
        size, context = sample.decode_batch_size, sample.batch.context_tokens
        accept = self.accept.value
        if not self._verified and sample.accept_length is not None:
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
        self._probe_cost = None
        if self._probing:
            # PLAIN was looked at for its step time: no reason to stay because of an accept length grown old there.
            go = ratio > (1.0 - settings.probe_gain if plain else 1.0)
        else:
            go = (
                ratio > self._hurdle
                and self._lost >= self._switching.there_and_back(0)  # spares counting what was missed in most turns
                and self._lost >= self._there_and_back(outlook, batch)
            )
        if go:
            self._asked = plain
            return Wish(outlook.other, str(outlook))
        if not self._probing and self._savings > 0.0:
            self._probe_cost = self._worth_a_probe(outlook, batch)
        if self._probe_cost is not None:
            self._asked = plain
            return Wish(outlook.other, f"probe after {self._unseen[outlook.other]} steps; {outlook}")
        if self._asked and ratio < 1.0:
            self._asked = False
            return Wish(outlook.mode, str(outlook))
        return None

    def _there_and_back(self, outlook: _Outlook, batch: BatchTokens) -> float:
        """What both switches cost, with what has been missed, or would be in one dwell."""
        plain = outlook.mode is Mode.PLAIN
        return self._switching.there_and_back(
            batch.missed_tokens if plain else outlook.size * self._settings.dwell_steps
        )

    def _idle(self) -> Wish | None:
        """With no request there is nothing to drain or to catch up: be where the first one will be served best."""
        gain = advantage(self.accept.value, self.plain.seconds(1, 0), self.speculative.seconds(1, 0))
        if self._mode is Mode.PLAIN:
            return Wish(Mode.SPECULATIVE, "idle, for the first request") if gain > self._hurdle else None
        return Wish(Mode.PLAIN, "idle, for the first request") if 1.0 / gain > self._hurdle else None

    # What a turn teaches

    def _learn(self, step: StepReading) -> None:
        speculative = step.mode is Mode.SPECULATIVE
        if speculative and step.batch_size > 0:
            self._verified = True
            self.accept.add(step.tokens, step.batch_size)
        if step.seconds is not None:
            curve = self.speculative if speculative else self.plain
            curve.add(step.batch_size, step.context_tokens, step.seconds)

    def _enter(self, mode: Mode) -> None:
        self._mode = mode
        self._lost = 0.0
        self._asked = False
        self._probing = self._probe_cost is not None
        self._savings -= self._probe_cost or 0.0
        self._probe_cost = None
        if mode is Mode.SPECULATIVE:
            self.accept.doubt(self._trust(mode))
        else:
            self._best_accept = min(max(self._best_accept, self.accept.value), self._longest_accept)

    def _count(self, outlook: _Outlook, steps: int) -> None:
        settings = self._settings
        mode, other = outlook.mode, outlook.other
        seconds = steps * outlook.here
        lost = seconds_lost(seconds, outlook.other_over_here)
        # of that, what lies within the hysteresis is not counted
        self._lost = max(0.0, self._lost + seconds - self._hurdle * (seconds - lost))
        self._save(settings.probe_share * seconds, settings.probe_share * settings.savings_seconds)
        if lost < 0.0 and mode is Mode.SPECULATIVE:
            self._save(settings.reinvested * -lost, settings.probes_ahead * self._usual_cost(outlook))
        self._unseen[mode] = 0
        self._unseen[other] += steps
        self._away[other] += steps
        if not self._probing:
            self._away[mode] = 0

    def _save(self, seconds: float, upto: float) -> None:
        if self._savings < upto:
            self._savings = min(self._savings + seconds, upto)

    # Probes

    def _trust(self, mode: Mode) -> float:
        """In what was last seen of ``mode``: the longer it has held good, the slower it fades.

        After ``u`` steps unseen ``s / (s + u)``, where ``s`` is what probes have confirmed it for, and the memory.
        """
        settings = self._settings
        memory = settings.accept_memory_steps if mode is Mode.SPECULATIVE else settings.step_time_memory_steps
        return (memory + self._away[mode] - self._unseen[mode]) / (memory + self._away[mode])

    def _worth_a_probe(self, outlook: _Outlook, batch: BatchTokens) -> float | None:
        """The worst cost of a look at the other mode, if it is worth that by expectation and can be paid.

        Doubt has grown evenly while the other mode was not seen, so half of that time's conceivable gain, times the
        doubt there is now, has been lost by expectation.
        """
        settings = self._settings
        if outlook.mode is Mode.PLAIN:
            at_best = outlook.other_over_here * max(1.0, self._best_accept / outlook.accept)
        else:
            at_best = outlook.other_over_here * (1.0 + settings.step_time_doubt)
        if at_best < self._hurdle + settings.probe_gain:
            return None
        unseen = self._unseen[outlook.other] * outlook.here
        overlooked = 0.5 * (1.0 - self._trust(outlook.other)) * seconds_lost(unseen, at_best)
        most = min(self._savings, overlooked)
        if self._worst_cost(outlook, missed_tokens=0) > most:  # whatever was missed, which takes counting
            return None
        cost = self._worst_cost(outlook, batch.missed_tokens)
        return cost if cost <= most else None

    def _worst_cost(self, outlook: _Outlook, missed_tokens: int) -> float:
        """Seconds that a probe of one dwell can lose at worst, both switches included.

        In SPECULATIVE every request gets at least the one token that it would have got from a plain step.  In PLAIN
        the step may take as much longer than predicted as a doubted one may take less.
        """
        settings = self._settings
        steps = settings.dwell_steps
        if outlook.mode is Mode.PLAIN:
            lost = steps * max(0.0, outlook.speculative - outlook.plain)
            return lost + self._switching.there_and_back(missed_tokens)
        slow = outlook.plain * (1.0 + settings.step_time_doubt)
        lost = steps * max(0.0, slow - outlook.speculative / outlook.accept)
        return lost + self._switching.there_and_back(steps * outlook.size)

    def _usual_cost(self, outlook: _Outlook) -> float:
        """What a probe of speculation will cost after a stay of four dwells in PLAIN."""
        steps = self._settings.dwell_steps
        return steps * outlook.speculative + self._switching.there_and_back(4 * steps * outlook.size)
