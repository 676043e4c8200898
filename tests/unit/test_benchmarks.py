"""What a benchmark plan asks for, in which order, and the models it widens."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from bench import measure, plan, widen
from safetensors.torch import load_file

PLANS = sorted((Path(plan.HERE) / "plans").glob("*.toml"))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_plan_says_what_to_start_and_what_to_measure(path: Path) -> None:
    read = plan.load(path)
    for group in read.groups:
        work = {name: list(measure.cases(name, read.servers[name])) for name in group}
        assert all(work.values())
        assert len(measure.in_turns(work)) == sum(map(len, work.values()))
        for name in group:
            assert "{" not in " ".join(read.command(name, 30_000))


def test_servers_that_are_compared_take_turns_at_each_level() -> None:
    read = plan.load(plan.HERE / "plans" / "0.5.17.toml")
    work = {name: list(measure.cases(name, read.servers[name])) for name in read.groups[0]}
    speeds = [(name, case) for name, kind, case in measure.in_turns(work) if kind == "speed"]
    levels = [(case["repeat"], case["concurrency"]) for _, case in speeds]
    assert levels == sorted(levels)
    for level in set(levels):
        there = [name for (name, case) in speeds if (case["repeat"], case["concurrency"]) == level]
        assert {"plain", "speculative", "specswitch-goodput"} <= set(there)
    assert len({name for name, _ in speeds}) < sum(one != other for (one, _), (other, _) in pairwise(speeds))
    ramps = [(case["course"], case["repeat"]) for _, kind, case in measure.in_turns(work) if kind == "ramp"]
    courses = ("factors of four", "more sizes", "even steps")
    assert list(dict.fromkeys(ramps)) == [(course, repeat) for course in courses for repeat in (0, 1)]


def test_what_servers_have_in_common_is_said_once(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'release = "0.5.17"\ngroups = [["a", "b"]]\nargs = []\n'
        "[common.speed]\nconcurrency = [1, 64]\nrounds = 3\n"
        "[servers.a]\nspeed = {}\n[servers.b]\nspeed = { rounds = 1 }\n"
    )
    servers = plan.load(path).servers
    assert [servers[name].speed.rounds for name in "ab"] == [3, 1]  # type: ignore[union-attr]
    path.write_text(path.read_text().replace("common.speed", "common.sped"))
    with pytest.raises(ValueError, match="no measurement: sped"):
        plan.load(path)


def attention(folder: Path, hidden: torch.Tensor) -> torch.Tensor:
    """The first layer's self-attention of a Llama in ``folder``, without the residual: ``[tokens, hidden size]``."""
    config = json.loads((folder / "config.json").read_text())
    weights = load_file(folder / "model.safetensors")
    first = {name.split(".")[-2]: weight.double() for name, weight in weights.items() if ".layers.0." in name}
    heads, groups, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    q, k, v = (
        (hidden @ first[part].T).unflatten(-1, (-1, width)).transpose(0, 1) for part in ("q_proj", "k_proj", "v_proj")
    )
    angle = torch.arange(len(hidden))[:, None] * config["rope_theta"] ** (-torch.arange(0, width, 2) / width).double()
    cos, sin = torch.cos(angle), torch.sin(angle)

    def turned(rows: torch.Tensor) -> torch.Tensor:
        first, second = rows.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    k, v = (rows.repeat_interleave(heads // groups, 0) for rows in (turned(k), v))
    seen = torch.nn.functional.scaled_dot_product_attention(turned(q), k, v, is_causal=True)
    return seen.transpose(0, 1).flatten(1) @ first["o_proj"].T


def test_a_widened_model_computes_the_same(tmp_path: Path) -> None:
    widen.widen(plan.TRAINED / "target", tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["head_dim"] == widen.HEAD_DIM
    torch.manual_seed(0)
    hidden = torch.randn(40, 128, dtype=torch.float64)
    expected = attention(plan.TRAINED / "target", hidden)
    assert torch.allclose(attention(tmp_path, hidden), expected, atol=1e-9)
    assert expected.std() > 0.01


def test_a_width_that_cannot_be_widened_exactly(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text(json.dumps({"head_dim": 64}))
    with pytest.raises(ValueError, match="heads of 64"):
        widen.widen(source, tmp_path / "target")
