"""The demo's two servers, one after the other: a plain one for the right answers, then one that switches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import httpx

from specswitch.config import ENABLE_FLAG
from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import Release
from specswitch.cpu_engine.server import CpuServer
from specswitch.demo.events import read_events, seconds_between
from specswitch.demo.load import Answer, Job, Load, Phase
from specswitch.demo.report import Report
from specswitch.demo.sampler import Sample, Sampler

HIGH_WATERMARK, LOW_WATERMARK, DWELL_STEPS = 5, 1, 32
"""Far below the defaults, as is the load: a CPU carries little."""

PLAN = (
    Phase(6, 1),
    Phase(8, 3),  # between the watermarks: stays SPECULATIVE
    Phase(12, 12),  # more than the server's eight at once: some wait, so that the batch stays full
    Phase(9, 3),  # between the watermarks: stays PLAIN
    Phase(8, 1),
    Phase(8, 10),
    Phase(7, 1),
)

PLAN_SECONDS = sum(phase.seconds for phase in PLAN)

JOBS = tuple(Job(prompt, 64 + 37 * number % 120) for number, prompt in enumerate(PROMPTS))
"""Of unequal lengths, so that they do not end together."""

_TOKENS_PER_MESSAGE = 4
_REQUEST_TIMEOUT = 120.0
"""Seconds without a token."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run."""

    release: Release
    python: Path
    """Of the environment in which that SGLang release is installed."""
    mode: str
    """Speculative mode, a name of the release's table."""
    models: Path
    out: Path
    """Directory for the servers' logs."""
    port: int | None = None
    """None: any free one."""
    seconds: float = PLAN_SECONDS
    """How long the load lasts; the plan is stretched to it."""

    @property
    def phases(self) -> list[Phase]:
        stretch = self.seconds / PLAN_SECONDS
        return [Phase(phase.seconds * stretch, phase.concurrency) for phase in PLAN]

    @property
    def switching_flags(self) -> list[str]:
        """The flags that the second server has more than a speculative server without specswitch."""
        return [
            ENABLE_FLAG,
            *("--specswitch-high-watermark", str(HIGH_WATERMARK)),
            *("--specswitch-low-watermark", str(LOW_WATERMARK)),
            *("--specswitch-dwell-steps", str(DWELL_STEPS)),
            *("--specswitch-log-format", "json"),
        ]


class Audience(Protocol):
    """Hears how far the demo is."""

    def stage(self, text: str) -> None:
        """Something that takes a while begins."""

    def sample(self, sample: Sample) -> None:
        """A moment of the load."""


def run(settings: Settings, audience: Audience) -> Report:
    """Run the demo.

    Raises what the servers raise when they do not start, and :class:`httpx.HTTPError` when one fails under way.
    """
    audience.stage(f"Starting a plain SGLang {settings.release.version} server")
    with _server(settings, "plain", "plain.log") as server:
        audience.stage(f"Asking it {len(JOBS)} questions for the right answers")
        expected = asyncio.run(_ask_each(server.url, JOBS))
    audience.stage(f"Starting a server with {settings.mode} and {ENABLE_FLAG}")
    samples: list[Sample] = []

    def hear(sample: Sample) -> None:
        samples.append(sample)
        audience.sample(sample)

    with _server(settings, settings.mode, "switching.log", settings.switching_flags) as server:
        audience.stage(f"Sending it a load that rises and falls, for {settings.seconds:.0f} s")
        played = asyncio.run(_play(server.url, settings.phases, hear))
        events = read_events(server.log_path)
    return Report(
        active=next(event for event in events if event["event"] == "specswitch.active"),
        phases=settings.phases,
        samples=samples,
        transitions=_transitions(events, played.started),
        answers=played.answers,
        expected=expected,
        fault=next((event["error"] for event in events if event["event"] == "specswitch.fault"), None),
    )


@dataclass(frozen=True, slots=True)
class _Played:
    started: datetime
    answers: list[Answer]


@contextmanager
def _server(settings: Settings, mode: str, log: str, flags: Sequence[str] = ()) -> Iterator[CpuServer]:
    overlap = None if settings.release.mode(mode).overlap is not None else True
    with CpuServer(
        mode,
        settings.models,
        release=settings.release,
        python=settings.python,
        overlap=overlap,
        flags=flags,
        port=settings.port,
        log_path=settings.out / log,
        # one message per token would keep the HTTP side of two cores busier than the scheduler
        stream_interval=_TOKENS_PER_MESSAGE,
    ) as server:
        yield server


async def _ask_each(url: str, jobs: Sequence[Job]) -> dict[Job, Answer]:
    async with httpx.AsyncClient(base_url=url, timeout=_REQUEST_TIMEOUT) as client:
        load = Load(client, jobs)
        await load.answer_each(jobs, concurrency=max(phase.concurrency for phase in PLAN))
        return {answer.job: answer for answer in load.answers}


async def _play(url: str, phases: Sequence[Phase], hear: Callable[[Sample], None]) -> _Played:
    async with httpx.AsyncClient(base_url=url, timeout=_REQUEST_TIMEOUT) as client:
        load = Load(client, JOBS)
        started = datetime.now(timezone.utc)
        sampler = Sampler(client, load, hear)
        sampling = asyncio.create_task(sampler.run())
        playing = asyncio.create_task(load.follow(phases))
        try:
            done, _ = await asyncio.wait({sampling, playing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            hear(await sampler.take())
        finally:
            sampling.cancel()
            playing.cancel()
        return _Played(started, load.answers)


def _transitions(events: Sequence[dict[str, Any]], started: datetime) -> list[dict[str, Any]]:
    timed = ({"seconds": round(seconds_between(started, event), 3), **event} for event in events)
    return [event for event in timed if event["event"] == "specswitch.transition" and event["seconds"] >= 0]
