"""What an operator may send to a running server, and what a scheduler does with it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_mock import MockerFixture

from specswitch.commands import Commands
from specswitch.control import NUMBERS, Command, parse
from specswitch.errors import ControlError, ProfileError


@pytest.mark.parametrize("name", NUMBERS)
def test_every_mode_has_a_number(name: Any) -> None:
    expected = Command("specswitch_mode", None if name == "configured" else name)
    assert parse({"specswitch_mode": NUMBERS[name]}) == parse({"specswitch_mode": float(NUMBERS[name])}) == expected


def test_what_is_sglangs_is_left_alone() -> None:
    assert parse({}) is None
    assert parse({"pp_max_micro_batch_size": 8}) is None


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"specswitch_mode": 7}, "specswitch_mode is 7, which is none of"),
        ({"specswitch_mode": True}, "specswitch_mode is True"),
        ({"specswitch_mode": "plain"}, "specswitch_mode is 'plain'"),
        ({"specswitch_mode": None}, "specswitch_mode is None"),
        ({"specswitch_profile": 2}, "specswitch_profile is 2"),
        ({"specswitch_modus": 1}, "specswitch_modus is nothing"),
        ({"specswitch_mode": 1, "other": 1}, "together with other keys"),
    ],
)
def test_anything_else_is_one_sentence(values: dict[str, Any], why: str) -> None:
    with pytest.raises(ControlError) as refused:
        parse(values)
    assert why in str(refused.value)
    assert str(refused.value).count(". ") == 0


class TestCommands:
    def test_pins(self, mocker: MockerFixture) -> None:
        switch, log = mocker.MagicMock(faulted=False), mocker.MagicMock()
        commands = Commands(switch, log, mocker.MagicMock())
        assert commands.handle({"other": 1}) is None
        assert commands.handle({"specswitch_mode": 2}) is True
        assert commands.handle({"specswitch_mode": 0}) is True
        assert [call.args for call in switch.pin.call_args_list] == [("plain",), (None,)]
        assert commands.handle({"specswitch_mode": 9}) is False
        assert switch.pin.call_count == 2
        log.warning.assert_called_once()

    def test_a_switch_that_has_ended_follows_nothing(self, mocker: MockerFixture) -> None:
        switch, log = mocker.MagicMock(faulted=True), mocker.MagicMock()
        assert Commands(switch, log, mocker.MagicMock()).handle({"specswitch_mode": 2}) is False
        switch.pin.assert_not_called()

    def test_has_the_profile_read_or_says_why_not(self, mocker: MockerFixture) -> None:
        switch, log, use = mocker.MagicMock(faulted=False), mocker.MagicMock(), mocker.MagicMock()
        commands = Commands(switch, log, use)
        assert commands.handle({"specswitch_profile": 1}) is True
        use.side_effect = ProfileError("The profile is gone.")
        assert commands.handle({"specswitch_profile": 1}) is False
        log.warning.assert_called_once_with("The profile is gone.")
        use.side_effect = KeyError("surprise")
        assert commands.handle({"specswitch_profile": 1}) is False
        switch.pin.assert_not_called()


class TestAtTheDoor:
    def ask(self, values: dict[str, Any], replies: list[bool], switches: bool = True) -> list[bool]:
        control_channel = pytest.importorskip("specswitch.engine.control_channel")

        async def original(manager: Any, request: Any) -> list[bool]:
            return replies

        request = SimpleNamespace(server_args=values)
        answer: list[bool] = asyncio.run(control_channel.check_at_the_door(original, None, request, switches))
        return answer

    def test_passes_on_what_is_right_or_sglangs(self) -> None:
        assert self.ask({"specswitch_mode": 1}, [True, True]) == [True, True]
        assert self.ask({"pp_max_micro_batch_size": 8}, [False]) == [False]

    @pytest.mark.parametrize(
        ("values", "replies", "switches", "code", "why"),
        [
            ({"specswitch_mode": 9}, [True], True, 400, "specswitch_mode is 9"),
            ({"specswitch_mode": 1}, [True, False], True, 409, "The server did not follow specswitch_mode"),
            ({"specswitch_mode": 1}, [True], False, 409, "serves without switching"),
        ],
    )
    def test_refuses(self, values: dict[str, Any], replies: list[bool], switches: bool, code: int, why: str) -> None:
        fastapi = pytest.importorskip("fastapi")
        with pytest.raises(fastapi.HTTPException, match=why) as refused:
            self.ask(values, replies, switches)
        assert refused.value.status_code == code
