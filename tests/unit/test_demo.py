"""The demo without its servers; ``tests/http/test_demo.py`` runs it with them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from specswitch.cli.demo import demo
from specswitch.config import SwitchConfig
from specswitch.cpu_engine.releases import RELEASES
from specswitch.demo import picture, run
from specswitch.demo.events import read_events, seconds_between
from specswitch.demo.load import Answer, Job, Load, Phase, ServerError
from specswitch.demo.report import ModeFigures, Report, Span
from specswitch.demo.sampler import Sample, Sampler
from specswitch.demo.screen import Screen, succeeded, verdict

JOB = Job("Once", 8)
RIGHT = Answer(JOB, " upon a time", 8, "length")
SPECULATED = replace(RIGHT, verify_steps=4, accepted_drafts=3)
CONFIG = SwitchConfig(high_watermark=3, low_watermark=1)
ACTIVE = {
    "event": "specswitch.active",
    "release": "0.5.12.post1",
    "path": "v2",
    "worker": "EAGLEWorkerV2",
    "overlap": True,
    "algorithm": "EAGLE",
    "topk": 1,
    "num_steps": 3,
    "num_draft_tokens": 4,
    "page_size": 1,
    "config": CONFIG.as_dict(),
}


def sample(seconds: float, tokens: int, mode: str = "SPECULATIVE", **fields: Any) -> Sample:
    given = {"concurrency": 1, "in_flight": 1, "batch_size": 1, "queue_length": 0, "accept_length": 1.5} | fields
    return Sample(seconds=seconds, tokens=tokens, mode=mode, transitions=0, **given)


def transition(seconds: float, source: str, dest: str, reason: str = "because") -> dict[str, Any]:
    return {
        "seconds": seconds,
        "event": "specswitch.transition",
        "from": source,
        "to": dest,
        "reason": reason,
        "batch_size": 3,
        "queue_length": 0,
        "accept_length": 1.5,
        "step": 10,
        "duration_ms": 1.25,
        "slots_given_back": 6,
        "tokens_caught_up": 0,
    }


THERE = [transition(2.0, "SPECULATIVE", "DRAINING"), transition(2.0, "DRAINING", "PLAIN")]
BACK = transition(4.0, "PLAIN", "SPECULATIVE")


def report(transitions: Sequence[dict[str, Any]] = (*THERE, BACK), answers: Sequence[Answer] = (SPECULATED,)) -> Report:
    samples = [
        sample(0.0, 0),
        sample(2.0, 20),
        sample(3.0, 60, "PLAIN", concurrency=4, in_flight=4, batch_size=4),
        sample(4.0, 100, "PLAIN", concurrency=4, in_flight=3, batch_size=3),
        sample(6.0, 130, accept_length=1.7),
    ]
    return Report(ACTIVE, [Phase(6, 1)], samples, list(transitions), list(answers), {JOB: RIGHT})


class TestReport:
    def test_modes_follow_one_another(self) -> None:
        assert list(report().spans()) == [
            Span("SPECULATIVE", 0.0, 2.0),
            Span("DRAINING", 2.0, 2.0),
            Span("PLAIN", 2.0, 4.0),
            Span("SPECULATIVE", 4.0, 6.0),
        ]
        assert list(report([]).spans()) == [Span("SPECULATIVE", 0.0, 6.0)]

    def test_figures_of_each_mode(self) -> None:
        assert report().by_mode() == {
            "SPECULATIVE": ModeFigures(4.0, 50, 12.5),
            "PLAIN": ModeFigures(2.0, 80, 40.0),
        }
        assert set(report([]).by_mode()) == {"SPECULATIVE"}

    def test_throughput_between_samples_is_interpolated(self) -> None:
        assert report().tokens_at(1.0) == 10
        assert report().throughput(2.5, 3.5) == 40
        assert (report().tokens_at(-1.0), report().tokens_at(99.0)) == (0, 130)

    def test_rows(self) -> None:
        first, second = report().rows(3.0)
        assert (first.start, first.end, first.modes, first.transitions) == (0.0, 3.0, ("SPECULATIVE", "PLAIN"), 2)
        assert (first.concurrency, first.batch_size, first.tokens_per_second) == ("1", 1, 20.0)
        assert (second.modes, second.transitions) == (("PLAIN", "SPECULATIVE"), 1)
        assert (second.concurrency, second.batch_size, second.accept_length) == ("4", 4, None)

    def test_a_slice_without_a_sample_is_a_row_all_the_same(self) -> None:
        rows = list(report().rows(0.5))
        assert len(rows) == 12
        assert (rows[5].start, rows[5].concurrency, rows[5].modes) == (2.5, "1", ("PLAIN",))

    def test_accept_length_is_over_verify_steps(self) -> None:
        assert report(answers=[SPECULATED, RIGHT]).accept_length == 1.75
        assert report(answers=[RIGHT]).accept_length is None

    @pytest.mark.parametrize(
        "wrong",
        [replace(SPECULATED, text=" upon a"), replace(SPECULATED, tokens=9), replace(SPECULATED, finish_reason="stop")],
    )
    def test_an_answer_that_is_not_the_plain_servers_fails_the_run(self, wrong: Answer) -> None:
        shown = report(answers=[SPECULATED, wrong])
        assert [difference.got for difference in shown.differences] == [wrong.text]
        assert not succeeded(shown)
        assert "1 of 2 answers differ" in verdict(shown)
        assert "1 differ" in picture.title(shown)

    def test_equal_answers_and_both_ways_succeed(self) -> None:
        assert succeeded(report())
        assert verdict(report()) == "All 1 answers equal the plain server's."

    @pytest.mark.parametrize("transitions", [[], THERE, [THERE[0], transition(2.5, "DRAINING", "SPECULATIVE")]])
    def test_a_server_that_does_not_switch_both_ways_fails_the_run(self, transitions: list[dict[str, Any]]) -> None:
        assert not succeeded(report(transitions))
        assert "did not switch" in verdict(report(transitions))

    def test_a_fault_fails_the_run(self) -> None:
        faulted = replace(report(), fault="ValueError: no")
        assert not succeeded(faulted)
        assert "ValueError: no" in verdict(faulted)

    def test_json(self, tmp_path: Path) -> None:
        report().write_json(tmp_path / "report.json")
        written = json.loads((tmp_path / "report.json").read_text())
        assert written == json.loads(json.dumps(report().as_dict()))
        assert written["summary"]["accept_length"] == 1.75
        assert len(written["samples"]) == 5

    def test_the_table_names_every_transition(self) -> None:
        console = Console(record=True, width=140)
        Screen(console, 6.0).report(report())
        text = console.export_text()
        assert text.count("because") >= 3
        assert "All 1 answers equal" in text


@pytest.mark.parametrize("transitions", [[], [*THERE, BACK]])
def test_the_picture_is_a_png(transitions: list[dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "report.png"
    picture.draw(report(transitions), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert (int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")) == (1100, 726)


def test_events_are_found_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "log"
    event = {"timestamp": "2026-01-15T09:30:12.500000Z", "event": "specswitch.transition", "to": "PLAIN"}
    log.write_text(
        "\n".join(
            ["INFO: started", json.dumps({"event": "other"}), json.dumps(event), "{broken", '["x"]', '{"event": 1}']
        )
    )
    (found,) = read_events(log)
    assert found == event
    assert seconds_between(datetime(2026, 1, 15, 9, 30, 10, tzinfo=timezone.utc), found) == 2.5


class Server:
    """A ``/generate`` that streams two messages per answer, and keeps count of what it serves at once."""

    def __init__(self, seconds: float = 0.005) -> None:
        self.seconds = seconds
        self.now = 0
        self.peak = 0
        self.asked: list[str] = []
        self.fail_with: httpx.Response | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/server_info":
            status = {"mode": "PLAIN", "batch_size": 3, "queue_length": 1, "accept_length": 2.5, "transitions": 4}
            return httpx.Response(200, json={"internal_states": [{"specswitch": status}]})
        body = json.loads(request.content)
        self.asked.append(body["text"])
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        if self.fail_with is not None:
            return self.fail_with
        end = body["sampling_params"]["max_new_tokens"]
        return httpx.Response(200, text="".join(map(message, [(" a", 1, None), (" a b", end, {"type": "length"})])))

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(self))


def message(of: tuple[str, int, Any]) -> str:
    text, tokens, reason = of
    meta = {"completion_tokens": tokens, "finish_reason": reason, "spec_verify_ct": 3, "spec_num_correct_drafts": 2}
    return f"data: {json.dumps({'text': text, 'meta_info': meta})}\n\n"


JOBS = [Job("first", 4), Job("second", 6)]


def test_each_job_is_asked_once_and_no_more_at_once_than_allowed() -> None:
    server = Server()

    async def ask() -> Load:
        async with server.client() as client:
            load = Load(client, JOBS)
            await load.answer_each([Job(str(i), 4) for i in range(9)], concurrency=3)
            return load

    load = asyncio.run(ask())
    assert sorted(server.asked) == [str(i) for i in range(9)]
    assert server.peak == 3
    assert load.answers[0] == Answer(Job("0", 4), " a b", 4, "length", verify_steps=3, accepted_drafts=2)
    assert (load.tokens, load.in_flight) == (36, 0)


def test_the_number_in_flight_follows_the_plan() -> None:
    server = Server()
    seen: list[tuple[int, int]] = []

    async def follow() -> Load:
        async with server.client() as client:
            load = Load(client, JOBS)

            async def watch() -> None:
                while True:
                    await asyncio.sleep(0.004)
                    seen.append((load.concurrency, load.in_flight))

            watching = asyncio.create_task(watch())
            await load.follow([Phase(0.2, 1), Phase(0.2, 4), Phase(0.2, 0), Phase(0.2, 2)])
            watching.cancel()
            return load

    load = asyncio.run(follow())
    for concurrency in (1, 4, 2):
        steady = [in_flight for wanted, in_flight in seen if wanted == concurrency]
        assert max(set(steady), key=steady.count) == concurrency
    assert 0 in [in_flight for wanted, in_flight in seen if wanted == 0]
    assert {answer.job for answer in load.answers} == set(JOBS)
    assert load.tokens == sum(answer.tokens for answer in load.answers)


@pytest.mark.parametrize(
    ("failure", "raised"),
    [
        (httpx.Response(200, text='data: {"error": {"message": "too long"}}\n\n'), ServerError),
        (httpx.Response(500, text="down"), httpx.HTTPStatusError),
    ],
)
def test_a_failing_server_ends_the_load_at_once(failure: httpx.Response, raised: type[Exception]) -> None:
    server = Server()
    server.fail_with = failure

    async def follow() -> None:
        async with server.client() as client:
            await asyncio.wait_for(Load(client, JOBS).follow([Phase(60, 2)]), timeout=10)

    with pytest.raises(raised):
        asyncio.run(follow())


def test_a_sample_joins_the_servers_word_and_the_clients() -> None:
    async def take() -> Sample:
        async with Server().client() as client:
            load = Load(client, JOBS)
            await load.answer_each(JOBS, concurrency=1)
            times = iter([10.0, 12.5])
            return await Sampler(client, load, lambda sample: None, clock=lambda: next(times)).take()

    taken = asyncio.run(take())
    assert (taken.seconds, taken.tokens, taken.in_flight) == (2.5, 10, 0)
    assert (taken.mode, taken.batch_size, taken.accept_length, taken.transitions) == ("PLAIN", 3, 2.5, 4)


def test_the_plan_is_stretched_to_the_seconds_wanted(tmp_path: Path) -> None:
    release = next(iter(RELEASES.values()))
    settings = run.Settings(release, Path("python"), "eagle-v2", tmp_path, tmp_path, seconds=29.0)
    assert sum(phase.seconds for phase in settings.phases) == pytest.approx(29.0)
    assert [phase.concurrency for phase in settings.phases] == [phase.concurrency for phase in run.PLAN]


def test_the_plan_crosses_both_watermarks_and_stays_between_them() -> None:
    levels = {phase.concurrency for phase in run.PLAN}
    assert min(levels) <= run.LOW_WATERMARK
    assert max(levels) >= run.HIGH_WATERMARK
    assert any(run.LOW_WATERMARK < level < run.HIGH_WATERMARK for level in levels)


class TestCommand:
    def run(self, *arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(demo, list(arguments))
        return result.exit_code, " ".join(result.output.split())

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--algorithm", "medusa"], "no mode 'medusa'; choose one of"),
            (["--algorithm", "plain"], "does not speculate"),
            (["--release", "0.4.0"], "not 0.4.0"),
        ],
    )
    def test_refusals_say_what_to_do(self, arguments: list[str], words: str) -> None:
        status, output = self.run(*arguments)
        assert status == 2
        assert words in output

    def test_a_release_without_an_environment_is_refused(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
        monkeypatch.setattr("specswitch.cli.demo.installed_release", lambda: RELEASES["0.5.12.post1"])
        wanted = next(name for name in RELEASES if name != "0.5.12.post1")
        status, output = self.run("--release", wanted)
        assert status == 2
        assert f"make setup RELEASES={wanted}" in output
