"""A step's time is taken only where nothing but that step lay between two decode results."""

from __future__ import annotations

from typing import Any

import pytest
from cases import Case, typical_cases
from switching import Request, Scenario, open_switched, run

from specswitch.signals import Mode

pytestmark = pytest.mark.real


class _Watch:
    """What happened between one decode result and the next, and whether the latter was given a time."""

    def __init__(self, scheduler: Any) -> None:
        self._engine = scheduler.specswitch.engine
        self._between: set[str] = set()
        self.found: list[tuple[frozenset[str], bool]] = []
        self._around(scheduler, "run_batch", lambda batch, *_: self._extend(batch, "launch"))
        self._around(scheduler, "process_batch_result", lambda batch, *_: self._extend(batch, "result"))
        self._around(self._engine, "write_draft_kv", lambda *_: "beside")
        decoded = self._engine._readings.decoded

        def noted(*arguments: Any) -> None:
            decoded(*arguments)
            self.found.append((frozenset(self._between), self._engine._readings._readings[-1].seconds is not None))
            self._between.clear()

        self._engine._readings.decoded = noted

    def _around(self, owner: Any, name: str, what: Any) -> None:
        original = getattr(owner, name)

        def watched(*arguments: Any, **more: Any) -> Any:
            if found := what(*arguments):
                self._between.add(found)
            return original(*arguments, **more)

        setattr(owner, name, watched)

    @staticmethod
    def _extend(batch: Any, what: str) -> str | None:
        return f"{what} of a prefill" if batch.forward_mode.is_extend() else None


@pytest.mark.parametrize("case", typical_cases(), ids=str)
def test_what_lies_between_two_results_is_not_taken_for_a_step(case: Case) -> None:
    flags = ["--specswitch-policy", "goodput", "--specswitch-max-pause-ms", "1"]
    made = [Request(f"r{index}", [1, 40 + index, 7, 9, 60 + index], 60, turn=9 * index) for index in range(8)]
    with open_switched(**case.options, flags=flags, max_total_tokens=4096) as server:
        watch = _Watch(server.scheduler)
        outcome = run(server, Scenario(made, lambda turn, _: (Mode.SPECULATIVE, Mode.PLAIN)[turn // 25 % 2]))
    assert outcome.switches >= 3
    seen = {what for between, _ in watch.found for what in between}
    assert {"launch of a prefill", "result of a prefill"} <= seen
    assert ("beside" in seen) == case.has_draft_model
    assert not [between for between, timed in watch.found if between and timed]
    assert sum(timed for _, timed in watch.found) > 20
