"""The three measurements.  Each yields rows, one dictionary with plain values each."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp

from bench import client
from bench.client import Answer
from bench.plan import Accuracy, Server, Speed, Switches
from bench.servers import RunningServer, median_or_none

Row = dict[str, Any]
_WARM_UP_TOKENS = 16
_TO_PLAIN = {"min_p": 0.01}
"""Sampling of a request for which servers with ``--specswitch-plain-for min_p`` decode plainly; greedy all the same."""


class Bench:
    """Measurements of one server.

    Args:
        server: ready, and the only busy one on the GPU.
        vocab_size: of the served model.
        settle_seconds: how long the server's last log lines take to be written.
    """

    def __init__(self, server: RunningServer, vocab_size: int, settle_seconds: float, answers: Path) -> None:
        self._server = server
        self._vocab_size = vocab_size
        self._settle_seconds = settle_seconds
        self._answers = answers

    # Throughput

    def speed(self, plan: Speed, content: str, concurrency: int, repeat: int) -> Row:
        """Closed loop: ``concurrency`` requests in flight until all are answered."""
        server = self._server
        server.flush_cache()
        asyncio.run(self._wave(f"warm {repeat}", plan, content, concurrency, concurrency, _WARM_UP_TOKENS))
        time.sleep(self._settle_seconds)
        before, offset = server.switch_state(), server.log_size()
        count = concurrency * plan.rounds
        began = time.perf_counter()
        answers = asyncio.run(self._wave(f"speed {repeat}", plan, content, concurrency, count, plan.output_tokens))
        seconds = time.perf_counter() - began
        time.sleep(self._settle_seconds)
        lines = server.decode_lines(offset, concurrency)
        gaps = [gap for answer in answers for gap in answer.gaps()]
        per_token = [
            (answer.chunks[-1][0] - answer.chunks[0][0]) / (answer.tokens - answer.chunks[0][1])
            for answer in answers
            if len(answer.chunks) > 1
        ]
        return {
            "kind": "speed",
            "server": server.name,
            "content": content,
            "concurrency": concurrency,
            "repeat": repeat,
            "requests": count,
            "input_tokens": plan.input_tokens,
            "output_tokens": plan.output_tokens,
            "steady_tok_s": median_or_none([speed for speed, _ in lines]),
            "steady_samples": len(lines),
            "end_to_end_tok_s": round(sum(answer.tokens for answer in answers) / seconds, 1),
            "token_latency_ms_p50": _ms(_quantile(per_token, 0.5)),
            "chunk_gap_ms_p50": _ms(_quantile(gaps, 0.5)),
            "chunk_gap_ms_p99": _ms(_quantile(gaps, 0.99)),
            "accept_length": median_or_none([accept for _, accept in lines if accept is not None]),
            **_during(before, server.switch_state()),
            "error": _first_error(answers),
        }

    async def _wave(
        self, seed: str, plan: Speed, content: str, concurrency: int, count: int, tokens: int
    ) -> list[Answer]:
        inputs = client.prompts(f"{seed} {concurrency}", count, plan.input_tokens, self._vocab_size)
        if content == "one token":
            # the first token differs, so that no prompt finds another's KV in the prefix cache
            inputs = [[ids[0], *inputs[0][:1] * (plan.input_tokens - 1)] for ids in inputs]
        places = iter(range(count))
        answers: list[Answer] = []

        async def one_after_another(session: aiohttp.ClientSession, probe: bool) -> None:
            for place in places:
                answers.append(await client.generate(session, self._server.url, inputs[place], tokens, stream=probe))

        async with client.session() as session:
            await asyncio.gather(*(one_after_another(session, worker < plan.probes) for worker in range(concurrency)))
        return answers

    # The cost of a switch

    def switch(self, plan: Switches, batch_size: int, missed: int, repeat: int) -> Row:
        """To PLAIN and back while ``batch_size`` requests stream, which decode ``missed`` tokens in PLAIN.

        PLAIN lasts as long as one further request that asks for it, so the same is done with a further request
        that does not: the gaps of that run are what its prefill costs anyway.
        """
        server = self._server
        row: Row = {"kind": "switch", "server": server.name, "batch_size": batch_size, "missed": missed}
        row["repeat"] = repeat
        for name, sampling in (("control", {}), ("", _TO_PLAIN)):
            server.flush_cache()
            offset = server.log_size()
            seed = f"switch {batch_size} {missed} {repeat} {name}"
            streams, trigger = asyncio.run(self._under_load(seed, plan, batch_size, missed, sampling))
            time.sleep(self._settle_seconds)
            prefix = f"{name}_" if name else ""
            until = trigger.sent + min(0.4, (trigger.done - trigger.sent) / 2)
            row[f"{prefix}longest_gap_ms_to_plain"] = _ms(_longest_gap(streams, trigger.sent, until))
            row[f"{prefix}longest_gap_ms_back"] = _ms(_longest_gap(streams, trigger.done - 0.02, trigger.done + 1.0))
            row["error"] = row.get("error") or _first_error([*streams, trigger])
            if not name:
                row |= self._transitions(streams, offset)
        return row

    async def _under_load(
        self, seed: str, plan: Switches, batch_size: int, missed: int, sampling: dict[str, Any]
    ) -> tuple[list[Answer], Answer]:
        url, vocab = self._server.url, self._vocab_size
        inputs = client.prompts(seed, batch_size, plan.input_tokens, vocab)
        (trigger_input,) = client.prompts(f"{seed} trigger", 1, 16, vocab)
        tokens = missed + 2 * plan.lead_tokens
        async with client.session() as session:
            streams = [asyncio.create_task(client.generate(session, url, ids, tokens, stream=True)) for ids in inputs]
            await asyncio.sleep(self._lead_seconds)
            trigger = await client.generate(session, url, trigger_input, missed, sampling=sampling)
            return list(await asyncio.gather(*streams)), trigger

    _lead_seconds = 0.45

    def _transitions(self, streams: list[Answer], offset: int) -> Row:
        """What specswitch's log says of the switch, and when tokens of the new mode reached the clients."""
        wall_clock = time.time() - time.perf_counter()
        row: Row = {}
        for event in self._server.events("specswitch.transition", offset):
            at = datetime.fromisoformat(event["timestamp"]).timestamp() - wall_clock
            if event["to"] == "DRAINING":
                decided = at
                first = min((_first_chunk(stream, decided, plain=True) for stream in streams), default=None)
                row["decision_to_first_plain_token_ms"] = _ms(None if first is None else first - decided)
            elif event["to"] == "PLAIN":
                row["enter_plain_ms"] = event["duration_ms"]
                row["slots_given_back"] = event["slots_given_back"]
            elif event["from"] == "PLAIN":
                decided = at - event["duration_ms"] / 1e3
                first = min((_first_chunk(stream, at - 0.002, plain=False) for stream in streams), default=None)
                row["return_ms"] = event["duration_ms"]
                row["tokens_caught_up"] = event["tokens_caught_up"]
                row["decision_to_first_verified_tokens_ms"] = _ms(None if first is None else first - decided)
        return row

    # The same tokens

    def accuracy(self, plan: Accuracy, run: int) -> Row:
        """Greedy answers, with ``plan.switches`` switches meanwhile, compared with the reference's in its file."""
        server = self._server
        is_reference = server.name == plan.reference and run == 0
        # the reference's second run, in other batches, shows how far it agrees with itself
        concurrency = plan.concurrency if run == 0 else plan.concurrency // 2
        server.flush_cache()
        offset = server.log_size()
        answers = asyncio.run(self._answer_all(plan, concurrency, is_reference))
        time.sleep(self._settle_seconds)
        own = [{"output_ids": answer.output_ids, "top": _top_two(answer)} for answer in answers]
        row: Row = {"kind": "accuracy", "server": server.name, "run": run, "reference": plan.reference}
        row |= {"requests": plan.requests, "concurrency": concurrency}
        row["switches"] = len(server.events("specswitch.transition", offset))
        row["error"] = _first_error(answers)
        if row["error"] is not None:
            return row
        self._answers.mkdir(parents=True, exist_ok=True)
        kept = self._answers / f"{plan.reference}.json"
        if is_reference:
            kept.write_text(json.dumps(own))
            return {**row, "role": "reference"}
        if not kept.exists():
            return {**row, "error": f"{plan.reference} has to be measured first"}
        return row | _agreement(json.loads(kept.read_text()), own)

    async def _answer_all(self, plan: Accuracy, concurrency: int, with_logprobs: bool) -> list[Answer]:
        inputs = client.prompts("accuracy", plan.requests, plan.input_tokens, self._vocab_size)
        extra = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2} if with_logprobs else {}
        answers: list[Answer] = [Answer()] * plan.requests
        places = iter(range(plan.requests))
        url = self._server.url

        async def one_after_another(session: aiohttp.ClientSession) -> None:
            for place in places:
                answers[place] = await client.generate(session, url, inputs[place], plan.output_tokens, **extra)

        async def triggers(session: aiohttp.ClientSession) -> None:
            for number, ids in enumerate(client.prompts("triggers", plan.switches, 16, self._vocab_size)):
                await asyncio.sleep(0.3 if number == 0 else 0.6)
                await client.generate(session, url, ids, 40, sampling=_TO_PLAIN)

        async with client.session() as session:
            await asyncio.gather(triggers(session), *(one_after_another(session) for _ in range(concurrency)))
        return answers


def cases(name: str, plan: Server) -> Iterator[tuple[str, Row]]:
    """Every (method of :class:`Bench`, arguments) that a server's description asks for."""
    if plan.accuracy is not None:
        for run in range(2 if name == plan.accuracy.reference else 1):
            yield "accuracy", {"run": run}
    if plan.speed is not None:
        for content, levels in (("random", plan.speed.concurrency), ("one token", plan.speed.one_token)):
            for repeat, concurrency in itertools.product(range(plan.speed.repeats), levels):
                yield "speed", {"content": content, "concurrency": concurrency, "repeat": repeat}
    if plan.switches is not None:
        for repeat, size, missed in itertools.product(
            range(plan.switches.repeats), plan.switches.batch_sizes, plan.switches.missed_tokens
        ):
            yield "switch", {"batch_size": size, "missed": missed, "repeat": repeat}


def _agreement(reference: list[Row], own: list[Row]) -> Row:
    """How many answers are the same, and for the others the reference's top-2 logprob gap where they part."""
    gaps, second_choice, same = [], 0, 0
    for expected, got in zip(reference, own, strict=True):
        pairs = zip(expected["output_ids"], got["output_ids"], strict=False)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            same += 1
            continue
        (best, _), (second, second_token) = expected["top"][at]
        gaps.append(round(best - second, 5))
        second_choice += second_token == got["output_ids"][at]
    every_gap = sorted(top[0][0] - top[1][0] for answer in reference for top in answer["top"])
    return {
        "role": "compared",
        "same": same,
        "parted": len(gaps),
        "parted_at_second_choice": second_choice,
        "parted_gaps": sorted(gaps),
        "median_gap_of_all_tokens": round(statistics.median(every_gap), 5) if every_gap else None,
    }


def _top_two(answer: Answer) -> list[list[tuple[float, int]]]:
    tops = answer.meta.get("output_top_logprobs") or []
    return [[(choice[0], choice[1]) for choice in top[:2]] for top in tops]


def _first_chunk(stream: Answer, after: float, plain: bool) -> float:
    """When the first chunk of one token (``plain``) or of more came; infinity if none did."""
    for (_, before), (at, tokens) in itertools.pairwise(stream.chunks):
        if at > after and (tokens - before == 1) == plain:
            return at
    return float("inf")


def _longest_gap(streams: list[Answer], start: float, end: float) -> float | None:
    """The longest time that any stream waited between two chunks, of those that ended in the span."""
    gaps = [
        later - earlier
        for stream in streams
        for (earlier, _), (later, _) in itertools.pairwise(stream.chunks)
        if start <= later <= end
    ]
    return max(gaps, default=None)


def _during(before: Row | None, after: Row | None) -> Row:
    """What specswitch did between two of its states: switches, and the share of decode steps in PLAIN."""
    if before is None or after is None:
        return {}
    steps = {mode: count - before["steps"][mode] for mode, count in after["steps"].items()}
    return {
        "mode": after["mode"],
        "transitions": after["transitions"] - before["transitions"],
        "plain_share": round(steps["PLAIN"] / max(1, sum(steps.values())), 3),
    }


def _first_error(answers: list[Answer]) -> str | None:
    return next((answer.error for answer in answers if answer.error is not None), None)


def _quantile(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or seconds == float("inf") else round(seconds * 1e3, 2)
