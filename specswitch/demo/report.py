"""What a demo run showed: the checks, the figures, the rows of its table, and all of it as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from specswitch.demo.load import Answer, Job, Phase
from specswitch.demo.sampler import Sample
from specswitch.signals import Mode


class Span(NamedTuple):
    """A stay in one mode, in seconds since start."""

    mode: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the plain server's."""

    job: Job
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: what happened between two moments."""

    start: float
    end: float
    concurrency: str
    """Requests that the client kept in flight."""
    batch_size: int
    """The largest decode batch seen."""
    modes: tuple[str, ...]
    """The modes passed through, in order."""
    tokens_per_second: float
    accept_length: float | None
    """The last one shown while SPECULATIVE."""
    transitions: int
    """Taken in between."""


@dataclass(frozen=True, slots=True)
class ModeFigures:
    """All stays in one mode together."""

    seconds: float
    tokens: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Report:
    """One demo run.  ``transitions`` are the log's events with ``seconds`` since start added."""

    active: Mapping[str, Any]
    """The event ``specswitch.active``."""
    phases: Sequence[Phase]
    samples: Sequence[Sample]
    transitions: Sequence[Mapping[str, Any]]
    answers: Sequence[Answer]
    expected: Mapping[Job, Answer]
    """The plain server's answer to each job."""
    fault: str | None = None

    @property
    def differences(self) -> list[Difference]:
        """Answers that differ from the plain server's in text, length or reason to end."""
        return [
            Difference(answer.job, self.expected[answer.job].text, answer.text)
            for answer in self.answers
            if _shown(answer) != _shown(self.expected[answer.job])
        ]

    @property
    def switched_both_ways(self) -> bool:
        """Whether the server entered PLAIN and came back."""
        taken = {(event["from"], event["to"]) for event in self.transitions}
        return {("DRAINING", "PLAIN"), ("PLAIN", "SPECULATIVE")} <= taken

    @property
    def accept_length(self) -> float | None:
        """Tokens per request and verify step, over all answers; None without a verify step."""
        steps = sum(answer.verify_steps for answer in self.answers)
        return 1 + sum(answer.accepted_drafts for answer in self.answers) / steps if steps else None

    @property
    def end(self) -> float:
        """Seconds covered by the samples."""
        return self.samples[-1].seconds

    def spans(self) -> Iterator[Span]:
        """The stays in each mode, from the log; they follow one another without a gap."""
        mode, since = Mode.SPECULATIVE.value, 0.0
        for event in self.transitions:
            yield Span(mode, since, event["seconds"])
            mode, since = event["to"], event["seconds"]
        yield Span(mode, since, max(self.end, since))

    def tokens_at(self, seconds: float) -> float:
        """Tokens received until then, interpolated between samples."""
        for before, after in pairwise(self.samples):
            if before.seconds <= seconds <= after.seconds:
                share = (seconds - before.seconds) / ((after.seconds - before.seconds) or 1.0)
                return before.tokens + share * (after.tokens - before.tokens)
        return float(self.samples[0].tokens if seconds < self.samples[0].seconds else self.samples[-1].tokens)

    def throughput(self, start: float, end: float) -> float:
        """Tokens received per second between two moments."""
        return (self.tokens_at(end) - self.tokens_at(start)) / (end - start)

    def by_mode(self) -> dict[str, ModeFigures]:
        """SPECULATIVE and PLAIN, as far as they occurred; the moments spent DRAINING belong to neither."""
        figures = {}
        for mode in (Mode.SPECULATIVE.value, Mode.PLAIN.value):
            stays = [span for span in self.spans() if span.mode == mode and span.end > span.start]
            seconds = sum(span.end - span.start for span in stays)
            if seconds:
                tokens = sum(self.tokens_at(span.end) - self.tokens_at(span.start) for span in stays)
                figures[mode] = ModeFigures(round(seconds, 1), round(tokens), round(tokens / seconds, 1))
        return figures

    def rows(self, width: float) -> Iterator[Row]:
        """The run in slices of ``width`` seconds."""
        start = 0.0
        while start < self.end:
            end = min(start + width, self.end)
            inside = [sample for sample in self.samples if start <= sample.seconds < end]
            yield self._row(start, end, inside or [self._latest(start)])
            start += width

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "active": dict(self.active),
            "phases": [asdict(phase) for phase in self.phases],
            "summary": {
                "answers": len(self.answers),
                "answers_that_differ": len(self.differences),
                "distinct_requests": len({answer.job for answer in self.answers}),
                "tokens": sum(answer.tokens for answer in self.answers),
                "accept_length": None if self.accept_length is None else round(self.accept_length, 3),
                "switched_both_ways": self.switched_both_ways,
                "by_mode": {mode: asdict(figures) for mode, figures in self.by_mode().items()},
                "fault": self.fault,
            },
            "transitions": [dict(event) for event in self.transitions],
            "samples": [asdict(sample) for sample in self.samples],
            "differences": [asdict(difference) for difference in self.differences],
        }

    def write_json(self, path: Path) -> None:
        """Write :meth:`as_dict`."""
        path.write_text(json.dumps(self.as_dict(), indent=2) + "\n", encoding="utf-8")

    def _latest(self, seconds: float) -> Sample:
        return [self.samples[0], *(sample for sample in self.samples if sample.seconds <= seconds)][-1]

    def _row(self, start: float, end: float, inside: Sequence[Sample]) -> Row:
        modes = [span.mode for span in self.spans() if span.start < end and span.end > start and _visible(span)]
        lengths = [sample.accept_length for sample in inside if sample.mode == Mode.SPECULATIVE.value]
        return Row(
            start=start,
            end=end,
            concurrency=_range(sample.concurrency for sample in inside),
            batch_size=max(sample.batch_size for sample in inside),
            modes=tuple(mode for i, mode in enumerate(modes) if i == 0 or modes[i - 1] != mode),
            tokens_per_second=self.throughput(start, end),
            accept_length=lengths[-1] if lengths else None,
            transitions=sum(start <= event["seconds"] < end for event in self.transitions),
        )


def _shown(answer: Answer) -> tuple[str, int, str]:
    return answer.text, answer.tokens, answer.finish_reason


def _visible(span: Span) -> bool:
    """A drain without overlap begins and ends in the same turn."""
    return span.mode != Mode.DRAINING.value or span.end - span.start >= 0.05


def _range(numbers: Iterable[int]) -> str:
    ordered = list(numbers)
    first, last = ordered[0], ordered[-1]
    return str(first) if first == last else f"{first} to {last}"
