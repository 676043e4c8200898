"""Which speculative servers the installed release of SGLang can be started as on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specswitch.cpu_engine.releases import installed_release

PAGE_SIZES = (1, 16)

_TYPICAL = {"eagle-topk4-v1": 1, "eagle-topk1-v1": 16, "eagle-v2": 16, "ngram": 1, "eagle-topk1": 16, "eagle-topk4": 1}

_WITH_DRAFT_KV = {
    # SGLang 0.5.12
    "eagle-topk1-v1-page1",
    "eagle3-v1-page1",
    "eagle-v2-page16",
    "standalone-v2-page1",
    # SGLang 0.5.13 and later
    "eagle-topk1-overlap-page16",
    "eagle3-topk4-overlap-page1",
    "eagle-topk4-no-overlap-page1",
    "standalone-topk1-overlap-page1",
}


@dataclass(frozen=True)
class Case:
    mode: str
    """A name of the release's table of modes."""
    overlap: bool
    page_size: int

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of ``InProcessScheduler``."""
        return {"mode": self.mode, "overlap": self.overlap, "page_size": self.page_size}

    @property
    def has_draft_model(self) -> bool:
        return installed_release().mode(self.mode).draft is not None

    def __str__(self) -> str:
        both_ways = installed_release().mode(self.mode).overlap is None
        overlap = ("-overlap" if self.overlap else "-no-overlap") if both_ways else ""
        return f"{self.mode}{overlap}-page{self.page_size}"


def cases() -> list[Case]:
    """Every speculative mode, with and without overlap where it runs both ways, at each page size SGLang accepts."""
    found = []
    for name, mode in installed_release().modes.items():
        if "speculative_algorithm" not in mode.arguments:
            continue
        for overlap in (True, False) if mode.overlap is None else (mode.overlap,):
            found += [Case(name, overlap, page) for page in PAGE_SIZES if page == 1 or mode.paged]
    return found


def typical_cases() -> list[Case]:
    """Each kind of worker and path once, at one page size."""
    return [case for case in cases() if _TYPICAL.get(case.mode) == case.page_size]


def draft_kv_cases() -> list[Case]:
    """Each kind of draft model and path once, at one page size or the other."""
    return [case for case in cases() if str(case) in _WITH_DRAFT_KV]
