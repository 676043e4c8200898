"""Requests to ``/generate`` whose number in flight follows a plan."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Job:
    """What one request asks for, greedily."""

    prompt: str
    max_new_tokens: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for a job."""

    job: Job
    text: str
    tokens: int
    finish_reason: str
    verify_steps: int = 0
    """Verify steps that this request took part in; 0 on a server without speculation."""
    accepted_drafts: int = 0
    """Draft tokens that these accepted."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the plan."""

    seconds: float
    concurrency: int
    """Requests kept in flight."""


class ServerError(RuntimeError):
    """The server answered with an error; the text is the server's."""


class Load:
    """Users who each send the next job as soon as the last is answered.

    Raises what :mod:`httpx` raises when the server fails, and :class:`ServerError` when it answers with an error.
    """

    def __init__(self, client: httpx.AsyncClient, jobs: Sequence[Job]) -> None:
        self.concurrency = 0
        """Users who go on asking."""
        self.in_flight = 0
        """Requests not answered in full."""
        self.tokens = 0
        """Tokens received since start."""
        self.answers: list[Answer] = []
        self._client = client
        self._jobs = itertools.cycle(jobs)
        self._users: dict[int, asyncio.Task[None]] = {}

    async def follow(self, phases: Iterable[Phase]) -> None:
        """Go through the phases and wait for the last answers."""
        try:
            for phase in phases:
                self._set_concurrency(phase.concurrency)
                await self._pass(phase.seconds)
            self._set_concurrency(0)
            await asyncio.gather(*self._users.values())
        finally:
            for user in self._users.values():
                user.cancel()

    async def answer_each(self, jobs: Iterable[Job], concurrency: int) -> None:
        """Send each job once, at most ``concurrency`` at a time."""
        room = asyncio.Semaphore(concurrency)

        async def ask(job: Job) -> None:
            async with room:
                await self._ask(job)

        await asyncio.gather(*(ask(job) for job in jobs))

    def _set_concurrency(self, concurrency: int) -> None:
        self.concurrency = concurrency
        for number in range(concurrency):
            if number not in self._users:
                self._users[number] = asyncio.create_task(self._be_user(number))

    async def _pass(self, seconds: float) -> None:
        """Wait, but no longer than until a user has failed."""
        pause = asyncio.create_task(asyncio.sleep(seconds))
        done, _ = await asyncio.wait(
            {pause, *self._users.values()}, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        pause.cancel()
        for task in done:
            task.result()

    async def _be_user(self, number: int) -> None:
        while number < self.concurrency:
            await self._ask(next(self._jobs))
        del self._users[number]

    async def _ask(self, job: Job) -> None:
        self.in_flight += 1
        try:
            self.answers.append(await self._receive(job))
        finally:
            self.in_flight -= 1

    async def _receive(self, job: Job) -> Answer:
        sampling = {"temperature": 0, "max_new_tokens": job.max_new_tokens}
        body = {"text": job.prompt, "sampling_params": sampling, "stream": True}
        answer: dict[str, Any] = {}
        received = 0
        async with self._client.stream("POST", "/generate", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                answer = json.loads(line.removeprefix("data: "))
                if "error" in answer:
                    raise ServerError(str(answer["error"]))
                # text and token count of each message are those of the whole answer so far
                count = int(answer["meta_info"]["completion_tokens"])
                self.tokens += count - received
                received = count
        meta = answer["meta_info"]
        return Answer(
            job=job,
            text=answer["text"],
            tokens=received,
            finish_reason=meta["finish_reason"]["type"],
            verify_steps=meta.get("spec_verify_ct", 0),
            accepted_drafts=meta.get("spec_num_correct_drafts", 0),
        )
