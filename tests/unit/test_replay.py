"""Loads replayed on simulated servers: the simulation itself, and what the policies make of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from specswitch import profile as profiles
from specswitch.cli import main
from specswitch.config import SwitchConfig
from specswitch.errors import ReplayError
from specswitch.profile import Curve, Prefill, Profile
from specswitch.replay.load import ClosedLoop, Load, OpenLoop, Request, between, read_trace, steps
from specswitch.replay.run import compare, replay
from specswitch.replay.server import Limits, Noise
from specswitch.replay.synthetic import LOADS, VARIANTS, jitter, ramp, random_turns

PROFILES = Path(__file__).parents[2] / "docs" / "benchmarks" / "profiles"
QUIET = Noise(step_time=0.0, hiccups=0.0, accept=False)


def server(name: str = "h200-llama8b-0.5.12.post1-eagle-chain3", variant: str | None = None) -> Profile:
    """A shipped profile whose prefills take no time: what is compared is decoding alone."""
    profile = msgspec.structs.replace(profiles.load(PROFILES / f"{name}.json"), prefill=Prefill(0.0, 0.0))
    return VARIANTS[variant](profile) if variant else profile


def closed(size: int, accept: float, seconds: float, **fields: Any) -> Callable[[], Load]:
    return lambda: ClosedLoop("closed", lambda now: size, lambda now: accept, seconds, **fields)


class TestLoads:
    def test_over_time(self) -> None:
        line = between((0, 1), (10, 11), (20, 1))
        assert [line(now) for now in (-1, 0, 5, 10, 15, 30)] == [1, 1, 6, 11, 6, 1]
        stairs = steps(3.5, (10, 1.5), (20, 2.5))
        assert [stairs(now) for now in (0, 9.9, 10, 19, 20, 99)] == [3.5, 3.5, 1.5, 1.5, 2.5, 2.5]

    def test_a_trace(self, tmp_path: Path) -> None:
        path = tmp_path / "trace.csv"
        path.write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n"
            "2023-11-16 18:15:50.6805900,374,44\n"
            "2023-11-16 18:15:46.6805900,10,0\n"
            "2023-11-16 18:17:46.6805900,10,5\n"
        )
        load = read_trace(path, speed=2.0, accept_length=lambda now: 2.5)
        assert load.requests == [Request(0.0, 10, 1), Request(2.0, 374, 44), Request(60.0, 10, 5)]
        assert load.duration == 60.0
        assert read_trace(path, 1.0, lambda now: 2.5, minutes=0.1).requests[-1] == Request(4.0, 374, 44)
        assert [load.arrivals(now, 0) for now in (0.0, 1.0, 60.0)] == [
            [Request(0.0, 10, 1)],
            [],
            [Request(2.0, 374, 44), Request(60.0, 10, 5)],
        ]
        assert load.next_arrival(60.0) is None

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            ("a,b\n1,2\n", "has no column 'TIMESTAMP'"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\nsoon,1,2\n", "holds a row that is no request"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1\n", "holds a row that is no request"),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ],
    )
    def test_a_file_that_is_no_trace(self, tmp_path: Path, content: str, why: str) -> None:
        path = tmp_path / "trace.csv"
        path.write_text(content)
        with pytest.raises(ReplayError, match=why):
            read_trace(path, 1.0, lambda now: 2.5)
        with pytest.raises(ReplayError, match="No such file"):
            read_trace(tmp_path / "gone.csv", 1.0, lambda now: 2.5)

    def test_a_closed_loop_keeps_its_concurrency(self) -> None:
        outcome = replay("never", closed(40, 2.5, 5.0), server(), noise=QUIET)
        assert {slot["batch_size"] for slot in outcome.timeline[1:]} <= {38, 39, 40}


class TestServer:
    """Without noise the simulation can be worked out on paper."""

    @pytest.mark.parametrize(("size", "accept"), [(1, 2.5), (64, 1.5), (256, 3.5)])
    def test_steady_throughput_is_that_of_the_profile(self, size: int, accept: float) -> None:
        profile = server()
        load = closed(size, accept, 20.0, output_tokens=1000)
        plain = replay("never", load, profile, noise=QUIET)
        speculative = replay("always", load, profile, noise=QUIET)
        context = size * (128 + 500)
        expected = size / profile.plain.step_time().seconds(size, context)
        assert plain.tokens_per_second == pytest.approx(expected, rel=0.03)
        expected = accept * size / profile.speculative.step_time().seconds(size, context)
        assert speculative.tokens_per_second == pytest.approx(expected, rel=0.03)

    def test_every_request_gets_all_its_tokens_and_no_more(self) -> None:
        requests = [Request(0.1 * number, 50, 1 + number % 7 * 13) for number in range(100)]

        def load() -> Load:
            return OpenLoop("fixed", requests, lambda now: 2.7, 200.0)

        for contender in ("always", "never", "goodput", "watermark", "oracle"):
            outcome = replay(contender, load, server(), noise=Noise(), limits=Limits(running_requests=8))
            assert outcome.tokens == pytest.approx(sum(request.output_tokens for request in requests))

    def test_the_batch_stays_within_its_limits(self) -> None:
        requests = [Request(0.0, 900, 100)] * 50
        limits = Limits(running_requests=20, kv_tokens=10_000)
        outcome = replay("never", lambda: OpenLoop("burst", requests, lambda now: 2.0, 5.0), server(), limits=limits)
        assert max(slot["batch_size"] for slot in outcome.timeline) == 10

    def test_switching_costs_time(self) -> None:
        """Batches of 1 and 200 in turn, so that the watermarks switch: dearer switches, fewer tokens."""
        profile = server()
        dear = msgspec.structs.replace(
            profile, switching=msgspec.structs.replace(profile.switching, drain_seconds=0.5, restart_seconds=0.5)
        )

        def load() -> Load:
            return ClosedLoop("waves", lambda now: 200 if int(now / 5) % 2 else 1, lambda now: 2.5, 20.0)

        cheap_run, dear_run = replay("watermark", load, profile), replay("watermark", load, dear)
        assert cheap_run.switches == dear_run.switches >= 3
        assert dear_run.tokens < 0.95 * cheap_run.tokens

    def test_what_is_missed_in_plain_is_caught_up_on_return(self) -> None:
        profile = server()
        dear = msgspec.structs.replace(
            profile, switching=msgspec.structs.replace(profile.switching, catch_up_seconds_per_token=1e-3)
        )

        def load() -> Load:
            return ClosedLoop("fall", between((4.0, 40), (4.1, 8)), lambda now: 2.5, 12.0, output_tokens=400)

        cheap_run, dear_run = replay("watermark", load, profile), replay("watermark", load, dear)
        assert cheap_run.switches == dear_run.switches == 2
        assert dear_run.tokens < cheap_run.tokens - 500

    def test_the_same_seed_gives_the_same_outcome(self) -> None:
        first, second, other = (
            replay("goodput", closed(64, 1.8, 5.0), server(), seed=seed).tokens for seed in (1, 1, 2)
        )
        assert first == second != other


# Load, server, and what is made of the server.
CASES = [
    *(("ramp", name, None) for name in ("h200-llama8b-0.5.12.post1-eagle-chain3", "h200-llama8b-0.5.17-eagle3-chain3")),
    ("ramp", "h200-llama8b-0.5.17-eagle3-tree16", None),
    *(("ramp", "h200-llama8b-0.5.12.post1-eagle-chain3", variant) for variant in VARIANTS),
    *(("low", "h200-llama8b-0.5.17-eagle3-chain3", variant) for variant in (None, "always-wins")),
    *(("high", "h200-llama8b-0.5.17-eagle3-chain3", variant) for variant in (None, "never-wins")),
    ("context", "h200-llama8b-0.5.12.post1-eagle-chain3", "wins-at-long-context"),
]


@pytest.mark.parametrize(("load", "name", "variant"), CASES)
def test_goodput_comes_close_to_the_oracle_and_never_below_the_better_static(
    load: str, name: str, variant: str | None
) -> None:
    profile = server(name, variant)
    seconds = 240.0 if load == "ramp" else 60.0
    made: Callable[..., Load] = LOADS[load]
    outcomes = compare(lambda: made(profile, seconds), profile, contenders=("goodput", "always", "never", "oracle"))
    rate = {contender: outcome.tokens_per_second for contender, outcome in outcomes.items()}
    assert rate["goodput"] >= 0.97 * rate["oracle"]
    assert rate["goodput"] >= 0.99 * max(rate["always"], rate["never"])


class TestOracles:
    @pytest.mark.parametrize("accept", [1.2, 3.5])
    def test_one_that_has_to_look_needs_no_look_at_a_text_that_does_not_change(self, accept: float) -> None:
        load = closed(64, accept, 20.0)
        knows, looks = (replay("oracle", load, server(), look_every=every) for every in (None, 1e9))
        assert looks.tokens == pytest.approx(knows.tokens)

    def test_a_look_costs_a_return_and_a_dwell_and_tells(self) -> None:
        """The text becomes easy after ten seconds, and a look is taken every four."""
        profile = server()

        def load() -> Load:
            return ClosedLoop("closed", lambda now: 64, steps(1.2, (10.0, 3.3)), 20.0)

        knows, looks = (replay("oracle", load, profile, noise=QUIET, look_every=every) for every in (None, 4.0))
        assert knows.switches == 2
        assert looks.switches == 6, "two looks in vain, and one that is none"
        assert [slot["plain"] for slot in looks.timeline if 10.5 < slot["seconds"] < 12.0] == [1.0] * 14
        assert {slot["plain"] for slot in looks.timeline if slot["seconds"] > 14.0} == {0.0}
        assert looks.tokens < 0.97 * knows.tokens

    def test_goodput_comes_close_to_one_that_has_to_look(self) -> None:
        profile = server("h200-llama8b-0.5.17-eagle3-chain3")
        shares = []
        for seed in range(3):
            load = partial(random_turns, seed)
            best = max(replay("oracle", load, profile, look_every=every).tokens for every in (4.0, 6.0, 8.0))
            shares.append(replay("goodput", load, profile).tokens / best)
        assert sum(shares) / len(shares) >= 0.98


@pytest.mark.parametrize("name", ["h200-llama8b-0.5.12.post1-eagle-chain3", "h200-llama8b-0.5.17-eagle3-chain3"])
def test_jitter_at_the_break_even(name: str) -> None:
    profile = server(name)
    outcomes = compare(lambda: jitter(profile, 60.0), profile, contenders=("goodput", "always", "never"))
    rate = {contender: outcome.tokens_per_second for contender, outcome in outcomes.items()}
    assert rate["goodput"] >= 0.98 * max(rate["always"], rate["never"])
    assert outcomes["goodput"].switches <= 10


@pytest.mark.parametrize("factor", [0.6, 1.6])
@pytest.mark.parametrize(("size", "accept"), [(64, 2.5), (64, 1.5), (128, 2.5), (8, 1.2)])
def test_a_wrong_profile_is_found_out_in_service(factor: float, size: int, accept: float) -> None:
    """The policy goes by verify steps 40% too short or 60% too long."""
    truth = server()
    points = [msgspec.structs.replace(p, seconds=p.seconds * factor) for p in truth.speculative.points]
    believed = msgspec.structs.replace(
        truth, speculative=Curve(points, truth.speculative.seconds_per_context_token * factor)
    )
    load = closed(size, accept, 40.0)
    rate = replay("goodput", load, truth, believed=believed).tokens_per_second
    best = max(replay(contender, load, truth).tokens_per_second for contender in ("always", "never"))
    assert rate >= 0.985 * best


def test_watermarks_are_those_of_the_configuration() -> None:
    profile = server()
    low = replay("watermark", closed(40, 2.5, 5.0), profile)
    high = replay("watermark", closed(40, 2.5, 5.0), profile, SwitchConfig(high_watermark=64, low_watermark=48))
    assert (low.switches, high.switches) == (1, 0)


class TestCommand:
    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["replay", *arguments])

    def profile(self) -> str:
        return str(PROFILES / "h200-llama8b-0.5.12.post1-eagle-chain3.json")

    def trace(self, folder: Path) -> str:
        path = folder / "trace.csv"
        lines = [f"2023-11-16 18:{second // 60:02}:{second % 60:02}.5,200,90" for second in range(240)]
        path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))
        return str(path)

    def test_table_json_and_picture(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        result = self.run(self.trace(tmp_path), "--profile", self.profile(), "--speed", "60", "--out", str(out))
        assert result.exit_code == 0, result.output
        for word in ("goodput", "watermark", "always", "never", "oracle", "of better static"):
            assert word in result.output
        (outcomes,) = json.loads((out / "outcomes.json").read_text()).values()
        assert set(outcomes) == {"goodput", "watermark", "always", "never", "oracle"}
        assert outcomes["oracle"]["of_oracle"] == 1.0
        (picture,) = out.glob("*.png")
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_json_alone(self, tmp_path: Path) -> None:
        given = [self.trace(tmp_path), "--profile", self.profile(), "--speed", "60", "--variant", "never-wins"]
        result = self.run(*given, "--contender", "goodput", "--accept-length", "3.5,1:1.5", "--json")
        assert result.exit_code == 0, result.output
        assert len(json.loads(result.stdout)) == 2

    @pytest.mark.parametrize(
        ("arguments", "why"),
        [
            (["nowhere.csv"], "neither a file nor one of ramp, jitter, low, high, turns, context"),
            (["ramp", "--high-watermark", "8"], "The low watermark 24"),
            (["ramp", "--accept-length", "high"], "--accept-length is 'high'"),
            (["ramp", "--profile", "gone.json"], "cannot be read"),
        ],
    )
    def test_errors_are_sentences(self, arguments: list[str], why: str) -> None:
        result = self.run("--profile", self.profile(), *arguments)
        assert result.exit_code == 1
        assert why in result.output
        assert "Traceback" not in result.output


def test_every_synthetic_load_and_server_can_be_replayed() -> None:
    for variant in VARIANTS:
        profile = server(variant=variant)
        for made in LOADS.values():
            load = made(profile)
            assert load.duration >= 60.0
            assert load.accept_length(load.duration / 2) >= 1.0
    assert ramp(server()).name == "ramp"
