"""Send token requests to a server and note when their tokens come."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import aiohttp

_TIMEOUT = aiohttp.ClientTimeout(total=240)


@dataclass
class Answer:
    tokens: int = 0
    """Output tokens."""
    output_ids: list[int] = field(default_factory=list)
    sent: float = 0.0
    """``time.perf_counter`` seconds, as every time here."""
    done: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    """(time, output tokens so far) at each streamed chunk."""
    meta: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    def gaps(self) -> list[float]:
        """Seconds between chunks."""
        return [later - earlier for (earlier, _), (later, _) in pairwise(self.chunks)]

    def token_gaps(self) -> list[tuple[float, float]]:
        """(when, seconds between tokens): those of a chunk came together and share its gap."""
        return [
            (at, (at - before) / (tokens - tokens_before))
            for (before, tokens_before), (at, tokens) in pairwise(self.chunks)
            for _ in range(tokens - tokens_before)
        ]


def prompts(seed: str, count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random prompts, the same for the same seed; no two share a prefix worth caching."""
    dice = random.Random(seed)
    low, high = min(1000, vocab_size // 8), vocab_size - vocab_size // 16
    return [[dice.randrange(low, high) for _ in range(length)] for _ in range(count)]


async def generate(
    session: aiohttp.ClientSession,
    url: str,
    input_ids: Sequence[int],
    tokens: int,
    stream: bool = False,
    answer: Answer | None = None,
    **body: Any,
) -> Answer:
    """One greedy request of exactly ``tokens`` output tokens.  ``answer``, where given, grows with the stream."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    payload = {"input_ids": list(input_ids), "sampling_params": sampling, "stream": stream, **body}
    answer = Answer() if answer is None else answer
    answer.sent = time.perf_counter()
    try:
        async with session.post(f"{url}/generate", json=payload) as response:
            if not stream:
                _take(answer, await response.json())
            else:
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        now = time.perf_counter()
                        _take(answer, json.loads(line[6:]))
                        answer.chunks.append((now, answer.tokens))
    except (aiohttp.ClientError, asyncio.TimeoutError, ValueError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.done = time.perf_counter()
    return answer


def _take(answer: Answer, message: dict[str, Any]) -> None:
    if "meta_info" not in message:
        answer.error = str(message)[:300]
        return
    answer.meta = message["meta_info"]
    answer.tokens = answer.meta["completion_tokens"]
    answer.output_ids = message.get("output_ids") or answer.output_ids


def session() -> aiohttp.ClientSession:
    """Of connections that are not used again after uvicorn has begun to close idle ones (5 s)."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    return aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector, read_bufsize=2**20)
