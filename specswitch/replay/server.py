"""A server in simulated time: admission, prefill first, one decode step after the other, and the switches.

Requests are not told apart while they run.  All of them advance by the same tokens each step, so that one counter
serves for all and a replay costs little; what differs is where each started and where it ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from math import inf
from random import Random
from typing import NamedTuple

from specswitch.engine.base import (
    DraftKV,
    EngineFacts,
    PlainEntry,
    SpeculativeEntry,
    TurnListener,
)
from specswitch.profile import Profile
from specswitch.replay.load import Load, Request
from specswitch.signals import LoadSample, LocalReadings, Mode, SampleLook, StepReading


@dataclass(frozen=True, slots=True)
class Limits:
    """What bounds the batch."""

    running_requests: int = 256
    kv_tokens: int = 400_000
    """KV slots.  A request is admitted when its prompt and its whole answer find room, so nothing is retracted."""
    prefill_tokens: int = 8192
    """Of one prefill forward, whole prompts alone."""


@dataclass(frozen=True, slots=True)
class Noise:
    """How far a step strays from the profile."""

    step_time: float = 0.02
    """Standard deviation of the logarithm of a step's seconds."""
    hiccups: float = 0.002
    """Share of steps that take five times as long."""
    accept: bool = True
    """Whether a draft token is accepted by chance, each like the others, or exactly as the mean says."""


class _Running(NamedTuple):
    ends_at: float
    """The server's progress at which it has all its tokens; the heap's order."""
    number: int
    request: Request
    started_at: float
    covered_to: float
    """Plain steps served when its draft KV was last complete."""


class SimulatedServer:
    """An :class:`~specswitch.engine.base.Engine` over a server that ``truth`` describes."""

    def __init__(self, truth: Profile, load: Load, limits: Limits, noise: Noise, seed: int = 0) -> None:
        key = truth.key
        self.facts = EngineFacts(
            release=key.release,
            path="v1" if key.path == "v1" else "v2",
            worker="simulated",
            overlap=key.path != "v1",
            algorithm=key.algorithm,
            topk=key.topk,
            num_steps=key.num_steps,
            num_draft_tokens=key.num_draft_tokens,
            page_size=key.page_size,
        )
        self.truth = truth
        self.load = load
        self.now = 0.0
        """Seconds since start."""
        self.mode = Mode.SPECULATIVE
        """How the next decode step is run."""
        self.tokens = 0.0
        """Put out since start."""
        self.decode_tokens = 0.0
        """Of these, by decode steps and catch-ups."""
        self.request_seconds = 0.0
        """Seconds that running requests have waited for those tokens, summed over the requests."""
        self.plain = truth.plain.step_time()
        self.speculative = truth.speculative.step_time()
        self._cost = truth.switching.cost()
        self._limits = limits
        self._noise = noise
        self._random = Random(seed)
        self._listener: TurnListener | None = None
        self._waiting: deque[Request] = deque()
        self._running: list[_Running] = []
        self._started = 0
        self._progress = 0.0
        self._plain_steps = 0.0
        self._all_covered_to = 0.0
        self._prompt_less_start = 0.0
        self._sum_covered_to = 0.0
        self._reserved = 0
        self._draining = False
        self._in_flight = False
        self._return_asked = False
        self._sampled: int | None = None
        """How many requests the return asked for is to catch up; None: all."""
        self._look_began = -inf
        """Plain steps served when a return last left requests out; those covered since then are in the sample."""
        self._shown: list[float] = []
        """What each request of the sample has put out since that return."""
        self._look_steps = 0
        self._undisturbed = False
        self._readings: list[StepReading] = []
        self.steps = {Mode.SPECULATIVE: 0, Mode.PLAIN: 0}
        """Decode steps by how the batch was decoded."""
        self._accept: tuple[float, float] = (0.0, 0.0)

    # Engine

    def attach(self, listener: TurnListener) -> None:
        self._listener = listener

    def release(self) -> None:
        self._listener = None

    def sample(self, mode: Mode, decode_step: int, steps_in_mode: int) -> LoadSample:
        readings, self._readings = tuple(self._readings), []
        tokens, requests = self._accept
        return LoadSample(
            mode=mode,
            decode_batch_size=len(self._running),
            queue_length=len(self._waiting),
            decode_step=decode_step,
            steps_in_mode=steps_in_mode,
            accept_length=tokens / requests if requests else None,
            batch=self,
            local=LocalReadings(steps=readings),
            look=self._look(),
        )

    def batch_version(self) -> int:
        return 2 * self._started - len(self._running)  # those started and those ended

    def start_drain(self) -> None:
        self._draining = True

    def cancel_drain(self) -> None:
        self._draining = False

    def drained(self) -> bool:
        return not self._in_flight

    def enter_plain(self) -> PlainEntry:
        self.mode = Mode.PLAIN
        self._draining = False
        self._undisturbed = False
        self.end_look()
        return PlainEntry(len(self._running), 0)

    def request_return(self, draft_kv: DraftKV, sampled: int | None = None) -> None:
        self._return_asked = True
        self._sampled = sampled

    def cancel_return(self) -> bool:
        self._return_asked = False
        return True

    def end_look(self) -> None:
        """Who was in the sample has seen all up to here; what the others put out meanwhile they have missed, too."""
        if self._look_began > -inf:
            self._cover([at for at, one in enumerate(self._running) if self._covered_to(one) >= self._look_began])
            self._look_began = -inf

    def switch_at_no_cost(self, mode: Mode) -> None:
        """As no server can."""
        self.mode = mode
        self._undisturbed = False
        if mode is Mode.SPECULATIVE:
            self._all_covered_to = self._plain_steps
            self._sum_covered_to = len(self._running) * self._plain_steps

    # What runs

    @property
    def batch_size(self) -> int:
        return len(self._running)

    @property
    def context_tokens(self) -> int:
        """KV tokens of the running requests."""
        return round(self._prompt_less_start + len(self._running) * self._progress)

    @property
    def missed_tokens(self) -> int:
        """Of these, those that the draft has not seen."""
        return round(len(self._running) * self._plain_steps - self._sum_covered_to)

    @property
    def missed_by_each(self) -> Sequence[int]:
        return sorted(round(self._plain_steps - self._covered_to(running)) for running in self._running)

    def run(self) -> None:
        """Turn after turn, until the load ends."""
        while self.now < self.load.duration:
            self.turn()

    def turn(self) -> None:
        """One scheduler turn."""
        assert self._listener is not None
        self._waiting.extend(self.load.arrivals(self.now, len(self._running) + len(self._waiting)))
        self._listener.on_turn()
        if self._prefill():
            return
        if self._draining:
            self._pass(self._cost.drain)
            self._in_flight = False
        elif self._return_asked:
            self._return()
        elif self._running:
            self._decode()
        else:
            self._undisturbed = False
            later = self.load.next_arrival(self.now)
            self.now = self.load.duration if later is None else max(later, self.now + 1e-6)

    def _pass(self, seconds: float) -> None:
        self.now += seconds
        self.request_seconds += seconds * len(self._running)

    def _prefill(self) -> bool:
        limits = self._limits
        tokens = admitted = 0
        while self._waiting and len(self._running) < limits.running_requests:
            request = self._waiting[0]
            needs = request.prompt_tokens + request.output_tokens
            if self._running and self._reserved + needs > limits.kv_tokens:
                break
            if admitted and tokens + request.prompt_tokens > limits.prefill_tokens:
                break
            self._waiting.popleft()
            tokens += request.prompt_tokens
            admitted += 1
            self._admit(request)
        if not admitted:
            return False
        prefill = self.truth.prefill
        self._pass(prefill.floor_seconds + prefill.seconds_per_token * tokens)
        self._undisturbed = False
        return True

    def _admit(self, request: Request) -> None:
        self.tokens += 1
        if request.output_tokens == 1:
            return
        self._started += 1
        ends_at = self._progress + request.output_tokens - 1
        heappush(self._running, _Running(ends_at, self._started, request, self._progress, self._plain_steps))
        self._prompt_less_start += request.prompt_tokens + 1 - self._progress
        self._sum_covered_to += self._plain_steps
        self._reserved += request.prompt_tokens + request.output_tokens

    def _return(self) -> None:
        self._return_asked = False
        requests = len(self._running)
        missed = self.missed_tokens
        if self._sampled is not None and self._sampled < requests:
            missed = self._catch_up_sample(self._sampled)
            self.mode, self._undisturbed = Mode.SPECULATIVE, False
        else:
            self.switch_at_no_cost(Mode.SPECULATIVE)
        if requests:
            self._pass(self._cost.to_speculative(missed))
        self._advance(1.0)
        assert self._listener is not None
        self._listener.on_returned(SpeculativeEntry(requests, missed))

    def _covered_to(self, running: _Running) -> float:
        return max(running.covered_to, self._all_covered_to)

    def _catch_up_sample(self, requests: int) -> int:
        """Those that have missed least; returns the tokens that they had missed."""
        self._look_began, self._look_steps = self._plain_steps, 0
        self._shown = [0.0] * requests
        sample = nlargest(requests, range(len(self._running)), key=lambda at: self._covered_to(self._running[at]))
        return round(self._cover(sample))

    def _left_out(self) -> int:
        if self.mode is not Mode.SPECULATIVE or self._look_began == -inf:
            return 0
        return sum(self._covered_to(running) < self._look_began for running in self._running)

    def _look(self) -> SampleLook | None:
        left_out = self._left_out()
        if not left_out:
            return None
        steps = self._look_steps
        sampled = min(len(self._shown), len(self._running) - left_out)
        lengths = [tokens / steps for tokens in self._shown[:sampled]] if steps else []
        return SampleLook(left_out, sampled, steps, lengths)

    def _cover(self, places: Sequence[int]) -> float:
        """Let the draft have seen all of these requests; returns the tokens that it had not."""
        missed = 0.0
        for at in places:
            running = self._running[at]
            missed += self._plain_steps - self._covered_to(running)
            self._running[at] = running._replace(covered_to=self._plain_steps)  # by which the heap does not order
        self._sum_covered_to += missed
        return missed

    def _decode(self) -> None:
        size, context, mode = len(self._running), self.context_tokens, self.mode
        left_out = self._left_out()
        if mode is Mode.PLAIN:
            seconds, advance = self.plain.seconds(size, context), 1.0
        else:
            seconds, advance = self.speculative.seconds(size, context), 1.0
            if not left_out:
                advance = self._accepted(size)
            elif left_out < size:  # whose draft is taken to guess nothing
                advance += (self._accepted_by_sample() - 1.0) * (size - left_out) / size
        noise = self._noise
        if noise.step_time:
            seconds *= self._random.lognormvariate(0.0, noise.step_time)
        if noise.hiccups and self._random.random() < noise.hiccups:
            seconds *= 5.0
        self._pass(seconds)
        if mode is Mode.PLAIN:
            self._plain_steps += 1.0
        elif left_out:
            self._plain_steps += advance
        tokens = round(self._advance(advance))
        if mode is Mode.SPECULATIVE and left_out < size:
            self._count_accepted(tokens - left_out, size - left_out)
        self._in_flight = bool(self._running)
        time = seconds if self._undisturbed else None
        self._readings.append(StepReading(mode, size, context, tokens, time, left_out, left_out))
        self._undisturbed = True
        assert self._listener is not None
        self.steps[mode] += 1
        self._listener.on_decode_step(mode)

    def _accepted(self, size: int) -> float:
        """Tokens per request of a verify step; of many requests by the normal approximation."""
        drafts = self.truth.longest_accept_length - 1.0
        chance = (min(self.load.accept_length(self.now), drafts + 1.0) - 1.0) / drafts
        if not self._noise.accept:
            return 1.0 + drafts * chance
        if size <= 8:
            draws = range(size * round(drafts))
            return 1.0 + sum(self._random.random() < chance for _ in draws) / size
        spread = (drafts * chance * (1.0 - chance) / size) ** 0.5
        return 1.0 + min(max(self._random.gauss(drafts * chance, spread), 0.0), drafts)

    def _accepted_by_sample(self) -> float:
        """The same while only the sample shows what the draft can do; told apart."""
        accepted = [self._accepted(1) for _ in self._shown]
        self._shown = [before + more for before, more in zip(self._shown, accepted, strict=True)]
        self._look_steps += 1
        return sum(accepted) / len(accepted)

    def _count_accepted(self, tokens: float, requests: int) -> None:
        keep = 1.0 - 1.0 / 64
        self._accept = (self._accept[0] * keep + tokens, self._accept[1] * keep + requests)

    def _advance(self, tokens: float) -> float:
        """Give every running request ``tokens``, those that end no more than they asked for; returns the sum."""
        put_out = tokens * len(self._running)
        self._progress += tokens
        while self._running and self._running[0].ends_at <= self._progress + 1e-9:
            ended = heappop(self._running)
            put_out -= self._progress - ended.ends_at
            self._prompt_less_start -= ended.request.prompt_tokens + 1 - ended.started_at
            self._sum_covered_to -= max(ended.covered_to, self._all_covered_to)
            self._reserved -= ended.request.prompt_tokens + ended.request.output_tokens
        self.tokens += put_out
        self.decode_tokens += put_out
        return put_out
