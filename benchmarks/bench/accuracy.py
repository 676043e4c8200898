"""The same tokens: greedy answers of a server that switches meanwhile, against a reference's."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator

import aiohttp

from bench import client
from bench.client import Answer
from bench.plan import Accuracy
from bench.site import Row, Site, first_error


def cases(plan: Accuracy, server: str) -> Iterator[Row]:
    for run in range(2 if server == plan.reference else 1):
        yield {"run": run}


def measure(site: Site, plan: Accuracy, run: int) -> Row:
    """Answers with ``plan.switches`` stays in PLAIN meanwhile, compared with the reference's in its file."""
    server = site.server
    is_reference = server.name == plan.reference and run == 0
    # the reference's second run, in other batches, shows how far it agrees with itself
    concurrency = plan.concurrency if run == 0 else plan.concurrency // 2
    site.prepare(pin="speculative" if plan.switches else "")
    before = server.switch_state()
    answers = asyncio.run(_answer_all(site, plan, concurrency, is_reference))
    time.sleep(site.settle_seconds)
    after = server.switch_state()
    own = [{"output_ids": answer.output_ids, "top": _top_two(answer)} for answer in answers]
    row: Row = {"reference": plan.reference, "requests": plan.requests, "concurrency": concurrency}
    if before is not None and after is not None:
        row["switches"] = after["transitions"] - before["transitions"]
        row["steps"] = {mode: count - before["steps"][mode] for mode, count in after["steps"].items()}
        row["accept_length"] = after["accept_length"]
    row["error"] = first_error(answers)
    if row["error"] is not None:
        return row
    site.answers.mkdir(parents=True, exist_ok=True)
    kept = site.answers / f"{plan.reference}.json"
    if is_reference:
        kept.write_text(json.dumps(own))
        return {**row, "role": "reference"}
    if not kept.exists():
        return {**row, "error": f"{plan.reference} has to be measured first"}
    return row | _agreement(json.loads(kept.read_text()), own)


async def _answer_all(site: Site, plan: Accuracy, concurrency: int, with_logprobs: bool) -> list[Answer]:
    inputs = _texts(site, plan) if plan.texts else client.prompts(
        "accuracy", plan.requests, plan.input_tokens, site.vocab_size
    )  # fmt: skip
    extra = {"return_logprob": True, "logprob_start_len": -1, "top_logprobs_num": 2} if with_logprobs else {}
    answers: list[Answer] = [Answer()] * plan.requests
    places = iter(range(plan.requests))
    loop = asyncio.get_running_loop()

    async def one_after_another(session: aiohttp.ClientSession) -> None:
        for place in places:
            answers[place] = await client.generate(session, site.server.url, inputs[place], plan.output_tokens, **extra)

    async def switch() -> None:
        for _ in range(plan.switches):
            for mode in ("plain", "speculative"):
                await asyncio.sleep(plan.switch_seconds)
                await loop.run_in_executor(None, site.server.pin, mode)

    async with client.session() as session:
        await asyncio.gather(switch(), *(one_after_another(session) for _ in range(concurrency)))
    return answers


def _texts(site: Site, plan: Accuracy) -> list[list[int]]:
    """Openings of every length, as the served model's tokenizer splits them; no two are the same."""
    from tokenizers import Tokenizer

    from specswitch.cpu_engine.prompts import PROMPTS

    tokenizer = Tokenizer.from_file(str(site.model / "tokenizer.json"))
    whole = [tokenizer.encode(prompt).ids for prompt in PROMPTS]
    rounds = -(-plan.requests // len(whole))
    cuts = [ids[: max(4, len(ids) * (rounds - turn) // rounds)] for turn in range(rounds) for ids in whole]
    return cuts[: plan.requests]


def _agreement(reference: list[Row], own: list[Row]) -> Row:
    """How many answers are the same, and for the others the reference's top-2 logprob gap where they part."""
    gaps, best_two, same = [], 0, 0
    for expected, got in zip(reference, own, strict=True):
        pairs = zip(expected["output_ids"], got["output_ids"], strict=False)
        at = next((place for place, (one, other) in enumerate(pairs) if one != other), None)
        if at is None:
            same += 1
            continue
        (best, best_token), (second, second_token) = expected["top"][at]
        gaps.append(round(best - second, 5))
        best_two += got["output_ids"][at] in (best_token, second_token)
    every_gap = sorted(top[0][0] - top[1][0] for answer in reference for top in answer["top"])
    return {
        "role": "compared",
        "same": same,
        "parted": len(gaps),
        "parted_within_best_two": best_two,
        "parted_gaps": sorted(gaps),
        "median_gap_of_all_tokens": round(statistics.median(every_gap), 5) if every_gap else None,
    }


def _top_two(answer: Answer) -> list[list[tuple[float, int]]]:
    tops = answer.meta.get("output_top_logprobs") or []
    return [[(choice[0], choice[1]) for choice in top[:2]] for top in tops]
