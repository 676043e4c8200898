"""From timed steps to a profile.  The sweep runs against a server in simulated time; the real one has its own test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from specswitch import profile as profiles
from specswitch.calibrate import measurements as kept
from specswitch.calibrate.fit import Measured, fit_curve
from specswitch.calibrate.measurements import Measurements, Switched, Window, fit_switching, profile_of
from specswitch.calibrate.show import accept_lengths, break_even_table, step_table
from specswitch.calibrate.sweep import Plan, Sweep
from specswitch.cli import main
from specswitch.cli.calibrate import _check_graphs
from specswitch.config import SwitchConfig
from specswitch.control import PinName
from specswitch.errors import CalibrationError, ProfileError
from specswitch.signals import Mode

PROFILES = Path(__file__).parents[2] / "docs" / "benchmarks" / "profiles"
CHAIN = PROFILES / "h200-llama8b-0.5.12.post1-eagle-chain3.json"
TRUTH = profiles.load(CHAIN)
KEY = TRUTH.key


class TestFit:
    @given(
        slope=st.floats(0, 1e-6),
        bases=st.dictionaries(st.integers(1, 512), st.floats(1e-3, 0.1), min_size=1, max_size=6),
        prompts=st.lists(st.integers(0, 5000), min_size=2, max_size=4, unique=True),
    )
    def test_finds_the_line_behind_exact_measurements(
        self, slope: float, bases: dict[int, float], prompts: list[int]
    ) -> None:
        rows = [
            Measured(size, size * prompt, base + slope * size * prompt)
            for size, base in bases.items()
            for prompt in prompts
        ]
        curve = fit_curve(rows)
        assert curve.seconds_per_context_token == pytest.approx(slope, rel=1e-3, abs=1e-12)
        for point in curve.points:
            expected = bases[point.batch_size] + slope * point.context_tokens
            assert point.seconds == pytest.approx(expected, rel=1e-3)

    def test_one_context_tells_nothing_of_its_cost(self) -> None:
        curve = fit_curve([Measured(1, 100, 0.005), Measured(8, 800, 0.006)])
        assert curve.seconds_per_context_token == 0.0
        assert fit_curve([Measured(1, 100, 0.005)], 1e-8).seconds_per_context_token == 1e-8

    def test_a_stray_measurement_is_outvoted(self) -> None:
        rows = [Measured(4, 400, seconds) for seconds in (0.005, 0.0051, 0.05)]
        assert fit_curve(rows).points[0].seconds == 0.0051

    def test_steps_that_seem_faster_with_more_context_cost_none(self) -> None:
        assert fit_curve([Measured(4, 400, 0.005), Measured(4, 800, 0.004)]).seconds_per_context_token == 0.0

    def test_nothing_measured(self) -> None:
        with pytest.raises(ProfileError, match="No decode step was measured"):
            fit_curve([])


class TestSwitching:
    def test_a_line_over_the_tokens_caught_up(self) -> None:
        returns = [Switched(Mode.SPECULATIVE, 0.02 + 22e-6 * tokens, tokens) for tokens in (100, 2000, 10_000)]
        drains = [Switched(Mode.PLAIN, seconds, 0) for seconds in (0.002, 0.003, 0.9)]
        switching = fit_switching([*returns, *drains])
        assert switching.drain_seconds == 0.003
        assert switching.restart_seconds == pytest.approx(0.02)
        assert switching.catch_up_seconds_per_token == pytest.approx(22e-6)

    def test_too_little_for_a_line(self) -> None:
        assert fit_switching([]).restart_seconds == 0.0
        one = fit_switching([Switched(Mode.SPECULATIVE, 0.05, 100)] * 3)
        assert (one.restart_seconds, one.catch_up_seconds_per_token) == (0.05, 0.0)

    def test_no_line_falls(self) -> None:
        falling = [Switched(Mode.SPECULATIVE, seconds, tokens) for seconds, tokens in ((0.06, 10), (0.04, 1000))]
        switching = fit_switching(falling)
        assert (switching.restart_seconds, switching.catch_up_seconds_per_token) == (pytest.approx(0.05), 0.0)


def window(mode: Mode, size: int = 8, seconds: float = 0.005) -> Window:
    return Window(mode, size, size * 200.0, seconds, 50, 2.4 if mode is Mode.SPECULATIVE else None)


class TestMeasurements:
    def test_are_kept_and_added_to(self, tmp_path: Path) -> None:
        path = tmp_path / "m.json"
        plain = Measurements(KEY, [window(Mode.PLAIN)])
        kept.save(plain, path)
        found = kept.load(path)
        assert found == plain
        assert found.missing() == ["SPECULATIVE"]
        found.add(Measurements(KEY, [window(Mode.SPECULATIVE, seconds=0.009)]))
        assert found.missing() == []
        profile = profile_of(found)
        assert profile.accept_length == 2.4
        assert profile.speculative.points[0].seconds == 0.009
        assert "No switch was measured" in profile.source
        assert "cost of context is not known" in profile.source
        assert profile_of(found, 3.0).accept_length == 3.0

    def test_of_another_server_do_not_mix(self) -> None:
        other = msgspec.structs.replace(KEY, tp_size=2)
        with pytest.raises(CalibrationError, match="another model, GPU, release or choice of flags"):
            Measurements(KEY).add(Measurements(other))

    def test_a_mode_that_was_not_measured_is_named(self) -> None:
        with pytest.raises(CalibrationError, match="Nothing was measured in PLAIN, and"):
            profile_of(Measurements(KEY, [window(Mode.SPECULATIVE)]))

    @pytest.mark.parametrize("content", ["", "[]", '{"key": 1}'])
    def test_a_file_of_something_else(self, tmp_path: Path, content: str) -> None:
        path = tmp_path / "m.json"
        path.write_text(content)
        with pytest.raises(CalibrationError, match="holds no measurements"):
            kept.load(path)
        with pytest.raises(CalibrationError, match="No such file"):
            kept.load(tmp_path / "gone.json")
        with pytest.raises(CalibrationError, match="cannot be written"):
            kept.save(Measurements(KEY), tmp_path / "gone" / "m.json")


class SimulatedClient:
    """A server whose steps take what ``TRUTH`` says, and that answers a look in a millisecond."""

    def __init__(self, pinnable: bool = True, most: int = 10_000) -> None:
        self.pinnable = pinnable
        self.most = most
        self.now = 0.0
        self.mode = Mode.SPECULATIVE
        self.pins: list[PinName] = []
        self.steps = {Mode.SPECULATIVE: 0, Mode.PLAIN: 0}
        self.size = 0
        self.context = 0.0
        self.ends_at = 0.0
        self.missed = 0
        self.part = 0.0
        self.last: dict[str, Any] | None = None
        self.curves = {Mode.SPECULATIVE: TRUTH.speculative.step_time(), Mode.PLAIN: TRUTH.plain.step_time()}

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.part += seconds
        while self.size and self.part > 0.0:
            taken = self.curves[self.mode].seconds(self.size, self.context)
            if taken > self.part:
                break
            self.part -= taken
            self.steps[self.mode] += 1
            self.context += self.size * (2.5 if self.mode is Mode.SPECULATIVE else 1.0)
            self.missed += self.size if self.mode is Mode.PLAIN else 0
            if self.context >= self.ends_at:
                self.size = 0
        self.now += seconds

    def status(self) -> dict[str, Any]:
        self.sleep(0.001)
        return {
            "mode": self.mode.value,
            "batch_size": self.size,
            "queue_length": 0,
            "accept_length": 2.5,
            "context_tokens": self.context,
            "steps": {mode.value: steps for mode, steps in self.steps.items()},
            "last_transition": self.last,
        }

    def pin(self, name: PinName) -> None:
        if not self.pinnable:
            raise CalibrationError("409: switching has ended")
        self.pins.append(name)
        mode = {"plain": Mode.PLAIN, "speculative": Mode.SPECULATIVE}.get(name)
        if mode is not None and mode is not self.mode:
            cost = TRUTH.switching.cost()
            seconds = cost.drain if mode is Mode.PLAIN else cost.to_speculative(self.missed)
            caught_up = self.missed if mode is Mode.SPECULATIVE else 0
            self.last = {"to": mode.value, "duration_ms": 1e3 * seconds, "tokens_caught_up": caught_up}
            self.now += seconds
            self.mode, self.missed = mode, 0

    @contextmanager
    def requests(self, count: int, prompt_tokens: int, output_tokens: int) -> Iterator[None]:
        self.size = min(count, self.most)
        self.context = float(self.size * prompt_tokens)
        self.ends_at = self.size * (prompt_tokens + output_tokens)
        self.missed = 0
        yield
        self.size = 0


def swept(client: SimulatedClient, **plan: Any) -> Measurements:
    measured = Measurements(KEY)
    Sweep(client, Plan(**{"sizes": (1, 16, 128), **plan}), client.clock, client.sleep).run(measured)
    return measured


class TestSweep:
    def test_finds_the_truth(self) -> None:
        client = SimulatedClient()
        profile = profile_of(swept(client))
        for found, true in ((profile.plain, TRUTH.plain), (profile.speculative, TRUTH.speculative)):
            for size in (1, 16, 128):
                for context in (200, 1000):
                    expected = true.step_time().seconds(size, size * context)
                    assert found.step_time().seconds(size, size * context) == pytest.approx(expected, rel=0.02)
        assert profile.switching.drain_seconds == pytest.approx(TRUTH.switching.drain_seconds)
        assert profile.switching.restart_seconds == pytest.approx(TRUTH.switching.restart_seconds, rel=0.01)
        assert profile.switching.catch_up_seconds_per_token == pytest.approx(22e-6, rel=0.01)
        assert profile.accept_length == 2.5

    def test_lets_the_policy_decide_again_in_the_end(self) -> None:
        client = SimulatedClient()
        swept(client)
        assert client.pins[-1] == "configured"
        with pytest.raises(CalibrationError):
            swept(client, output_tokens=10)
        assert client.pins[-1] == "configured"

    def test_a_server_that_cannot_be_pinned(self) -> None:
        with pytest.raises(CalibrationError, match="409: switching has ended"):
            swept(SimulatedClient(pinnable=False))

    def test_requests_that_end_too_early(self) -> None:
        with pytest.raises(CalibrationError, match="raise --output-tokens"):
            swept(SimulatedClient(), output_tokens=20)

    def test_a_batch_that_does_not_come_about(self) -> None:
        with pytest.raises(CalibrationError, match="did not come to 128 requests within 5 s"):
            swept(SimulatedClient(most=64), patience_seconds=5.0)


class TestCommand:
    def run(self, *arguments: str) -> Any:
        return CliRunner().invoke(main, ["calibrate", *arguments])

    def test_shows_a_profile_and_draws_it(self, tmp_path: Path) -> None:
        picture = tmp_path / "p.png"
        result = self.run("--profile", str(CHAIN), "--picture", str(picture), "--context", "256")
        assert result.exit_code == 0, result.output
        assert "2.34" in result.output
        assert "158" in result.output
        assert picture.read_bytes().startswith(b"\x89PNG")

    def test_makes_a_profile_of_measurements(self, tmp_path: Path) -> None:
        rows, out = tmp_path / "m.json", tmp_path / "p.json"
        kept.save(swept(SimulatedClient()), rows)
        result = self.run("--measurements", str(rows), "--out", str(out), "--accept-length", "2.2")
        assert result.exit_code == 0, result.output
        assert json.loads(out.read_text())["accept_length"] == 2.2
        assert profiles.load(out).key == KEY

    @pytest.mark.parametrize(
        ("arguments", "code", "why"),
        [
            ([], 1, "name a URL, --measurements or --profile"),
            (["http://127.0.0.1:9"], 1, "does not answer http://127.0.0.1:9/server_info"),
            (["--sizes", "1,x"], 2, "is no list of numbers"),
            (["--sizes", "0"], 2, "is no list of numbers"),
        ],
    )
    def test_errors_are_sentences(self, arguments: list[str], code: int, why: str) -> None:
        result = self.run(*arguments)
        assert result.exit_code == code
        assert why in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("config", "graphs", "largest", "refused"),
    [
        (SwitchConfig(), True, 32, False),
        (SwitchConfig(), True, 33, True),
        (SwitchConfig(), False, 33, False),
        (SwitchConfig(policy="goodput"), True, 256, False),
        (SwitchConfig(mode="speculative"), True, 256, False),
        (SwitchConfig(mode="plain"), True, 2, True),
    ],
)
def test_verify_steps_that_would_run_without_graphs_are_not_measured(
    config: SwitchConfig, graphs: bool, largest: int, refused: bool
) -> None:
    status = {"config": config.as_dict(), "key": {"cuda_graphs": graphs}}
    with pytest.raises(CalibrationError, match="lower --sizes") if refused else nullcontext():
        _check_graphs(status, largest)


def test_tables_name_the_extremes() -> None:
    assert accept_lengths(TRUTH) == [1.5, 2.0, 2.5, 3.0, 3.5, 4.0]
    table = break_even_table(TRUTH, 256)
    first, *_, last = table.columns[1].cells
    assert (first, last) == ("nowhere", "256 and perhaps beyond")
    assert step_table(TRUTH, 256).row_count == len(TRUTH.plain.points)
