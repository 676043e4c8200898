"""PLAIN decodes with graphs of its own, and SPECULATIVE goes on with those of verification."""

from __future__ import annotations

from collections import Counter
from importlib import metadata

import pytest
from closure_graphs import closure_graphs
from switching import Outcome, Scenario, assert_same_answers, every, open_plain, open_switched, run, workload

from specswitch.cpu_engine.inprocess import InProcessScheduler
from specswitch.engine import graph_sizes, plain_graphs
from specswitch.engine.plain_launch import PlainLaunch

pytestmark = pytest.mark.real

OLD = metadata.version("sglang").startswith("0.5.12")
SIZES = ["--cuda-graph-bs" if OLD else "--cuda-graph-bs-decode", "1", "2", "4", "6", "8"]
MODES = (
    ["eagle-v2", "eagle3-v2", "eagle-topk1-v1", "eagle-topk4-v1", "eagle3-topk4-v1"]
    if OLD
    else ["eagle-topk1", "eagle3-topk1", "eagle3-topk4"]
)
EAGLE, EAGLE3 = ("eagle-v2", "eagle3-v2") if OLD else ("eagle-topk1", "eagle3-topk1")
WATERMARKS = ["--specswitch-high-watermark", "4", "--specswitch-low-watermark", "2"]


def switched(mode: str, *flags: str, **options) -> InProcessScheduler:
    return open_switched(mode, flags=[*SIZES, *WATERMARKS, *flags], max_total_tokens=2048, **options)


def requests(server: InProcessScheduler, count: int = 5):
    return workload(seed=4, count=count, vocab_size=server.scheduler.model_config.vocab_size, max_new_tokens=40)


def play(mode: str, *flags: str, count: int = 5, wish=None, **options) -> tuple[Outcome, Counter, Outcome]:
    """The same requests on a plain server and on a switched one with graphs."""
    with open_plain("plain") as server:
        plain = run(server, Scenario(requests(server, count), every(7)))
    with closure_graphs() as replays, switched(mode, *flags, **options) as server:
        replays.clear()
        outcome = run(server, Scenario(requests(server, count), wish or every(9)))
        outcome.status["eager"] = plain_graphs.of(server.scheduler).eager_steps
        alone = server.scheduler.specswitch.engine._alone
        outcome.status["kept"] = alone.kept.as_dict() if alone is not None else None
    return outcome, replays, plain


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_replays_its_own_graphs_and_answers_stay_the_same(mode: str) -> None:
    outcome, replays, plain = play(mode)
    assert_same_answers(outcome, plain.outputs)
    drafted = "8" if "topk4" in mode else "4"
    assert set(replays) == ({"DECODE 1", f"TARGET_VERIFY {drafted}"} if OLD else {"DECODE 1"})
    assert replays["DECODE 1"] == outcome.steps["PLAIN DECODE plain"]
    assert outcome.status["eager"] == 0


@pytest.mark.parametrize("mode", [EAGLE, EAGLE3])
def test_graphs_put_out_the_hidden_states_that_are_kept(mode: str) -> None:
    outcome, replays, plain = play(mode, "--specswitch-draft-kv-budget", "1")
    assert_same_answers(outcome, plain.outputs)
    assert replays["DECODE 1"] == outcome.steps["PLAIN DECODE plain"]
    assert outcome.status["eager"] == 0
    assert outcome.status["kept"]["rows_held"] > 20


def test_verify_graphs_end_at_the_high_watermark_and_plain_ones_cover_all() -> None:
    with closure_graphs(), switched(EAGLE) as server:
        facts = plain_graphs.of(server.scheduler).facts
        assert facts.verify_batch_sizes == (1, 2, 4)
        assert facts.batch_sizes == (1, 2, 4, 6, 8)
        assert facts.start_seconds > 0


def test_plain_graphs_reach_a_request_limit_that_the_operator_has_set() -> None:
    with closure_graphs(), switched(EAGLE, max_running_requests=20) as server:
        assert plain_graphs.of(server.scheduler).facts.batch_sizes == (1, 2, 4, 6, 8, 20)


def test_everything_is_as_before_outside_a_plain_forward() -> None:
    with closure_graphs(), switched(EAGLE3) as server:
        runner = server.scheduler.tp_worker.model_runner
        graphs = plain_graphs.of(server.scheduler)
        slot = "graph_runner" if OLD else "decode_cuda_graph_runner"
        before = (getattr(runner, slot), runner.attn_backend, runner.spec_algorithm)
        assert graph_sizes.of_server(server.scheduler.server_args) == [1, 2, 4, 6, 8]
        assert server.scheduler.draft_worker.speculative_num_draft_tokens == 4
        assert runner.model.capture_aux_hidden_states
        assert runner.model.model.layers_to_capture
        plain = PlainLaunch(server.scheduler, graphs.forward)
        with plain:
            assert getattr(runner, slot) is not before[0]
            assert runner.attn_backend is not before[1]
            assert runner.spec_algorithm.is_none()
        with pytest.raises(KeyError), plain:
            raise KeyError
        assert (getattr(runner, slot), runner.attn_backend, runner.spec_algorithm) == before


def test_a_batch_above_the_largest_graph_runs_eagerly_and_is_reported_once() -> None:
    with open_plain("plain") as server:
        plain = run(server, Scenario(requests(server), every(7)))
    with closure_graphs() as replays, switched(EAGLE) as server:
        graphs = plain_graphs.of(server.scheduler)
        graphs._graphs.max_bs = 2  # as if the larger ones had not been captured
        said: list[str] = []
        graphs.on_first_eager = said.append
        replays.clear()
        outcome = run(server, Scenario(requests(server), every(9)))
    assert_same_answers(outcome, plain.outputs)
    assert graphs.eager_steps > 1
    assert replays["DECODE 1"] + graphs.eager_steps == outcome.steps["PLAIN DECODE plain"]
    assert len(said) == 1
    assert "--cuda-graph-max-bs" in said[0]


def test_a_request_for_hidden_states_captures_nothing_again() -> None:
    captured = []
    with closure_graphs(), switched(EAGLE) as server:
        graphs = plain_graphs.of(server.scheduler)
        graphs._graphs.capture = lambda: captured.append(True)

        class Wants:
            capture_hidden_mode = type(graphs._graphs.capture_hidden_mode).FULL
            batch_size = 1

        assert not graphs._check(Wants())
    assert captured == []
    assert graphs.eager_steps == 1


def test_a_server_without_graphs_gets_none() -> None:
    with switched(EAGLE) as server:
        assert plain_graphs.of(server.scheduler) is None
