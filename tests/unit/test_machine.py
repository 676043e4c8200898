from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specswitch.machine import IllegalTransition, Listener, SwitchMachine, Transition, diagram
from specswitch.signals import Mode

LEGAL = {
    Transition.BEGIN_DRAIN: (Mode.SPECULATIVE, Mode.DRAINING),
    Transition.CANCEL_DRAIN: (Mode.DRAINING, Mode.SPECULATIVE),
    Transition.ENTER_PLAIN: (Mode.DRAINING, Mode.PLAIN),
    Transition.RETURN: (Mode.PLAIN, Mode.SPECULATIVE),
}
PATH_TO = {
    Mode.SPECULATIVE: (),
    Mode.DRAINING: (Transition.BEGIN_DRAIN,),
    Mode.PLAIN: (Transition.BEGIN_DRAIN, Transition.ENTER_PLAIN),
}


def take(machine: SwitchMachine, transition: Transition, reason: str = "test") -> None:
    {
        Transition.BEGIN_DRAIN: machine.begin_drain,
        Transition.CANCEL_DRAIN: machine.cancel_drain,
        Transition.ENTER_PLAIN: machine.enter_plain,
        Transition.RETURN: machine.return_to_speculative,
    }[transition](reason)


def machine_in(mode: Mode, *listeners: Listener) -> SwitchMachine:
    machine = SwitchMachine(listeners)
    for transition in PATH_TO[mode]:
        take(machine, transition)
    return machine


def test_starts_speculative() -> None:
    assert SwitchMachine().mode is Mode.SPECULATIVE


def test_the_table_lists_exactly_the_legal_transitions() -> None:
    assert {t: (t.source, t.dest) for t in Transition} == LEGAL
    assert all(t.meaning for t in Transition)


@pytest.mark.parametrize(("mode", "asked"), list(itertools.product(Mode, Transition)))
def test_each_method_in_each_mode(mode: Mode, asked: Transition) -> None:
    heard: list[object] = []
    machine = machine_in(mode, lambda *call: heard.append(call))
    heard.clear()
    source, dest = LEGAL[asked]
    if mode is source:
        take(machine, asked, "because")
        assert machine.mode is dest
        assert heard == [(asked, source, dest, "because")]
    else:
        with pytest.raises(IllegalTransition) as refused:
            take(machine, asked)
        assert (refused.value.current, refused.value.asked) == (mode, asked)
        assert mode.value in str(refused.value)
        assert machine.mode is mode
        assert heard == []


def test_no_way_but_the_four_methods() -> None:
    public = {name for name in dir(SwitchMachine()) if not name.startswith("_")}
    assert public == {"mode", "begin_drain", "cancel_drain", "enter_plain", "return_to_speculative"}


def test_mode_is_a_plain_attribute() -> None:
    machine = machine_in(Mode.PLAIN)
    assert vars(machine)["mode"] is Mode.PLAIN
    assert "mode" not in vars(SwitchMachine)


def test_listeners_hear_in_order_after_the_change() -> None:
    heard: list[tuple[str, Mode, Mode]] = []
    machine: SwitchMachine

    def listener(name: str) -> Listener:
        return lambda transition, old, new, reason: heard.append((name, machine.mode, new))

    machine = SwitchMachine([listener("first"), listener("second")])
    machine.begin_drain("busy")
    assert heard == [("first", Mode.DRAINING, Mode.DRAINING), ("second", Mode.DRAINING, Mode.DRAINING)]


def test_a_raising_listener_stops_neither_the_others_nor_the_machine() -> None:
    order: list[object] = []

    def bad(*call: object) -> None:
        raise ValueError("broken listener")

    machine = SwitchMachine(
        [bad, lambda *call: order.append("heard"), bad],
        on_listener_error=lambda error: order.append(str(error)),
    )
    machine.begin_drain("busy")
    assert machine.mode is Mode.DRAINING
    assert order == ["heard", "broken listener", "broken listener"]
    order.clear()
    machine.enter_plain("drained")
    assert vars(machine)["mode"] is Mode.PLAIN
    assert order == ["heard", "broken listener", "broken listener"]


def test_a_listener_error_is_logged_when_nobody_takes_it(caplog: pytest.LogCaptureFixture) -> None:
    def bad(*call: object) -> None:
        raise ValueError("broken listener")

    with caplog.at_level(logging.ERROR):
        SwitchMachine([bad]).begin_drain("busy")
    assert "broken listener" in caplog.text


@given(st.lists(st.sampled_from(Transition)))
def test_any_sequence_follows_the_table(asked: list[Transition]) -> None:
    machine = SwitchMachine()
    expected = Mode.SPECULATIVE
    for transition in asked:
        source, dest = LEGAL[transition]
        if source is expected:
            take(machine, transition)
            expected = dest
        else:
            with pytest.raises(IllegalTransition):
                take(machine, transition)
        assert machine.mode is expected


def test_diagram_shows_every_transition_once() -> None:
    lines = [line.strip() for line in diagram().splitlines()]
    assert lines[0] == "stateDiagram-v2"
    assert lines[1] == "[*] --> SPECULATIVE"
    for transition in Transition:
        arrow = f"{transition.source.value} --> {transition.dest.value}: {transition.name}<br/>"
        assert sum(line.startswith(arrow) for line in lines) == 1
    assert len(lines) == 2 + len(Transition)
    # A second colon or a semicolon would end the label in Mermaid.
    assert all(line.count(":") == 1 and ";" not in line for line in lines[2:])


def test_the_library_below_adds_nothing_to_a_log_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    machine = SwitchMachine()
    machine.begin_drain("test")
    machine.enter_plain("test")
    assert caplog.records == []
