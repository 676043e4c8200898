"""Hidden states that are kept for the draft, beside those that clients ask for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import cases
from switching import Scenario, open_plain, open_switched, run, workload

pytestmark = pytest.mark.real

VOCAB_SIZE = 250
MODE = next(case.mode for case in cases() if case.mode in ("eagle-v2", "eagle-topk1"))
FLAGS = ["--specswitch-mode", "plain", "--specswitch-draft-kv-budget", "1"]


def test_clients_get_the_hidden_states_of_a_plain_server() -> None:
    short, *long = workload(7, 3, VOCAB_SIZE, max_new_tokens=40)
    made = [replace(short, max_new_tokens=15, options={"return_hidden_states": True}), *long]
    with open_plain("plain", enable_return_hidden_states=True) as server:
        plain = run(server, Scenario(made)).outputs
    with open_switched(MODE, flags=FLAGS, enable_return_hidden_states=True) as server:
        kept = server.scheduler.specswitch.engine._alone.kept
        run(server, Scenario([replace(made[0], rid="alone")]))
        assert kept.written == 0
        switched = run(server, Scenario(made)).outputs
        run(server, Scenario([replace(made[1], rid="later")]))
        assert kept.written > 0
    for rid, output in switched.items():
        assert output.output_ids == plain[rid].output_ids
        assert len(output.hidden_states) == len(plain[rid].hidden_states)
        for row, expected in zip(output.hidden_states[1:], plain[rid].hidden_states[1:], strict=True):
            assert row == pytest.approx(expected, abs=1e-4)
