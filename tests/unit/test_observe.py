from __future__ import annotations

import io
import json
import logging
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest
import structlog

from specswitch.config import SwitchConfig
from specswitch.engine.base import EngineFacts
from specswitch.engine.reentry import ReentryRecord
from specswitch.machine import Transition
from specswitch.observe.log import EventLog, get_logger
from specswitch.observe.observer import ReportingObserver
from specswitch.observe.status import Status
from specswitch.policy import Wish
from specswitch.records import StepCounts, TransitionRecord
from specswitch.signals import LoadSample, Mode

FACTS = EngineFacts(
    release="0.5.12.post1",
    path="v1",
    worker="EAGLEWorker",
    overlap=False,
    algorithm="EAGLE",
    topk=4,
    num_steps=3,
    num_draft_tokens=16,
    page_size=1,
)
FACTS_SHOWN = {
    "release": "0.5.12.post1",
    "path": "v1",
    "worker": "EAGLEWorker",
    "overlap": False,
    "algorithm": "EAGLE",
    "topk": 4,
    "num_steps": 3,
    "num_draft_tokens": 16,
    "page_size": 1,
}
STEPS = StepCounts(speculative=4, plain=2, in_mode=2)
LOAD = LoadSample(Mode.SPECULATIVE, 4, 2, decode_step=0, steps_in_mode=0, accept_length=2.12345)
BEGUN = TransitionRecord(Transition.BEGIN_DRAIN, "decode batch 4 >= high watermark 3", 4, 2, None, 99, 0.0)
ENTERED = TransitionRecord(
    Transition.ENTER_PLAIN,
    "decode batch 4 >= high watermark 3",
    batch_size=4,
    queue_length=2,
    accept_length=2.12345,
    step=100,
    duration_ms=1.23456,
    slots_given_back=12,
)
ENTERED_SHOWN = {
    "from": "DRAINING",
    "to": "PLAIN",
    "reason": "decode batch 4 >= high watermark 3",
    "batch_size": 4,
    "queue_length": 2,
    "accept_length": 2.123,
    "step": 100,
    "duration_ms": 1.235,
    "slots_given_back": 12,
    "tokens_caught_up": 0,
}

REENTERED = ReentryRecord(
    3, 120, 7, 1, verify_steps=32, accept_length=2.12345, long_run_accept_length=None, longest_wait_ms=41.5
)


def raised() -> Exception:
    try:
        raise ValueError("first line\nsecond line")
    except ValueError as error:
        return error


def line_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    event: dict[str, Any] = json.loads(err)
    assert list(event)[:3] == ["timestamp", "level", "event"]
    assert datetime.fromisoformat(event.pop("timestamp").replace("Z", "+00:00")).utcoffset() == timedelta(0)
    return event


class TestJsonEvents:
    def log(self) -> EventLog:
        return EventLog(get_logger("json", rank=0))

    def test_active(self, capsys: pytest.CaptureFixture[str]) -> None:
        config = SwitchConfig(plain_for=frozenset({"min_p"}))
        self.log().active(FACTS, config)
        assert line_of(capsys) == {
            "level": "info",
            "event": "specswitch.active",
            **FACTS_SHOWN,
            "config": config.as_dict(),
        }

    def test_transition(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.log().transition(ENTERED)
        assert line_of(capsys) == {"level": "info", "event": "specswitch.transition", **ENTERED_SHOWN}

    def test_transition_before_any_verify_step(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.log().transition(BEGUN)
        assert line_of(capsys)["accept_length"] is None

    def test_reentry(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.log().reentry(REENTERED)
        assert line_of(capsys) == {
            "level": "info",
            "event": "specswitch.reentry",
            "requests": 3,
            "tokens_caught_up": 120,
            "tokens_skipped": 7,
            "requests_not_worth_it": 1,
            "verify_steps": 32,
            "accept_length": 2.123,
            "long_run_accept_length": None,
            "longest_wait_ms": 41.5,
            "requests_left_out": 0,
        }

    def test_recommendation(self, capsys: pytest.CaptureFixture[str]) -> None:
        sample = LoadSample(Mode.SPECULATIVE, 40, 3, decode_step=70, steps_in_mode=70, accept_length=2.5)
        self.log().recommendation(Wish(Mode.PLAIN, "decode batch 40 >= high watermark 32"), sample)
        assert line_of(capsys) == {
            "level": "info",
            "event": "specswitch.recommendation",
            "from": "SPECULATIVE",
            "to": "PLAIN",
            "reason": "decode batch 40 >= high watermark 32",
            "batch_size": 40,
            "queue_length": 3,
            "accept_length": 2.5,
            "step": 70,
        }

    def test_fault_is_logged_once_on_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        log = self.log()
        log.fault(raised(), "enter_plain")
        event = line_of(capsys)
        assert event.pop("at").endswith("in raised")
        assert event == {
            "level": "error",
            "event": "specswitch.fault",
            "error": "ValueError: first line second line",
            "doing": "enter_plain",
        }
        log.fault(raised(), "enter_plain")
        assert capsys.readouterr().err == ""

    def test_fault_that_was_never_raised(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.log().fault(RuntimeError("ranks disagree"), "on_turn")
        assert line_of(capsys)["at"] is None

    def test_warning(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.log().warning("newer than tested", release="0.9.0")
        assert line_of(capsys) == {
            "level": "warning",
            "event": "specswitch.warning",
            "message": "newer than tested",
            "release": "0.9.0",
        }


def test_console_line(capsys: pytest.CaptureFixture[str]) -> None:
    EventLog(get_logger("console", rank=0)).transition(ENTERED)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "specswitch.transition" in err
    assert "from=DRAINING to=PLAIN reason='decode batch 4 >= high watermark 3' batch_size=4" in err
    assert "\x1b" not in err


@pytest.mark.parametrize("format", ["console", "json"])
def test_other_ranks_are_silent(format: Any, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(get_logger(format, rank=1))
    log.active(FACTS, SwitchConfig())
    log.transition(ENTERED)
    log.reentry(REENTERED)
    log.warning("newer than tested")
    log.fault(raised(), "on_turn")
    assert capsys.readouterr() == ("", "")


def test_leaves_other_logging_alone(caplog: pytest.LogCaptureFixture) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLoggerClass(), structlog.get_config())
    EventLog(get_logger("json", rank=0)).warning("newer than tested")
    EventLog(get_logger("json", rank=1)).warning("newer than tested")
    assert (list(root.handlers), root.level, logging.getLoggerClass(), structlog.get_config()) == before
    assert not structlog.is_configured()
    assert caplog.records == []


def test_structlog_configured_by_somebody_else_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[lambda *_: "taken over"], logger_factory=structlog.PrintLoggerFactory(sys.stdout))
    try:
        EventLog(get_logger("json", rank=0)).transition(ENTERED)
    finally:
        structlog.reset_defaults()
    assert line_of(capsys)["event"] == "specswitch.transition"


class TestStatus:
    def test_at_start(self) -> None:
        assert Status(FACTS, SwitchConfig()).as_dict(LOAD, StepCounts()) == {
            "mode": "SPECULATIVE",
            "batch_size": 4,
            "queue_length": 2,
            "accept_length": 2.123,
            "context_tokens": 0,
            "missed_tokens": 0,
            **FACTS_SHOWN,
            "transitions": 0,
            "transitions_by_kind": {"BEGIN_DRAIN": 0, "CANCEL_DRAIN": 0, "ENTER_PLAIN": 0, "RETURN": 0},
            "steps": {"SPECULATIVE": 0, "PLAIN": 0},
            "steps_in_mode": 0,
            "last_transition": None,
            "pinned": None,
            "key": None,
            "profile": None,
            "admission": None,
            "graph_sizes": [],
            "recommended_mode": None,
            "fault": None,
            "config": SwitchConfig().as_dict(),
        }

    def test_follows_transitions_and_steps(self) -> None:
        status = Status(FACTS, SwitchConfig())
        status.transition(BEGUN)
        assert status.as_dict(LOAD, STEPS)["mode"] == "DRAINING"

        status.transition(ENTERED)
        shown = status.as_dict(LOAD, STEPS)
        assert (shown["mode"], shown["steps_in_mode"]) == ("PLAIN", 2)
        assert shown["steps"] == {"SPECULATIVE": 4, "PLAIN": 2}
        assert shown["transitions"] == 2
        assert shown["transitions_by_kind"] == {"BEGIN_DRAIN": 1, "CANCEL_DRAIN": 0, "ENTER_PLAIN": 1, "RETURN": 0}
        assert shown["last_transition"] == ENTERED_SHOWN

    def test_keeps_the_first_fault(self) -> None:
        status = Status(FACTS, SwitchConfig())
        status.fault("ValueError: first")
        status.fault("ValueError: second")
        assert status.as_dict(LOAD, STEPS)["fault"] == "ValueError: first"

    def test_shows_the_recommendation(self) -> None:
        status = Status(FACTS, SwitchConfig(mode="observe"))
        assert status.as_dict(LOAD, STEPS)["recommended_mode"] == "SPECULATIVE"
        status.recommend(Mode.PLAIN)
        assert status.as_dict(LOAD, STEPS)["recommended_mode"] == "PLAIN"

    def test_shows_a_pin_and_what_follows_from_it(self) -> None:
        status = Status(FACTS, SwitchConfig())
        status.pin("observe")
        shown = status.as_dict(LOAD, STEPS)
        assert (shown["pinned"], shown["recommended_mode"]) == ("observe", "SPECULATIVE")
        status.pin(None)
        shown = status.as_dict(LOAD, STEPS)
        assert (shown["pinned"], shown["recommended_mode"]) == (None, None)

    def test_is_json_able(self) -> None:
        status = Status(FACTS, SwitchConfig(plain_for=frozenset({"min_p"})))
        status.transition(ENTERED)
        assert json.loads(json.dumps(status.as_dict(LOAD, STEPS))) == status.as_dict(LOAD, STEPS)


class TestReportingObserver:
    def observer(self, config: SwitchConfig) -> ReportingObserver:
        return ReportingObserver(EventLog(get_logger("json", rank=0)), Status(FACTS, config))

    def test_a_transition_reaches_log_and_status(self, capsys: pytest.CaptureFixture[str]) -> None:
        observer = self.observer(SwitchConfig())
        observer.transition(ENTERED)
        assert line_of(capsys)["event"] == "specswitch.transition"
        shown = observer.status(LOAD, STEPS)
        assert (shown["mode"], shown["steps_in_mode"], shown["last_transition"]) == ("PLAIN", 2, ENTERED_SHOWN)

    def test_a_reentry_reaches_the_log(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.observer(SwitchConfig()).reentry(REENTERED)
        assert line_of(capsys)["event"] == "specswitch.reentry"

    def test_a_recommendation_reaches_log_and_status(self, capsys: pytest.CaptureFixture[str]) -> None:
        observer = self.observer(SwitchConfig(mode="observe"))
        sample = LoadSample(Mode.SPECULATIVE, 40, 3, decode_step=70, steps_in_mode=70, accept_length=2.5)
        observer.recommendation(Wish(Mode.PLAIN, "busy"), sample)
        assert line_of(capsys)["event"] == "specswitch.recommendation"
        shown = observer.status(LOAD, STEPS)
        assert (shown["mode"], shown["recommended_mode"]) == ("SPECULATIVE", "PLAIN")

    def test_a_fault_reaches_log_and_status(self, capsys: pytest.CaptureFixture[str]) -> None:
        observer = self.observer(SwitchConfig())
        observer.fault(raised(), "entering PLAIN")
        assert line_of(capsys)["event"] == "specswitch.fault"
        assert observer.status(LOAD, STEPS)["fault"] == "entering PLAIN: ValueError: first line second line"

    @pytest.mark.parametrize("failure", [BrokenPipeError(), ValueError("I/O operation on closed file")])
    def test_a_broken_stderr_loses_the_line_alone(self, failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        class Broken(io.StringIO):
            def write(self, text: str) -> int:
                raise failure

        monkeypatch.setattr(sys, "stderr", Broken())
        observer = self.observer(SwitchConfig())
        observer.transition(ENTERED)
        observer.fault(raised(), "entering PLAIN")
        assert observer.status(LOAD, STEPS)["mode"] == "PLAIN"
        assert observer.status(LOAD, STEPS)["fault"] is not None
