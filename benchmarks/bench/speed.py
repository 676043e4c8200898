"""Throughput and latency of a closed loop at a steady concurrency."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator

import aiohttp

from bench import client
from bench.client import Answer
from bench.plan import Speed
from bench.servers import median_or_none
from bench.site import Row, Site, first_error, ms, quantile, switched

_WARM_UP_TOKENS = 16
_LOW = 32


def cases(plan: Speed) -> Iterator[Row]:
    for content, levels in (("random", plan.concurrency), ("one token", plan.one_token)):
        for repeat, pin, concurrency in itertools.product(range(plan.repeats + plan.low_repeats), plan.pins, levels):
            if repeat < plan.repeats or concurrency <= _LOW:
                yield {"content": content, "pin": pin, "concurrency": concurrency, "repeat": repeat}


def measure(site: Site, plan: Speed, content: str, pin: str, concurrency: int, repeat: int) -> Row:
    """``concurrency`` requests in flight until all are answered."""
    server = site.server
    site.prepare(plan.accept_length, pin)
    asyncio.run(_wave(site, f"warm {repeat} {pin}", plan, content, concurrency, concurrency, _WARM_UP_TOKENS))
    time.sleep(site.settle_seconds)
    before, offset = server.switch_state(), server.log_size()
    count = concurrency * (plan.auto_rounds if pin == "auto" else plan.rounds)
    began = time.perf_counter()
    answers = asyncio.run(_wave(site, f"speed {repeat}", plan, content, concurrency, count, plan.output_tokens))
    seconds = time.perf_counter() - began
    time.sleep(site.settle_seconds)
    lines = server.decode_lines(offset, concurrency)
    gaps = [gap for answer in answers for gap in answer.gaps()]
    token_gaps = [gap for answer in answers for _, gap in answer.token_gaps()]
    per_token = [
        (answer.chunks[-1][0] - answer.chunks[0][0]) / (answer.tokens - answer.chunks[0][1])
        for answer in answers
        if len(answer.chunks) > 1
    ]
    return {
        "requests": count,
        "input_tokens": plan.input_tokens,
        "output_tokens": plan.output_tokens,
        "steady_tok_s": median_or_none([speed for speed, _ in lines]),
        "steady_samples": len(lines),
        "end_to_end_tok_s": round(sum(answer.tokens for answer in answers) / seconds, 1),
        "token_latency_ms_p50": ms(quantile(per_token, 0.5)),
        "token_gap_ms_p50": ms(quantile(token_gaps, 0.5)),
        "token_gap_ms_p99": ms(quantile(token_gaps, 0.99)),
        "chunk_gap_ms_p50": ms(quantile(gaps, 0.5)),
        "chunk_gap_ms_p99": ms(quantile(gaps, 0.99)),
        "accept_length": median_or_none([accept for _, accept in lines if accept is not None]),
        **switched(before, server.switch_state()),
        "error": first_error(answers),
    }


async def _wave(
    site: Site, seed: str, plan: Speed, content: str, concurrency: int, count: int, tokens: int
) -> list[Answer]:
    inputs = client.prompts(f"{seed} {concurrency}", count, plan.input_tokens, site.vocab_size)
    if content == "one token":
        # the first token differs, so that no prompt finds another's KV in the prefix cache
        inputs = [[ids[0], *inputs[0][:1] * (plan.input_tokens - 1)] for ids in inputs]
    places = iter(range(count))
    answers: list[Answer] = []

    async def one_after_another(session: aiohttp.ClientSession, probe: bool) -> None:
        for place in places:
            answers.append(await client.generate(session, site.server.url, inputs[place], tokens, stream=probe))

    async with client.session() as session:
        await asyncio.gather(*(one_after_another(session, worker < plan.probes) for worker in range(concurrency)))
    return answers
