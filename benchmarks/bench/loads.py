"""Loads that change: a ramp in a closed loop, and a public trace of when requests came."""

from __future__ import annotations

import asyncio
import csv
import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import aiohttp

from bench import client
from bench.client import Answer
from bench.plan import Ramp, Trace
from bench.site import Row, Site, first_error, ms, quantile, switched


def ramp_cases(plan: Ramp) -> Iterator[Row]:
    for course, repeat in itertools.product(plan.courses, range(plan.repeats)):
        yield {"course": course, "repeat": repeat}


def measure_ramp(site: Site, plan: Ramp, course: str, repeat: int) -> Row:
    """Each phase keeps its number of requests in flight; what runs when it ends runs on into the next.

    Tokens are counted where they were put out, as far as that is known: those of a request that does not stream are
    spread evenly over its time.
    """
    course_phases = plan.courses[course]
    site.prepare(course_phases[0][1], plan.pin)
    before = site.server.switch_state()
    answers, edges = asyncio.run(_ramp(site, plan, course_phases, f"ramp {repeat}"))
    time.sleep(site.settle_seconds)
    phases = []
    for (concurrency, accept_length), (start, end) in zip(course_phases, itertools.pairwise(edges), strict=True):
        gaps = [gap for answer in answers for at, gap in answer.token_gaps() if start <= at < end]
        tokens = sum(_tokens_within(answer, start, end) for answer in answers)
        phases.append(
            {
                "concurrency": concurrency,
                "accept_length": accept_length,
                "tok_s": round(tokens / (end - start), 1),
                "token_gap_ms_p50": ms(quantile(gaps, 0.5)),
                "token_gap_ms_p99": ms(quantile(gaps, 0.99)),
            }
        )
    gaps = [gap for answer in answers for at, gap in answer.token_gaps() if at < edges[-1]]
    seconds = edges[-1] - edges[0]
    return {
        "seconds": round(seconds, 2),
        "tok_s": round(sum(phase["tok_s"] for phase in phases) / len(phases), 1),
        "token_gap_ms_p50": ms(quantile(gaps, 0.5)),
        "token_gap_ms_p99": ms(quantile(gaps, 0.99)),
        **switched(before, site.server.switch_state()),
        "phases": phases,
        "error": first_error(answers),
    }


async def _ramp(
    site: Site, plan: Ramp, phases: Sequence[tuple[int, float]], seed: str
) -> tuple[list[Answer], list[float]]:
    """The answers, and the times at which phases begin and the last one ends."""
    prompts = (
        client.prompts(f"{seed} {number}", 1, plan.input_tokens, site.vocab_size)[0] for number in itertools.count()
    )
    answers: list[Answer] = []
    wanted = 0
    workers: dict[int, asyncio.Task[None]] = {}

    async def one_after_another(session: aiohttp.ClientSession, worker: int) -> None:
        while worker < wanted:
            answers.append(answer := Answer())
            ids, probe = next(prompts), worker < plan.probes
            await client.generate(session, site.server.url, ids, plan.output_tokens, stream=probe, answer=answer)

    edges = [time.perf_counter()]
    async with client.session() as session:
        for concurrency, accept_length in phases:
            if site.dial is not None:
                site.dial.turn(accept_length)
            wanted = concurrency
            for worker in range(concurrency):
                if worker not in workers or workers[worker].done():
                    workers[worker] = asyncio.create_task(one_after_another(session, worker))
            edges.append(edges[-1] + plan.phase_seconds)
            await asyncio.sleep(max(0.0, edges[-1] - time.perf_counter()))
        wanted = 0
        await asyncio.gather(*workers.values())
    return answers, edges


def _tokens_within(answer: Answer, start: float, end: float) -> float:
    """Tokens put out in a span of time."""
    if answer.chunks:
        counts = [(at, tokens - before) for (_, before), (at, tokens) in itertools.pairwise([(0.0, 0), *answer.chunks])]
        return float(sum(tokens for at, tokens in counts if start <= at < end))
    overlap = min(end, answer.done) - max(start, answer.sent)
    return answer.tokens * max(0.0, overlap) / max(1e-9, answer.done - answer.sent)


def trace_cases(plan: Trace) -> Iterator[Row]:
    for repeat in range(plan.repeats):
        yield {"speedup": plan.speedup, "repeat": repeat}


def measure_trace(site: Site, plan: Trace, speedup: float, repeat: int) -> Row:
    """All requests of the span, sent when they came; throughput is over the time until the last one is answered."""
    if site.trace is None:
        raise ValueError("the plan wants a load trace: give one by --trace")
    arrivals = read_trace(site.trace, plan)
    site.prepare(plan.accept_length, plan.pin)
    before = site.server.switch_state()
    answers = asyncio.run(_replay(site, plan, arrivals, f"trace {repeat}"))
    time.sleep(site.settle_seconds)
    seconds = max(answer.done for answer in answers) - min(answer.sent for answer in answers)
    gaps = [gap for answer in answers for _, gap in answer.token_gaps()]
    times = [answer.done - answer.sent for answer in answers]
    return {
        "requests": len(answers),
        "input_tokens": sum(arrival[1] for arrival in arrivals),
        "output_tokens": sum(answer.tokens for answer in answers),
        "seconds": round(seconds, 2),
        "tok_s": round(sum(answer.tokens for answer in answers) / seconds, 1),
        "request_s_p50": round(quantile(times, 0.5) or 0.0, 3),
        "request_s_p99": round(quantile(times, 0.99) or 0.0, 3),
        "token_gap_ms_p50": ms(quantile(gaps, 0.5)),
        "token_gap_ms_p99": ms(quantile(gaps, 0.99)),
        **switched(before, site.server.switch_state()),
        "error": first_error(answers),
    }


def read_trace(path: Path, plan: Trace) -> list[tuple[float, int, int]]:
    """(seconds after the start, prompt tokens, output tokens) of the span's requests, sped up.

    Reads the columns of the Azure LLM inference traces: TIMESTAMP, ContextTokens, GeneratedTokens.
    """
    with path.open(newline="") as stream:
        rows = [
            (
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
            )
            for row in csv.DictReader(stream)
        ]
    began = rows[0][0] + plan.skip_seconds
    return [
        (
            (at - began) / plan.speedup,
            min(inputs, plan.most_input_tokens),
            max(1, min(outputs, plan.most_output_tokens)),
        )
        for at, inputs, outputs in rows
        if 0 <= at - began < plan.seconds * plan.speedup
    ]


async def _replay(site: Site, plan: Trace, arrivals: list[tuple[float, int, int]], seed: str) -> list[Answer]:
    prompts = [
        client.prompts(f"{seed} {number}", 1, inputs, site.vocab_size)[0]
        for number, (_, inputs, _) in enumerate(arrivals)
    ]
    began = time.perf_counter()

    async def arrive(session: aiohttp.ClientSession, number: int) -> Answer:
        at, _, tokens = arrivals[number]
        await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
        stream = number % plan.probe_every == 0
        return await client.generate(session, site.server.url, prompts[number], tokens, stream=stream)

    async with client.session() as session:
        return list(await asyncio.gather(*(arrive(session, number) for number in range(len(arrivals)))))
