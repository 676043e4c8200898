"""The mode that puts out more tokens per second, by measured step times and the running accept length."""

from __future__ import annotations

from math import inf
from statistics import fmean

from specswitch.costs import StepTime, SwitchCost, advantage, seconds_lost
from specswitch.policy.base import CATCH_UP_ALL, Wish
from specswitch.policy.outlook import Outlook
from specswitch.policy.probes import Probes
from specswitch.policy.settings import GoodputSettings
from specswitch.policy.unseen import Unseen
from specswitch.refine import AcceptEstimate, RefinedStepTime
from specswitch.signals import BatchTokens, LoadSample, Mode, SampleLook, StepReading

_NOTED = 0.1
"""Of the least that both switches cost: a loss that has come to so much may go on."""

_SHRUNK = 0.5
"""Of the batch of late: less, and it may be one between two waves of requests."""


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
    have been overlooked reaches, by expectation, what a look costs, a probe is wished for, if it can be paid
    (:class:`specswitch.policy.probes.Probes`).

    A probe of speculation may be a look at a sample of the requests.  Then it always ends where it came from, and what
    it has found counts for the return of all.  One with all requests ends there unless the accept length exceeds what
    the load has called for of late: it was made to learn that length, and says nothing about the load.  It ends as soon
    as chance cannot explain an accept length that low; so that there is no more than one switch per dwell all the same,
    it begins no sooner than two dwells after the last verify step.

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
        self._size_of_late = 0.0
        """The decode batch, averaged over about a dwell."""
        self._lost = 0.0
        """Seconds that the other mode would have saved."""
        self._due = inf
        """The sum of them at which the mode is to change."""
        self._anew_until = 0
        """The decode step up to which a mode is chosen as by a server that has run empty."""
        self._overlooked = 0.0
        """Seconds that the other mode would have saved if it had been all that it may be."""
        self._unseen = {
            Mode.SPECULATIVE: Unseen(self._settings.accept_memory_steps),
            Mode.PLAIN: Unseen(self._settings.step_time_memory_steps),
        }
        self._probes = Probes(self._settings, switching, longest_accept_length)
        self._asked: Wish | None = None
        """The return wished for and not come yet."""
        self._look: SampleLook | None = None
        """What the present stay in SPECULATIVE has shown so far, if it is a look at a sample."""
        self._stayed = self._before_look = 0.0
        """Seconds decoded in this stay, and in the stay in PLAIN before the last look at a sample."""
        self._stayed_steps = 0
        self._found = False
        """Whether a look at a sample, right before this stay in PLAIN, has found an accept length worth a return."""

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
        if mode is Mode.SPECULATIVE:
            self._look = sample.look if self._probes.running else None
        if self._probes.running and sample.look is None and sample.steps_in_mode > self._settings.dwell_steps:
            self._probes.becomes_stay()
            if mode is Mode.SPECULATIVE:
                self._unseen[mode].changed()
        if not sample.decode_batch_size:
            return self._idle()
        outlook = self._outlook(sample)
        if steps:
            self._count(outlook, steps)
        return self._decide(outlook, sample)

    def _outlook(self, sample: LoadSample) -> Outlook:
        size, context = sample.decode_batch_size, sample.batch.context_tokens
        accept = self.accept.value
        if not self._verify_steps and sample.accept_length is not None:
            accept = sample.accept_length
        plain, speculative = self.plain.seconds(size, context), self.speculative.seconds(size, context)
        gain = advantage(accept, plain, speculative)
        if sample.mode is Mode.PLAIN:
            return Outlook(sample.mode, Mode.SPECULATIVE, size, accept, plain, speculative, plain, gain)
        return Outlook(sample.mode, Mode.PLAIN, size, accept, plain, speculative, speculative, 1.0 / gain)

    def _decide(self, outlook: Outlook, sample: LoadSample) -> Wish | None:
        settings = self._settings
        plain = outlook.mode is Mode.PLAIN
        ratio = outlook.other_over_here
        at_once = self._chooses_anew()
        if sample.look is not None:
            if not self._probes.running:
                return CATCH_UP_ALL
            # whatever it finds, the others have to be caught up before a stay
            go, looks = True, False
            at_once = self._probes.has_seen_enough_of(sample.look)
        elif self._probes.running:
            # PLAIN was looked at for its step time: no reason to stay because of an accept length grown old there.
            go = ratio > 1.0 - settings.probe_gain if plain else outlook.accept < self._probes.break_even
            at_once = not plain and self._probes.has_seen_enough()
            looks = False
        else:
            self._make_good(outlook, sample.batch)
            go = ratio > self._hurdle and self._is_due(outlook, sample.batch)
            looks = not go and self._wishes_for_a_probe(outlook, sample.batch)
        if not looks:
            self._probes.forget()
        wish = None
        if go:
            wish = Wish(outlook.other, str(outlook), at_once)
        elif looks:
            sampled, steps = self._probes.sampled, self._unseen[outlook.other].steps
            looked_at = "" if sampled is None else f" of {sampled}"
            wish = Wish(outlook.other, f"probe{looked_at} after {steps} steps; {outlook}", sampled=sampled)
        elif self._asked is not None and (ratio < 1.0 or self._asked.sampled is not None):
            # a return of a sample is for the probe alone, which is not wanted any more
            self._asked = None
            return Wish(outlook.mode, str(outlook))
        if wish is not None and plain:
            self._asked = wish
        return wish

    def _is_due(self, outlook: Outlook, batch: BatchTokens) -> bool:
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

    def _make_good(self, outlook: Outlook, batch: BatchTokens) -> None:
        """Right after a look at a sample has found more: it has been like that for half of the time, by expectation.

        No more than makes the return due: what a load to come may lose is not known.
        """
        if not self._found or not self._before_look or outlook.other_over_here <= self._hurdle:
            return
        lost = seconds_lost(0.5 * self._before_look, outlook.other_over_here)
        self._lost += min(lost, self._there_and_back(outlook, batch))
        self._before_look = 0.0

    def _there_and_back(self, outlook: Outlook, batch: BatchTokens) -> float:
        return self._switching.there_and_back(self._missed(outlook, batch))

    def _idle(self) -> Wish | None:
        """With no request there is nothing to drain or to catch up: be where the first one will be served best."""
        self._probes.forget()  # it would be for nothing, and for another load
        knows = self._knows_texts() and not self._probes.running
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
        return self._step < self._anew_until and not self._probes.running

    # What a turn teaches

    def _learn(self, step: StepReading) -> None:
        size = step.batch_size
        speculative = step.mode is Mode.SPECULATIVE
        if speculative and size > 0:
            self._verify_steps += 1
            self.accept.add(step.tokens - step.uncounted_tokens, size - step.uncounted)
            self._best_accept = min(max(self._best_accept, self.accept.value), self._longest_accept)
            if self._probes.has_begun_stay and self._mode is step.mode:
                context = step.context_tokens
                self._probes.verified(step, self.plain.seconds(size, context), self.speculative.seconds(size, context))
        if step.seconds is not None:
            curve = self.speculative if speculative else self.plain
            curve.add(size, step.context_tokens, step.seconds)

    def _enter(self, mode: Mode) -> None:
        shown = () if self._look is None else self._look.accept_lengths
        self._found = mode is Mode.PLAIN and bool(shown) and fmean(shown) > self._probes.break_even
        if self._found:
            self._unseen[Mode.SPECULATIVE].changed()
        if mode is Mode.SPECULATIVE:
            self._before_look = self._stayed
        self._stayed, self._stayed_steps, self._look = 0.0, 0, None
        self._probes.entered(mode)
        self._mode = mode
        self._lost = self._overlooked = 0.0
        self._due = inf
        self._asked = None
        if mode is Mode.SPECULATIVE:
            self.accept.doubt(self._unseen[mode].trust)

    def _count(self, outlook: Outlook, steps: int) -> None:
        settings = self._settings
        mode, other = outlook.mode, outlook.other
        seconds = steps * outlook.here
        self._stayed += seconds
        self._stayed_steps += steps
        if mode is Mode.PLAIN and self._stayed_steps > settings.dwell_steps:
            self._before_look = 0.0  # what a look has found is no news any more
        lost = seconds_lost(seconds, outlook.other_over_here)
        # of that, what lies within the hysteresis is not counted
        self._lost = max(0.0, self._lost + seconds - self._hurdle * (seconds - lost))
        if not self._lost:
            self._due = inf
        at_best = self._at_best(outlook)
        if at_best >= self._hurdle + settings.probe_gain:
            self._overlooked += seconds_lost(seconds, at_best)
        self._size_of_late += (outlook.size - self._size_of_late) * min(1.0, steps / settings.dwell_steps)
        self._probes.decoded(seconds)
        self._unseen[other].passed(steps)
        if self._probes.running:
            if self._look is None or self._look.accept_lengths:
                self._unseen[mode].looked()
            return
        self._unseen[mode].settled()
        self._probes.called_for(outlook, steps)
        if lost < 0.0 and mode is Mode.SPECULATIVE and self._knows_texts():
            self._probes.gained(-lost, outlook)

    def _missed(self, outlook: Outlook, batch: BatchTokens) -> int:
        """What will have to be caught up: what has been missed, or would be after one dwell in PLAIN."""
        return batch.missed_tokens if outlook.mode is Mode.PLAIN else outlook.size * self._settings.dwell_steps

    # Probes

    def _wishes_for_a_probe(self, outlook: Outlook, batch: BatchTokens) -> bool:
        settings, unseen = self._settings, self._unseen[outlook.other]
        if self._at_best(outlook) < self._hurdle + settings.probe_gain:
            return False
        if outlook.mode is Mode.PLAIN and self._stayed_steps < 2 * settings.dwell_steps:
            return False
        if self._found and outlook.other_over_here > self._hurdle:
            return False  # the return will show
        if outlook.size < _SHRUNK * self._size_of_late and not self._probes.wished_for:
            return False  # the next requests may come while it runs, and it would cost far more
        return self._probes.consider(outlook, batch, unseen.trust, self._overlooked)

    def _at_best(self, outlook: Outlook) -> float:
        """The other mode's goodput over the present one's, were all that was not seen of it as good as it may be."""
        if outlook.mode is Mode.PLAIN:
            return outlook.other_over_here * max(1.0, self._best_accept / outlook.accept)
        settings, calibrated = self._settings, self.plain.calibrated_share(outlook.size)
        return outlook.other_over_here * (
            1.0 + max(settings.read_step_time_doubt, settings.step_time_doubt * calibrated)
        )
