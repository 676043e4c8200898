"""What a switch costs: the time until it has happened, and how long anyone waited."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from datetime import datetime

import aiohttp

from bench import client
from bench.client import Answer
from bench.plan import Switches
from bench.site import Row, Site, first_error, ms

_DEADLINE_SECONDS = 120.0


def cases(plan: Switches) -> Iterator[Row]:
    for repeat, size, missed in itertools.product(range(plan.repeats), plan.batch_sizes, plan.missed_tokens):
        yield {"batch_size": size, "missed": missed, "repeat": repeat}


def measure(site: Site, plan: Switches, batch_size: int, missed: int, repeat: int) -> Row:
    """To PLAIN and back while ``batch_size`` requests stream, each of which decodes ``missed`` tokens in PLAIN.

    They ask for as many tokens again, so that every one of them is worth the catch-up, and are aborted some tokens
    after the return.  The longest gaps between two chunks before the switch and just after it are beside those at it.
    """
    server = site.server
    site.prepare(pin="speculative")
    before, offset = server.switch_state() or {}, server.log_size()
    inputs = client.prompts(f"switch {batch_size} {missed} {repeat}", batch_size, plan.input_tokens, site.vocab_size)
    streams, to_plain, back = asyncio.run(_there_and_back(site, plan, inputs, missed))
    time.sleep(site.settle_seconds)
    after = server.switch_state() or {}
    returned = back  # where no return was logged, the gaps are those at the pin
    row: Row = {}
    wall_clock = time.time() - time.perf_counter()
    for event in server.events("specswitch.transition", offset):
        at = datetime.fromisoformat(event["timestamp"]).timestamp() - wall_clock
        if event["to"] == "DRAINING" and at > to_plain - 0.005 and "decision_to_first_plain_token_ms" not in row:
            first = min((_first_chunk(stream, at, plain=True) for stream in streams), default=None)
            row["decision_to_first_plain_token_ms"] = ms(None if first is None else first - at)
        elif event["to"] == "PLAIN" and at > to_plain - 0.005 and "enter_plain_ms" not in row:
            row["enter_plain_ms"] = event["duration_ms"]
            row["slots_given_back"] = event["slots_given_back"]
        elif event["from"] == "PLAIN" and at > back - 0.005 and "return_ms" not in row:
            returned, decided = at, at - event["duration_ms"] / 1e3
            first = min((_first_chunk(stream, at - 0.002, plain=False) for stream in streams), default=None)
            row["return_ms"] = event["duration_ms"]
            row["decision_to_first_verified_tokens_ms"] = ms(None if first is None else first - decided)
    row |= {
        "longest_gap_ms_while_speculative": ms(_longest_gap(streams, to_plain - 0.3, to_plain)),
        "longest_gap_ms_to_plain": ms(_longest_gap(streams, to_plain, to_plain + 0.2)),
        "longest_gap_ms_while_plain": ms(_longest_gap(streams, min(to_plain + 0.2, back - 0.1), back)),
        "longest_gap_ms_back": ms(_longest_gap(streams, back, returned + 0.1)),
        "gaps_back_ms": _gaps(streams[0], back, returned + 0.1),
    }
    counts = (before.get("draft_kv", {}), after.get("draft_kv", {}))
    row |= {
        name: round(value - counts[0].get(name, 0), 3)
        for name, value in counts[1].items()
        if name.startswith(("tokens", "asides", "seconds")) and isinstance(value, (int, float))
    }
    return {**row, "fault": after.get("fault"), "error": first_error(streams)}


async def _there_and_back(
    site: Site, plan: Switches, inputs: list[list[int]], missed: int
) -> tuple[list[Answer], float, float]:
    """The streams, and when they were told to decode plainly and to speculate again."""
    url, loop = site.server.url, asyncio.get_running_loop()
    streams = [Answer() for _ in inputs]
    tokens = 2 * (missed + plan.lead_tokens) + 4 * plan.lead_tokens

    async def everybody_has(more: int, than: list[int]) -> None:
        give_up = time.perf_counter() + _DEADLINE_SECONDS
        while any(stream.tokens < start + more for stream, start in zip(streams, than, strict=True)):
            if any(stream.done for stream in streams):
                raise RuntimeError(f"a request ended before the switches did: {first_error(streams) or 'ask for more'}")
            if time.perf_counter() > give_up:
                raise TimeoutError("the requests did not get on")
            await asyncio.sleep(0.001)

    async with client.session() as session:
        tasks = [
            asyncio.create_task(client.generate(session, url, ids, tokens, stream=True, answer=stream))
            for ids, stream in zip(inputs, streams, strict=True)
        ]
        await everybody_has(plan.lead_tokens, [0] * len(streams))
        to_plain = time.perf_counter()
        await loop.run_in_executor(None, site.server.pin, "plain")
        await everybody_has(missed, [stream.tokens for stream in streams])
        back = time.perf_counter()
        await loop.run_in_executor(None, site.server.pin, "speculative")
        await everybody_has(plan.lead_tokens, [stream.tokens for stream in streams])
        await _abort_all(session, url)
        await asyncio.wait(tasks, timeout=10)
    for stream in streams:
        stream.error = None if stream.chunks else "no answer"
    return streams, to_plain, back


async def _abort_all(session: aiohttp.ClientSession, url: str) -> None:
    async with session.post(f"{url}/abort_request", json={"rid": "", "abort_all": True}) as answer:
        await answer.read()


def _first_chunk(stream: Answer, after: float, plain: bool) -> float:
    """When the first chunk of one token (``plain``) or of more came; infinity if none did."""
    for (_, before), (at, tokens) in itertools.pairwise(stream.chunks):
        if at > after and (tokens - before == 1) == plain:
            return at
    return float("inf")


def _gaps(stream: Answer, start: float, end: float) -> list[tuple[float, float, int]]:
    """(milliseconds after ``start``, waited for, tokens) of the stream's chunks that came in the span."""
    return [
        (round(1e3 * (later - start), 1), round(1e3 * (later - earlier), 1), tokens - before)
        for (earlier, before), (later, tokens) in itertools.pairwise(stream.chunks)
        if start <= later <= end
    ]


def _longest_gap(streams: list[Answer], start: float, end: float) -> float | None:
    """The longest time that any stream waited between two chunks, of those that ended in the span."""
    gaps = [
        later - earlier
        for stream in streams
        for (earlier, _), (later, _) in itertools.pairwise(stream.chunks)
        if start <= later <= end
    ]
    return max(gaps, default=None)
