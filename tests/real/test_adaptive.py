"""SGLang's adaptive speculation beside specswitch: it chooses the number of steps, specswitch whether to speculate."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version
from switching import Scenario, assert_same_answers, every, open_switched, plain_answers, run, workload

from specswitch.cpu_engine.inprocess import Output
from specswitch.cpu_engine.releases import installed_release
from specswitch.engine.hooks import InstanceHooks
from specswitch.signals import Mode

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        Version(installed_release().version) < Version("0.5.14"), reason="steps by batch size came then"
    ),
]

STEPS = {
    "1": {"candidate_steps": [1, 3], "up_hysteresis": 0.0, "down_hysteresis": -0.25, "ceiling_coeff": 0},
    "3": {"candidate_steps": [0, 1], "up_hysteresis": 0.0, "down_hysteresis": 0.0, "ceiling_coeff": 0},
}
"""Fewer steps from three requests on, none if too little is accepted."""


@pytest.fixture(scope="module")
def plain() -> dict[str, Output]:
    return plain_answers(workload(seed=51, count=6, vocab_size=250))


@pytest.mark.parametrize("budget", [0, 1], ids=["0MiB", "1MiB"])
@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "no-overlap"])
def test_steps_and_mode_change_side_by_side(
    overlap: bool, budget: int, plain: dict[str, Output], tmp_path: Path
) -> None:
    path = tmp_path / "steps.json"
    path.write_text(json.dumps(STEPS))
    hooks, steps = InstanceHooks(), Counter[int]()
    with open_switched(
        "eagle-topk1",
        flags=["--specswitch-draft-kv-budget", str(budget)],
        overlap=overlap,
        speculative_adaptive=True,
        speculative_adaptive_config=str(path),
    ) as server:
        worker = server.scheduler.draft_worker

        def count(original: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(batch, *args, **kwargs)
            steps[worker.speculative_num_steps] += 1
            return result

        hooks.around(worker, "verify", count)
        outcome = run(server, Scenario(workload(seed=51, count=6, vocab_size=250), every(12)))
        hooks.remove_all()
        draft_stats = server.scheduler.specswitch.engine.draft_stats
    assert_same_answers(outcome, plain)
    assert outcome.switches >= 4
    assert outcome.steps["PLAIN DECODE plain"] > 10
    assert not outcome.steps["PLAIN DECODE spec"]
    assert len(steps) >= 2, steps
    assert set(outcome.prefilled_in) >= {Mode.SPECULATIVE}
    print(draft_stats)
    assert draft_stats.tokens_caught_up > 0
    assert bool(draft_stats.tokens_written_alone) == bool(budget)
