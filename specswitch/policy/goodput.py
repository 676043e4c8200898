"""The mode that puts out more tokens per second, by measured step times and the running accept length."""

from __future__ import annotations

from dataclasses import dataclass
from math import pow

from specswitch.costs import StepTime, SwitchCost, advantage, seconds_lost
from specswitch.policy.base import Wish
from specswitch.refine import AcceptEstimate, RefinedStepTime
from specswitch.signals import LoadSample, Mode, StepReading


@dataclass(frozen=True, slots=True)
class GoodputSettings:
    """What bounds the policy's eagerness."""

    hysteresis: float = 0.005
    """The share by which the other mode's goodput must be higher before it counts for anything."""
    probe_share: float = 0.005
    """The share of decode time that probes may cost at worst; 0 never probes."""
    dwell_steps: int = 32
    """The least stay in a mode, as the surrounding Dwell keeps it."""
    half_life_steps: int = 1024
    """Decode steps after which what was last seen of the other mode is trusted by half."""
    step_time_doubt: float = 0.25
    """By how much PLAIN may be faster than predicted once nothing is left of that trust."""
    probe_gain: float = 0.02
    """The least advantage that a probe must make conceivable."""
    savings_seconds: float = 1800.0
    """Decode time whose share for probes may be saved up."""


class Goodput:
    """Wishes for the other mode once staying has cost as much as going there and back.

    Each turn adds up the seconds that the other mode would have saved, as far as its advantage exceeds the
    hysteresis; a turn at which it would have lost takes as much away again, down to zero.  A wish follows when the
    sum reaches the cost of both switches, the catch-up of what has been or would be missed included.  A large
    advantage so counts at once, a small one after a while, and a load that hovers at the break-even never adds up.

    What the other mode would do is known from when it last ran; trust in that halves every ``half_life_steps``.
    Where the doubt left makes an advantage conceivable, a probe is wished for: a stay of one dwell.  Its worst cost
    (not one draft token accepted) is paid for in advance from ``probe_share`` of the decode time.

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
        self._switching = switching
        self._longest = longest_accept_length
        self._best_accept = accept_length
        self._settings = settings or GoodputSettings()
        self._hurdle = 1.0 + self._settings.hysteresis
        self._verified = False
        """Whether a verify step has been read: until then the sample's own accept length holds, if it has one."""
        self._mode = Mode.SPECULATIVE
        self._step = 0
        self._lost = 0.0
        """Seconds that the other mode would have saved."""
        self._savings = 0.0
        """Seconds that probes may still cost."""
        self._unseen = {Mode.SPECULATIVE: 0, Mode.PLAIN: 0}
        """Decode steps since each mode last ran."""
        self._probe_cost: float | None = None
        """Of the probe wished for."""
        self._probing = False
        self._asked = False
        """Whether a return has been wished for and not come yet."""

    def __call__(self, sample: LoadSample) -> Wish | None:
        self._absorb(sample)
        mode = sample.mode
        if mode is Mode.DRAINING:
            return None
        steps = sample.decode_step - self._step
        self._step = sample.decode_step
        if mode is not self._mode:
            self._enter(mode)
        if self._probing and sample.steps_in_mode > self._settings.dwell_steps:
            self._probing = False
        other = Mode.SPECULATIVE if mode is Mode.PLAIN else Mode.PLAIN
        size = sample.decode_batch_size
        if size == 0:
            return self._idle(mode, other)

        plain = self.plain.seconds(size, sample.context_tokens)
        speculative = self.speculative.seconds(size, sample.context_tokens)
        gain = advantage(self._accept_length(sample), plain, speculative)
        here, other_over_here = (plain, gain) if mode is Mode.PLAIN else (speculative, 1.0 / gain)
        if steps:
            self._count(mode, other, steps, here * steps, other_over_here)

        missed = sample.missed_tokens if mode is Mode.PLAIN else size * self._settings.dwell_steps
        if self._probing:
            wish = other_over_here > 1.0
        else:
            wish = other_over_here > self._hurdle and self._lost >= self._switching.there_and_back(missed)
        if wish:
            self._asked = mode is Mode.PLAIN
            self._probe_cost = None
            return Wish(other, self._reason(sample, plain, speculative))
        if self._savings > 0.0 and not self._probing and self._would_probe(mode, other, sample, plain, speculative):
            self._asked = mode is Mode.PLAIN
            return Wish(other, f"probe after {self._unseen[other]} steps: {self._reason(sample, plain, speculative)}")
        if self._asked and other_over_here < 1.0:
            self._asked = False
            self._probe_cost = None
            return Wish(mode, self._reason(sample, plain, speculative))
        return None

    # What a turn teaches

    def _absorb(self, sample: LoadSample) -> None:
        for step in sample.local.steps:
            self._learn(step)

    def _learn(self, step: StepReading) -> None:
        speculative = step.mode is Mode.SPECULATIVE
        if speculative and step.batch_size > 0:
            self._verified = True
            self.accept.add(step.tokens, step.batch_size)
        if step.seconds is not None:
            curve = self.speculative if speculative else self.plain
            curve.add(step.batch_size, step.context_tokens, step.seconds)

    def _accept_length(self, sample: LoadSample) -> float:
        if not self._verified and sample.accept_length is not None:
            return sample.accept_length
        return self.accept.value

    def _enter(self, mode: Mode) -> None:
        self._mode = mode
        self._lost = 0.0
        self._asked = False
        self._probing = self._probe_cost is not None
        if self._probe_cost is not None:
            self._savings -= self._probe_cost
            self._probe_cost = None
        if mode is Mode.SPECULATIVE:
            self.accept.doubt(self._trust(mode))
        else:
            self._best_accept = min(max(self._best_accept, self.accept.value), self._longest)

    def _count(self, mode: Mode, other: Mode, steps: int, seconds: float, other_over_here: float) -> None:
        settings = self._settings
        self._lost = max(0.0, self._lost + seconds_lost(seconds, other_over_here / self._hurdle))
        self._savings = min(
            self._savings + settings.probe_share * seconds, settings.probe_share * settings.savings_seconds
        )
        self._unseen[mode] = 0
        self._unseen[other] += steps

    # Probes

    def _trust(self, mode: Mode) -> float:
        return pow(0.5, self._unseen[mode] / self._settings.half_life_steps)

    def _would_probe(self, mode: Mode, other: Mode, sample: LoadSample, plain: float, speculative: float) -> bool:
        doubt = 1.0 - self._trust(other)
        accept = self._accept_length(sample)
        if other is Mode.SPECULATIVE:
            conceivable = accept + doubt * (max(self._best_accept, accept) - accept)
            over_here = advantage(conceivable, plain, speculative)
        else:
            over_here = (1.0 + doubt * self._settings.step_time_doubt) / advantage(accept, plain, speculative)
        if over_here < self._hurdle + self._settings.probe_gain:
            return False
        cost = self._worst_cost(mode, sample, plain, speculative)
        if cost > self._savings:
            return False
        self._probe_cost = cost
        return True

    def _worst_cost(self, mode: Mode, sample: LoadSample, plain: float, speculative: float) -> float:
        """Seconds that a probe of one dwell can lose at worst, both switches included.

        In SPECULATIVE every request gets at least the one token that it would have got from a plain step.  In PLAIN
        the step may take as much longer than predicted as a doubted one may take less.
        """
        steps = self._settings.dwell_steps
        if mode is Mode.PLAIN:
            lost = steps * max(0.0, speculative - plain)
            return lost + self._switching.there_and_back(sample.missed_tokens)
        slow = plain * (1.0 + self._settings.step_time_doubt)
        lost = steps * max(0.0, slow - speculative / self._accept_length(sample))
        return lost + self._switching.there_and_back(steps * sample.decode_batch_size)

    # Nothing runs

    def _idle(self, mode: Mode, other: Mode) -> Wish | None:
        """With no request there is nothing to drain or to catch up: be where the first one will be served best."""
        gain = advantage(self.accept.value, self.plain.seconds(1, 0), self.speculative.seconds(1, 0))
        other_over_here = gain if mode is Mode.PLAIN else 1.0 / gain
        return Wish(other, "idle, for the first request") if other_over_here > self._hurdle else None

    def _reason(self, sample: LoadSample, plain: float, speculative: float) -> str:
        size = sample.decode_batch_size
        accept = self._accept_length(sample)
        return (
            f"decode batch {size}, accept length {accept:.2f}: speculative {accept * size / speculative:.0f} tokens/s,"
            f" plain {size / plain:.0f}"
        )
