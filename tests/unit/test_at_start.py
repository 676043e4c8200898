"""A server's own calibration: what it measures, what it leaves out, where it keeps it, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pytest_mock import MockerFixture

from specswitch import profile as profiles
from specswitch.calibrate import at_start, cache
from specswitch.calibrate.at_start import Room, calibrate, is_due, long_batch, measure, sizes_for
from specswitch.calibrate.measurements import Measurements, profile_of
from specswitch.config import SwitchConfig
from specswitch.errors import CalibrationError, ProfileError
from specswitch.profile_source import ProfileSource
from tests.unit.test_calibrate import KEY, SimulatedClient

AMPLE = Room(requests=4096, slots=1_000_000, tokens=8192)
GOODPUT = SwitchConfig(policy="goodput")


@pytest.mark.parametrize(
    ("room", "graphs", "expected"),
    [
        (AMPLE, (), [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]),
        (AMPLE, (1, 2, 4, 6, 12, 20), [1, 2, 4, 12, 20]),
        (AMPLE._replace(requests=10), range(1, 33), [1, 2, 4, 8, 10]),
        (AMPLE._replace(requests=3), (), [1, 2]),
        (AMPLE._replace(slots=4096), (), [1, 2, 4, 8]),
        (AMPLE._replace(slots=100), (1, 2), [1]),
    ],
)
def test_sizes_are_captured_ones_that_the_server_can_hold(
    room: Room, graphs: Sequence[int], expected: list[int]
) -> None:
    assert sizes_for(room, graphs) == expected


def measured_by(client: SimulatedClient, room: Room = AMPLE) -> tuple[Measurements, list[str]]:
    said: list[str] = []
    graphs = range(1, 129)
    measure(client, found := Measurements(KEY), room, graphs, said.append, client.clock, client.sleep)
    return found, said


def test_both_modes_at_every_size_within_seconds() -> None:
    client = SimulatedClient()
    found, said = measured_by(client)
    assert [window.batch_size for window in found.windows][::2] == [1, 2, 4, 8, 16, 32, 64, 128, 128]
    assert said[-1] == "128 requests, prompts of 1024 tokens"
    assert client.now < 15.0
    assert client.pins[-1] == "configured"
    assert profile_of(found).plain.seconds_per_context_token > 0.0


def test_context_is_measured_at_the_largest_size_that_has_room_for_it() -> None:
    sizes = [1, 64, 128, 256]
    assert long_batch(AMPLE, sizes) == [(256, 1024)]
    assert long_batch(AMPLE._replace(slots=130_000), sizes) == [(128, 594)]
    assert long_batch(AMPLE._replace(slots=130_000, tokens=1024), sizes) == [(128, 594)]
    assert long_batch(AMPLE._replace(slots=600), sizes) == []


def test_what_the_server_cannot_run_is_left_out() -> None:
    found, said = measured_by(SimulatedClient(most=16))
    assert {window.batch_size for window in found.windows} == {1, 2, 4, 8, 16}
    assert said[-1].startswith("left out 32 requests and more: ")
    with pytest.raises(CalibrationError, match="did not come to 1 requests"):
        measured_by(SimulatedClient(most=0))


def test_it_ends_in_time(mocker: MockerFixture) -> None:
    mocker.patch.object(at_start, "_BUDGET_SECONDS", 1.0)
    found, said = measured_by(SimulatedClient())
    assert found.windows
    assert said[-1].startswith("out of time before ")


@pytest.mark.parametrize(
    ("settings", "due"),
    [
        ({"policy": "goodput"}, True),
        ({"policy": "goodput", "calibrate": "always", "mode": "observe"}, True),
        ({"policy": "goodput", "profile": "p.json"}, False),
        ({"policy": "goodput", "profile": "p.json", "calibrate": "never"}, False),
        ({"policy": "goodput", "mode": "plain"}, False),
        ({}, False),
    ],
)
def test_when_it_is_due(settings: dict[str, Any], due: bool) -> None:
    assert is_due(SwitchConfig(**settings)) is due


class WholeServer(SimulatedClient):
    """As :class:`ServerClient` sees one that has just come up."""

    profile: str | None = None
    used = False

    def info(self) -> dict[str, Any]:
        return {"max_req_input_len": 8000}

    def status(self) -> dict[str, Any]:
        admission = {"max_running_requests": 2, "kv_slots": 100_000}
        return super().status() | {"profile": self.profile, "admission": admission, "graph_sizes": []}

    def key(self) -> Any:
        return KEY

    def warm_up(self) -> None:
        self.pin("plain")

    def use_profile(self) -> None:
        self.used = True


class TestCalibrate:
    @pytest.fixture
    def server(self, mocker: MockerFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WholeServer:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        server = WholeServer()
        sweep = at_start.Sweep
        mocker.patch.object(at_start, "Sweep", lambda client, plan, *_: sweep(client, plan, server.clock, server.sleep))
        return server

    def told(self, server: Any, config: SwitchConfig = GOODPUT) -> tuple[list[str], list[str]]:
        said: list[str] = []
        warned: list[str] = []
        calibrate(server, config, said.append, warned.append)
        return said, warned

    def test_keeps_the_profile_and_has_it_used(self, server: WholeServer) -> None:
        said, warned = self.told(server)
        assert warned == []
        path = cache.path_for(KEY)
        assert said[-1].endswith(f"the profile is {path}")
        assert profiles.load(path).key == KEY
        assert [found.name for found in path.parent.iterdir()] == [path.name]
        assert server.used

    def test_a_server_that_has_one_measures_nothing_unless_always(self, server: WholeServer) -> None:
        server.profile = "p.json"
        assert self.told(server) == ([], [])
        said, _ = self.told(server, SwitchConfig(policy="goodput", calibrate="always"))
        assert server.used
        assert said

    def test_what_fails_is_said_once_and_leaves_no_pin(self, server: WholeServer, mocker: MockerFixture) -> None:
        server.most = 0
        _, warned = self.told(server)
        assert len(warned) == 1
        assert warned[0].startswith(
            "The calibration at start failed, and the server goes by its watermarks: The server"
        )
        assert server.pins[-1] == "configured"
        mocker.patch.object(server, "info", side_effect=KeyError("surprise"))
        assert len(self.told(server)[1]) == 1


class TestProfileSource:
    def test_what_the_operator_names_must_be_usable(self) -> None:
        config = SwitchConfig(policy="goodput", profile="gone.json")
        with pytest.raises(ProfileError, match=r"gone\.json cannot be read"):
            ProfileSource(config, KEY, print).at_start()
        assert ProfileSource(SwitchConfig(profile="gone.json"), KEY, print).at_start() is None

    def test_what_was_measured_is_used_again(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        warned: list[str] = []
        source = ProfileSource(GOODPUT, KEY, warned.append)
        assert source.at_start() is None
        found, _ = measured_by(SimulatedClient())
        cache.store(profile_of(found), source.path)
        assert source.at_start() == profile_of(found)
        assert ProfileSource(SwitchConfig(policy="goodput", calibrate="always"), KEY, warned.append).at_start() is None
        assert warned == []
        source.path.write_text("{}")
        assert source.at_start() is None
        assert warned[0].endswith("It is measured again.")

    def test_another_server_has_another_file(self) -> None:
        other = msgspec.structs.replace(KEY, tp_size=8)
        assert cache.path_for(other) != cache.path_for(KEY)
        home = cache.path_for(KEY, {"XDG_CACHE_HOME": ""})
        assert home.parent == Path.home() / ".cache" / "specswitch"


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found, _ = measured_by(SimulatedClient())
    with pytest.raises(ProfileError, match="make its folder writable"):
        cache.store(profile_of(found), tmp_path / "file" / "p.json")
