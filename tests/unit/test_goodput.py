"""The goodput policy turn by turn, with step times and accept lengths set by hand."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specswitch.costs import StepPoint, StepTime, SwitchCost
from specswitch.policy import Dwell, Goodput, GoodputSettings, Wish
from specswitch.signals import KnownTokens, LoadSample, LocalReadings, Mode, SampleLook, StepReading

SPECULATIVE, DRAINING, PLAIN = Mode.SPECULATIVE, Mode.DRAINING, Mode.PLAIN

# Break-even accept length: 1.5 at 1 request, 2 at 64, 2.5 at 128.
PLAIN_TIME = StepTime([StepPoint(1, 0, 0.004), StepPoint(64, 0, 0.006), StepPoint(128, 0, 0.008)], 0.0)
SPECULATIVE_TIME = StepTime([StepPoint(1, 0, 0.006), StepPoint(64, 0, 0.012), StepPoint(128, 0, 0.020)], 0.0)
COST = SwitchCost(drain=0.002, restart=0.02, catch_up_per_token=20e-6)


def goodput(accept: float = 2.5, **changes: Any) -> Goodput:
    changes.setdefault("probe_share", 0.0)
    changes.setdefault("reinvested", 0.0)
    return Goodput(PLAIN_TIME, SPECULATIVE_TIME, COST, accept, 4.0, GoodputSettings(**changes))


class Server:
    """A scheduler that obeys, with step times and accept lengths as they truly are."""

    def __init__(self, policy: Any, slower: float = 1.0, speculative: StepTime = SPECULATIVE_TIME) -> None:
        self.policy = policy
        self.slower = slower
        """True step times over the calibrated ones."""
        self.curves = {SPECULATIVE: speculative, PLAIN: PLAIN_TIME}
        self.mode = SPECULATIVE
        self.step = 0
        self.entered_at = 0
        self.missed = 0
        self.sampled: int | None = None
        """How many requests the last return has caught up, None for all."""
        self.looked = 0
        """Verify steps of a look at these, so far."""
        self.seconds = 0.0
        self.switches: list[tuple[int, Mode]] = []
        self.reasons: list[str] = []
        self.readings: tuple[StepReading, ...] = ()

    def turn(self, size: int, accept: float, context: int = 0) -> Wish | None:
        sample = LoadSample(
            self.mode,
            size,
            0,
            self.step,
            self.step - self.entered_at,
            None,
            batch=KnownTokens(context, self.missed, [self.missed // max(size, 1)] * size),
            local=LocalReadings(steps=self.readings),
            look=self.look(size, accept),
        )
        wish: Wish | None = self.policy(sample)
        if wish is not None and wish.mode is not self.mode:
            sampled = wish.sampled if wish.sampled is None or wish.sampled < size else None
            caught_up = self.missed if sampled is None else self.missed // size * sampled
            self.seconds += COST.drain if wish.mode is PLAIN else COST.to_speculative(caught_up)
            self.mode, self.entered_at, self.looked = wish.mode, self.step, 0
            self.sampled = sampled if self.mode is SPECULATIVE else None
            self.switches.append((self.step, self.mode))
            self.reasons.append(wish.reason)
        taken = self.slower * self.curves[self.mode].seconds(size, context)
        left_out = 0 if self.sampled is None else max(0, size - self.sampled)
        everybody = self.mode is SPECULATIVE and not left_out
        self.missed = 0 if everybody else min(self.missed + size, 200 * size)
        self.seconds += taken
        self.step += 1
        self.looked += 1
        tokens = left_out + round((size - left_out) * accept) if self.mode is SPECULATIVE else size
        self.readings = (StepReading(self.mode, size, context, tokens, taken, left_out, left_out),)
        return wish

    def look(self, size: int, accept: float) -> SampleLook | None:
        """The requests of a sample differ a little."""
        if self.sampled is None or size <= self.sampled:
            return None
        return SampleLook(
            size - self.sampled, self.sampled, self.looked, [accept - 0.1, accept + 0.1] * (self.sampled // 2)
        )

    def run(self, steps: int, size: int, accept: float) -> Server:
        for _ in range(steps):
            self.turn(size, accept)
        return self


@pytest.mark.parametrize(
    ("size", "accept", "best"),
    [(1, 1.2, PLAIN), (1, 2.0, SPECULATIVE), (64, 1.8, PLAIN), (64, 2.2, SPECULATIVE), (128, 3.5, SPECULATIVE)],
)
def test_it_settles_in_the_faster_mode(size: int, accept: float, best: Mode) -> None:
    assert Server(goodput()).run(2000, size, accept).mode is best
    assert len(Server(goodput()).run(2000, size, accept).switches) <= 1


def test_one_batch_size_two_answers() -> None:
    """What no watermark can do: at the same batch size the accept length decides."""
    server = Server(goodput()).run(500, 64, 3.0)
    assert server.switches == []
    server.run(500, 64, 1.3)
    assert [mode for _, mode in server.switches] == [PLAIN]


def test_context_decides_too() -> None:
    """A long context makes both steps longer, and drafting worth its while."""
    plain = StepTime([StepPoint(1, 0, 0.004)], 1e-7)
    speculative = StepTime([StepPoint(1, 0, 0.012)], 1e-7)
    for context, best in ((0, PLAIN), (1_000_000, SPECULATIVE)):
        server = Server(Goodput(plain, speculative, COST, 2.0, 4.0, GoodputSettings(probe_share=0.0)))
        for _ in range(500):
            server.turn(1, 2.0, context)
            server.readings = ()
        assert server.mode is best


def test_a_large_advantage_counts_sooner_than_a_small_one() -> None:
    left_at = []
    for accept in (1.0, 1.5, 1.8):
        server = Server(goodput(accept)).run(3000, 64, accept)
        ((step, _),) = server.switches
        left_at.append(step)
    assert left_at == sorted(left_at)
    assert left_at[-1] > 2 * left_at[0]


def test_a_switch_has_been_paid_for_by_what_staying_has_cost() -> None:
    server = Server(goodput(1.5)).run(3000, 64, 1.5)
    ((step, _),) = server.switches
    lost_per_step = 0.012 * (1 - 1.005 * (1.5 / 0.012) / (1 / 0.006))
    there_and_back = COST.there_and_back(64 * 32)
    assert (step - 2) * lost_per_step <= there_and_back <= (step + 2) * lost_per_step


def test_what_has_been_missed_delays_the_return() -> None:
    delays = []
    for missed in (0, 50_000):
        server = Server(goodput(2.0)).run(600, 128, 2.0)
        assert server.mode is PLAIN
        start = server.step
        while server.mode is PLAIN and server.step < start + 5000:
            server.missed = missed
            server.turn(1, 2.0)
        delays.append(server.step - start)
    assert delays[0] * 3 < delays[1] < 5000


def test_a_catch_up_that_grows_while_one_waits_is_no_reason_to_wait_longer() -> None:
    """As when a burst of new requests joins: at first hardly anything is missing, and each step adds to it."""
    policy = goodput(2.0)
    server = Server(policy).run(600, 128, 2.0)
    assert server.mode is PLAIN
    server.missed, start = 0, server.step
    while server.mode is PLAIN and server.step < start + 2000:
        server.turn(50, 2.0)  # half a millisecond is lost each step, and a whole one added to the catch-up
    assert server.mode is SPECULATIVE
    plain, speculative = PLAIN_TIME.seconds(50, 0), SPECULATIVE_TIME.seconds(50, 0)
    saved = plain - 1.005 * speculative / 2.0
    assert COST.there_and_back(0) <= (server.step - start) * saved <= 2 * COST.there_and_back(0)


def test_an_advantage_within_the_hysteresis_never_counts() -> None:
    assert Server(goodput(1.97, hysteresis=0.05)).run(5_000, 64, 1.97).switches == []
    assert Server(goodput(1.97, hysteresis=0.0)).run(5_000, 64, 1.97).mode is PLAIN


def test_a_batch_that_alternates_around_the_break_even_stays_where_it_is() -> None:
    server = Server(Dwell(goodput(2.25), 32))
    for turn in range(10_000):
        server.turn((84, 108)[turn % 2], 2.25)  # 96 is the break-even
    assert len(server.switches) <= 1


@given(
    load=st.lists(st.tuples(st.sampled_from([1, 64, 128]), st.sampled_from([1.0, 1.8, 3.5])), min_size=2, max_size=6),
    dwell=st.integers(1, 64),
    span=st.integers(1, 400),
)
@settings(max_examples=30, deadline=None)
def test_at_most_one_switch_per_dwell_under_any_load(load: list[tuple[int, float]], dwell: int, span: int) -> None:
    server = Server(Dwell(goodput(dwell_steps=dwell, probe_share=0.009, reinvested=0.5), dwell))
    for size, accept in load * 3:
        server.run(span, size, accept)
    changes = [*zip(server.switches, server.reasons, strict=True)]
    for ((entered, mode), reason), ((left, _), _) in pairwise(changes):
        is_look = mode is SPECULATIVE and reason.startswith("probe")
        assert left - entered >= (min(dwell, 3) if is_look else dwell)
    for number, (earlier, _) in enumerate(server.switches):
        for further, (later, _) in enumerate(server.switches[number:]):
            assert later - earlier >= (further - 1) * dwell


@pytest.mark.parametrize(("size", "steps"), [(1, 20), (8, 16), (64, 16), (128, 16)])
def test_a_new_kind_of_traffic_is_noticed_within_the_stated_steps(size: int, steps: int) -> None:
    """From an accept length that all but fills the draft to one that fills next to none of it."""
    server = Server(Dwell(goodput(), 32)).run(1000, size, 3.6)
    assert server.switches == []
    server.run(steps, size, 1.05)
    assert server.mode is PLAIN


class TestProbes:
    def low_then_high(self, steps: int, **changes: Any) -> Server:
        """A server that has learnt in PLAIN's favour while the text was hard, and easy text since."""
        server = Server(Dwell(goodput(**changes), 32)).run(600, 64, 1.2)
        assert server.mode is PLAIN
        return server.run(steps, 64, 3.5)

    def test_find_out_that_speculation_pays_again(self) -> None:
        server = self.low_then_high(20_000, probe_share=0.005)
        assert server.mode is SPECULATIVE
        assert any(reason.startswith("probe") for reason in server.reasons)

    def test_without_them_it_is_never_known(self) -> None:
        assert self.low_then_high(5_000).mode is PLAIN

    @pytest.mark.parametrize("share", [0.002, 0.005, 0.009])
    @pytest.mark.parametrize("size", [1, 64])
    def test_cost_less_than_their_share_where_they_find_nothing(self, share: float, size: int) -> None:
        settled = Server(Dwell(goodput(), 32)).run(40_000, size, 1.0)
        probing = Server(Dwell(goodput(probe_share=share, reinvested=0.5), 32)).run(40_000, size, 1.0)
        assert settled.mode is PLAIN
        assert len(probing.switches) >= 3
        assert settled.seconds < probing.seconds <= settled.seconds * (1 + share)

    @pytest.mark.parametrize("below", [0.04, 0.1])
    def test_cost_about_their_share_where_chance_often_finds_too_much(self, below: float) -> None:
        """One request, whose accept length is just below the break-even of 1.5: a look may go on as a stay."""
        lost = seconds = 0.0
        for seed in range(4):
            server, random = Server(Dwell(goodput(probe_share=0.005, reinvested=0.5), 32)), Random(seed)
            for _ in range(30_000):
                was = server.mode
                server.turn(1, 1 + sum(random.random() < (0.5 - below) / 3 for _ in range(3)))
                if was is SPECULATIVE is server.mode and server.step > 1000:
                    lost += 0.006 - (1.5 - below) * 0.004
            lost += sum(COST.there_and_back(200) for _, mode in server.switches if mode is SPECULATIVE)
            seconds += server.seconds
        assert 0.001 < lost / seconds < 0.0065

    def test_do_not_end_by_what_a_smaller_batch_has_shown(self) -> None:
        """A look begins while few requests run, and what one of them gets says little; then the batch grows."""
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        wishes = [turn(SPECULATIVE, 1, steps, accept=1.0) for steps in range(1, 5)]
        wishes += [turn(SPECULATIVE, 128, steps, accept=3.0) for steps in range(5, 30)]
        assert not any(wish is not None and wish.at_once for wish in wishes)
        assert wishes[-1] is None

    def test_are_forgotten_when_the_server_runs_empty(self) -> None:
        """It changes its mode for nothing then, and chooses anew."""
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        turn(PLAIN, 0, 20_000)
        wishes = [turn(SPECULATIVE, 128, steps, accept=1.9) for steps in range(1, 4)]
        assert any(wish is not None and wish.mode is PLAIN and wish.at_once for wish in wishes)

    def test_are_paid_for_where_nothing_is_read_of_them(self) -> None:
        policy = Dwell(goodput(2.0, probe_share=0.005, reinvested=0.5), 32)
        mode, entered, looks = SPECULATIVE, 0, 0
        for step in range(60_000):
            wish = policy(LoadSample(mode, 8, 0, step, step - entered, 1.2))
            if wish is not None and wish.mode is not mode:
                mode, entered = wish.mode, step
                looks += mode is SPECULATIVE
        assert 2 <= looks <= 16

    def test_are_not_made_where_no_accept_length_could_help(self) -> None:
        hopeless = StepTime([StepPoint(1, 0, 0.02)], 0.0)
        server = Server(Dwell(Goodput(PLAIN_TIME, hopeless, COST, 2.5, 4.0), 32), speculative=hopeless)
        server.run(20_000, 1, 2.5)
        assert [mode for _, mode in server.switches] == [PLAIN]

    def test_are_paid_for_by_what_speculation_has_gained_and_grow_rarer(self) -> None:
        policy = Dwell(goodput(reinvested=0.5, probes_ahead=4.0), 32)
        server = Server(policy).run(3000, 64, 3.5).run(12_000, 64, 1.2)
        probes = [step for step, mode in server.switches if mode is SPECULATIVE]
        gaps = [later - earlier for earlier, later in pairwise(probes)]
        assert len(probes) >= 10
        assert gaps[-1] > 2 * gaps[0]
        settled = Server(Dwell(goodput(), 32)).run(3000, 64, 3.5).run(12_000, 64, 1.2)
        assert server.seconds - settled.seconds < 4.0 * 0.6

    def test_follow_a_change_of_text_by_what_was_best_before_it(self) -> None:
        """Less was accepted all along than before the change: that is how much may be overlooked."""
        gaps = []
        for easy in (2.6, 3.8):
            server = Server(Dwell(goodput(2.2, reinvested=0.5), 32)).run(4000, 64, easy).run(2000, 64, 1.2)
            (_, left), (probed, mode), *_ = ((step, mode) for step, mode in server.switches)
            assert left is PLAIN
            assert mode is SPECULATIVE
            gaps.append(probed - server.switches[0][0])
        assert gaps[1] < 0.7 * gaps[0]

    def test_are_not_made_of_plain_because_the_text_has_just_become_harder(self) -> None:
        """The time that went before was no time in which PLAIN might have won."""
        server = Server(Dwell(goodput(probe_share=0.005), 32)).run(3000, 64, 3.6)
        assert server.switches == []
        server.run(400, 64, 2.2)
        assert server.switches == []

    def test_end_where_they_came_from_unless_they_find_something_new(self) -> None:
        """The load goes up and down around the break-even.  PLAIN has been the better on the whole; that speculation
        is so for the batch at which the probe ends is nothing new."""
        server = Server(Dwell(goodput(2.25, probe_share=0.005, reinvested=0.5), 32))
        stays = []
        for turn in range(60_000):
            server.turn(84 if turn // 100 % 3 == 0 else 115, 2.25)  # 96 is the break-even
        for (entered, mode), (left, _) in pairwise(server.switches):
            if mode is SPECULATIVE:
                stays.append(left - entered)
        assert len(stays) >= 2
        assert server.mode is PLAIN
        assert max(stays) <= 40

    @staticmethod
    def asked_for(policy: Goodput) -> Callable[..., Wish | None]:
        """Until the policy wishes for a probe; what makes it turns, without obeying."""
        step = 0

        def turn(mode: Mode, size: int, steps_in_mode: int, missed: int = 0, accept: float = 1.9) -> Wish | None:
            nonlocal step
            step += 1
            curve = PLAIN_TIME if mode is PLAIN else SPECULATIVE_TIME
            tokens = size if mode is PLAIN else round(accept * size)
            local = LocalReadings(steps=(StepReading(mode, size, 0, tokens, curve.seconds(size, 0)),))
            batch = KnownTokens(0, missed)
            return policy(LoadSample(mode, size, 0, step, steps_in_mode, None, batch=batch, local=local))

        for steps in range(200):
            turn(SPECULATIVE, 64, steps)
        wishes = (turn(PLAIN, 64, steps) for steps in range(20_000))
        wish = next(wish for wish in wishes if wish is not None)
        assert "probe" in wish.reason
        return turn

    def test_stay_probes_when_the_return_comes_later(self) -> None:
        """A prefill goes first, and adds to what is missing until no probe would be begun any more."""
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        for missed in (100, 200, 300):
            wish = turn(PLAIN, 64, 20_000, missed)
            assert wish is not None
            assert wish.mode is SPECULATIVE
        back = [turn(SPECULATIVE, 32, steps) for steps in range(1, 33)]  # at 32 requests speculation wins by a little
        assert back[-1] is not None, "a probe that finds nothing new ends after one dwell"
        assert back[-1].mode is PLAIN

    def test_stay_probes_where_the_return_pays_for_a_moment(self) -> None:
        """The batch runs out, with much missed, just when the return comes; then it is as large as before."""
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        turn(PLAIN, 4, 20_000, 100_000)
        wishes = [turn(SPECULATIVE, 128, steps, accept=1.3) for steps in range(1, 8)]
        assert any(wish is not None and wish.mode is PLAIN and wish.at_once for wish in wishes)

    def test_that_began_with_few_requests_end_by_what_all_show_that_came_since(self) -> None:
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        turn(PLAIN, 4, 20_000)
        few = [turn(SPECULATIVE, 4, steps, accept=1.3) for steps in range(1, 4)]
        more = [turn(SPECULATIVE, 128, steps, accept=1.3) for steps in range(4, 9)]
        assert not any(wish is not None and wish.at_once for wish in few)
        assert any(wish is not None and wish.mode is PLAIN and wish.at_once for wish in more)

    def test_do_not_begin_while_a_batch_is_short_of_its_next_requests(self) -> None:
        """Answers are equally long, so that their requests come and go in waves."""
        server = Server(Dwell(goodput(3.0, probe_share=0.009, reinvested=0.5), 32)).run(4000, 128, 3.4)
        begun = []
        for turn in range(30_000):
            size = 6 if turn % 300 < 6 else 128
            switches = len(server.switches)
            server.turn(size, 1.3)
            begun += [size] * (len(server.switches) > switches and server.mode is SPECULATIVE)
        assert len(begun) >= 5
        assert set(begun) == {128}

    @pytest.mark.parametrize(("size", "missed"), [(64, 100_000), (128, 60)])
    def test_are_given_up_when_they_would_cost_far_more_than_was_thought(self, size: int, missed: int) -> None:
        turn = self.asked_for(goodput(3.0, probe_share=0.009))
        wish = turn(PLAIN, size, 20_000, missed)
        assert wish is not None
        assert wish.mode is PLAIN
        assert turn(PLAIN, size, 20_000, missed) is None

    @pytest.mark.parametrize(("accept", "usual"), [(1.0, 8), (1.4, 16)])
    def test_end_as_soon_as_chance_cannot_explain_what_they_find(self, accept: float, usual: int) -> None:
        """At 64 requests 2 is the break-even; their tokens differ as those of texts do."""
        policy = Dwell(goodput(2.2, probe_share=0.009, reinvested=0.5), 32)
        server, random = Server(policy), Random(1)
        for easy in [True] * 4000 + [False] * 30_000:
            server.turn(64, 3.0 if easy else accept + random.gauss(0.0, 0.1) * (accept > 1.0))
        changes = zip(pairwise(server.switches), server.reasons, strict=False)
        looks = [left - entered for ((entered, _), (left, _)), reason in changes if "probe" in reason]
        assert len(looks) >= 2
        assert max(looks) <= usual

    def test_find_a_plain_mode_that_is_faster_than_calibrated(self) -> None:
        """By the profile speculation wins by 10%; in truth plain steps take three quarters of what it says."""
        policy = Dwell(goodput(2.2, probe_share=0.005), 32)
        server = Server(policy)
        for _ in range(30_000):
            server.turn(64, 2.2)
            if server.mode is PLAIN:
                server.readings = (StepReading(PLAIN, 64, 0, 64, 0.75 * PLAIN_TIME.seconds(64, 0)),)
        assert server.mode is PLAIN
        assert server.switches[-1][0] < 25_000


class TestLooksAtASample:
    """Where the catch-up of all would cost more than twice as much as such a look."""

    @pytest.fixture
    def server(self) -> Server:
        """Easy text that speculation has gained by, then hard text through several looks."""
        policy = Dwell(goodput(2.2, probe_share=0.009, reinvested=0.5), 32)
        return Server(policy).run(2000, 64, 3.5).run(1500, 64, 1.2)

    def test_end_where_they_came_from_within_a_few_steps(self, server: Server) -> None:
        assert [mode for _, mode in server.switches[:3]] == [PLAIN, SPECULATIVE, PLAIN]
        assert all(reason.startswith("probe of 8 ") for reason in server.reasons[1::2])
        assert len(server.switches) >= 5
        looks = [left - entered for (entered, mode), (left, _) in pairwise(server.switches) if mode is SPECULATIVE]
        assert max(looks) <= 6

    def test_that_find_more_are_followed_by_a_return_of_all(self, server: Server) -> None:
        before = len(server.switches)
        server.run(1500, 64, 3.5)
        assert server.mode is SPECULATIVE
        assert server.sampled is None
        (looked, _), (left, _), (returned, _) = server.switches[before:][-3:]
        assert left - looked <= 6
        assert 32 <= left - looked + returned - left <= 200
        assert not server.reasons[-1].startswith("probe")

    def test_are_not_made_where_few_run_or_little_is_missed(self) -> None:
        policy = Dwell(goodput(2.2, probe_share=0.009, reinvested=0.5), 32)
        server = Server(policy).run(2000, 8, 3.5).run(4000, 8, 1.0)
        probes = [reason for reason in server.reasons if reason.startswith("probe")]
        assert probes
        assert not any(reason.startswith("probe of") for reason in probes)

    @pytest.mark.parametrize(("apart", "enough"), [(0.1, True), (3.0, False)])
    @pytest.mark.parametrize("accept", [1.2, 3.2])
    def test_last_until_chance_cannot_explain_what_is_found(self, apart: float, enough: bool, accept: float) -> None:
        """By how far the requests are apart: at 64 requests 2 is the break-even."""
        policy, wish = goodput(3.0, probe_share=0.009), None
        for step in range(200):
            local = LocalReadings(steps=(StepReading(SPECULATIVE, 64, 0, 90, SPECULATIVE_TIME.seconds(64, 0)),))
            policy(LoadSample(SPECULATIVE, 64, 0, step, step, None, local=local))
        for step in range(200, 10_000):
            batch = KnownTokens(0, 6400, [100] * 64)
            local = LocalReadings(steps=(StepReading(PLAIN, 64, 0, 64, PLAIN_TIME.seconds(64, 0)),))
            wish = policy(LoadSample(PLAIN, 64, 0, step, step, None, batch=batch, local=local))
            if wish is not None and wish.mode is SPECULATIVE:
                break
        assert wish is not None
        assert wish.sampled == 8
        lengths = [accept - apart / 2, accept + apart / 2] * 4
        local = LocalReadings(steps=(StepReading(SPECULATIVE, 64, 0, 56 + round(8 * accept), 0.012, 56, 56),))
        for steps in range(1, 6):
            look = SampleLook(56, 8, steps, lengths)
            wish = policy(LoadSample(SPECULATIVE, 64, 0, step + steps, steps, None, local=local, look=look))
            assert wish is not None
            assert wish.mode is PLAIN, "the others have to be caught up, whatever it finds"
        assert wish.at_once is enough

    def test_become_stays_when_nobody_is_left_out_any_more(self, server: Server) -> None:
        while server.mode is PLAIN:
            server.turn(64, 3.5)
        assert server.sampled == 8
        server.sampled = None
        server.run(200, 64, 3.5)
        assert server.mode is SPECULATIVE

    def test_end_when_nobody_is_left_to_show_more(self, server: Server) -> None:
        while server.mode is PLAIN:
            server.turn(64, 1.2)
        wish = server.policy.inner(LoadSample(SPECULATIVE, 60, 0, server.step, 1, None, look=SampleLook(56, 1, 0, ())))
        assert (wish.mode, wish.at_once) == (PLAIN, True)

    def test_that_are_not_wanted_any_more_are_given_up(self, server: Server) -> None:
        """Also where speculation would win by now: the return asked for is of a sample."""
        policy, asked = server.policy.inner, None
        while asked is None:
            server.turn(64, 1.2)
            asked = policy._asked
        assert asked.sampled == 8
        policy._probes.forget()
        policy._found, policy.accept.value = True, 3.9
        given_up = policy(LoadSample(PLAIN, 64, 0, server.step, 1000, None, batch=KnownTokens(0, 10**6)))
        assert given_up is not None
        assert (given_up.mode, given_up.sampled) == (PLAIN, None)

    def test_keep_no_record_of_the_stay_that_follows(self, server: Server) -> None:
        while server.mode is PLAIN:
            server.turn(64, 3.5)
        server.sampled = None
        server.run(500, 64, 3.5)
        assert len(server.policy.inner._probes._looked.means) <= 34

    def test_that_nobody_waits_for_end_at_once(self) -> None:
        wish = goodput()(LoadSample(SPECULATIVE, 64, 0, 1, 1, None, look=SampleLook(56, 8, 1, ())))
        assert wish is not None
        assert (wish.mode, wish.at_once) == (PLAIN, True)


def test_step_times_twice_as_long_in_both_modes_change_nothing() -> None:
    for accept, best in ((1.8, PLAIN), (2.2, SPECULATIVE)):
        assert Server(goodput(), slower=2.0).run(2000, 64, accept).mode is best


def test_wrong_calibration_is_overcome() -> None:
    """The profile says that verify steps take half of what they take: noticed while speculating."""
    wrong = StepTime([StepPoint(1, 0, 0.003), StepPoint(64, 0, 0.006), StepPoint(128, 0, 0.010)], 0.0)
    policy = Goodput(PLAIN_TIME, wrong, COST, 2.5, 4.0, GoodputSettings(probe_share=0.0))
    assert Server(policy).run(2000, 64, 1.5).mode is PLAIN


def test_without_readings_it_goes_by_the_sample() -> None:
    def sample(mode: Mode, step: int, accept: float) -> LoadSample:
        return LoadSample(mode, 64, 0, step, step, accept)

    policy = goodput()
    assert all(policy(sample(SPECULATIVE, step, 3.0)) is None for step in range(500))
    wishes = [policy(sample(SPECULATIVE, step, 1.2)) for step in range(500, 600)]
    assert any(wish is not None and wish.mode is PLAIN for wish in wishes)


def test_a_drain_is_left_alone() -> None:
    assert goodput()(LoadSample(DRAINING, 64, 0, 10, 10, 1.0)) is None


def test_a_return_asked_for_is_given_up_when_the_load_turns() -> None:
    policy = goodput(2.0)
    step = 0

    def turn(size: int) -> Wish | None:
        nonlocal step
        step += 1
        reading = StepReading(PLAIN, size, 0, size, PLAIN_TIME.seconds(size, 0))
        return policy(LoadSample(PLAIN, size, 0, step, step, None, local=LocalReadings(steps=(reading,))))

    wishes = [turn(1) for _ in range(200)]
    assert wishes[-1] is not None
    assert wishes[-1].mode is SPECULATIVE
    assert turn(128) == Wish(PLAIN, "decode batch 128, accept length 2.00: speculative 12800 tokens/s, plain 16000")
    assert turn(128) is None


@pytest.mark.parametrize(("accept", "mode", "expected"), [(2.5, PLAIN, SPECULATIVE), (1.2, SPECULATIVE, PLAIN)])
def test_an_idle_server_waits_in_the_mode_of_the_first_request(accept: float, mode: Mode, expected: Mode) -> None:
    wish = goodput(accept)(LoadSample(mode, 0, 0, 0, 0, None))
    assert wish is not None
    assert wish.mode is expected
    assert goodput(accept)(LoadSample(expected, 0, 0, 0, 0, None)) is None


class TestAServerThatHasRunEmpty:
    """It can be in either mode for nothing, so that the load that comes next chooses."""

    def test_follows_a_burst_at_once(self) -> None:
        server = Server(Dwell(goodput(), 32)).run(500, 128, 1.8)
        assert server.mode is PLAIN
        server.turn(0, 1.8)
        assert server.mode is SPECULATIVE  # where one request is served best
        begun = server.step
        server.run(400, 128, 1.8)
        (left,) = [step for step, mode in server.switches if step >= begun and mode is PLAIN]
        assert left - begun < 5

    def test_but_not_before_it_has_seen_any_text(self) -> None:
        server = Server(Dwell(goodput(1.2), 32))
        server.turn(0, 3.5)
        server.run(64, 1, 3.5)
        assert server.mode is SPECULATIVE
        assert server.switches == []

    def test_settles_again_after_a_dwell(self) -> None:
        """At a load that hovers at the break-even there are two switches at most for each time it runs empty."""
        server = Server(Dwell(goodput(), 32)).run(100, 64, 2.5)
        for _ in range(8):
            server.turn(0, 2.5)
            for turn in range(200):
                server.turn((84, 108)[turn % 2], 2.25)
        assert len(server.switches) <= 16

    def test_does_not_end_a_probe(self) -> None:
        server = Server(Dwell(goodput(2.0, probe_share=0.009, reinvested=0.5), 32)).run(500, 1, 3.5)
        server.run(3000, 128, 1.6)
        while not server.reasons[-1].startswith("probe"):
            server.turn(128, 1.6)
        begun = server.step
        server.run(1, 128, 1.6)
        server.turn(0, 1.6)
        server.run(1, 128, 1.6)
        assert server.mode is SPECULATIVE
        assert server.step - begun < 4
