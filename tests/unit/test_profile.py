from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specswitch.errors import ProfileError
from specswitch.profile import Curve, Point, Prefill, Profile, ProfileKey, Switching, differences, fit, load, save

KEY = ProfileKey(
    model="m",
    gpu="g",
    release="0.5.23",
    path="v2",
    algorithm="EAGLE3",
    topk=1,
    num_steps=3,
    num_draft_tokens=4,
    page_size=1,
    tp_size=1,
    dtype="bfloat16",
    attention_backend="fa3",
)


def profile(**changes: Any) -> Profile:
    fields: dict[str, Any] = {
        "key": KEY,
        "source": "made up",
        "plain": Curve([Point(1, 200.0, 0.005), Point(256, 51200.0, 0.011)], 1e-8),
        "speculative": Curve([Point(1, 200.0, 0.008), Point(256, 51200.0, 0.03)], 1e-8),
        "switching": Switching(0.003, 0.02, 22e-6),
        "prefill": Prefill(0.01, 22e-6),
        "accept_length": 2.5,
    }
    return Profile(**fields | changes)


def refusal(path: Path) -> str:
    with pytest.raises(ProfileError) as caught:
        load(path)
    message = str(caught.value)
    assert message.endswith(".")
    assert ". " not in message
    assert "\n" not in message
    return message


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save(profile(), path)
    assert load(path) == profile()
    assert json.loads(path.read_text())["format"] == 1


def written(tmp_path: Path, change: dict[str, Any]) -> Path:
    content = msgspec.to_builtins(profile())
    for dotted, value in change.items():
        part = content
        *parents, last = dotted.split(".")
        for parent in parents:
            part = part[int(parent) if isinstance(part, list) else parent]
        part[last] = value
    path = tmp_path / "p.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"format": 2}, "format 2"),
        ({"plain.points": []}, "$.plain.points"),
        ({"plain.points.0.seconds": 0}, "].seconds"),
        ({"plain.points.1.batch_size": 1}, "plain: a step-time curve needs points at different batch sizes"),
        ({"speculative.seconds_per_context_token": 1.0}, "speculative: the seconds per context token"),
        ({"accept_length": 0.5}, "$.accept_length"),
        ({"accept_length": 4.5}, "accept length 4.5 is above 4"),
        ({"key.colour": "red"}, "colour"),
        ({"switching.drain_seconds": "soon"}, "$.switching.drain_seconds"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    message = refusal(written(tmp_path, change))
    assert named in message
    assert str(tmp_path) in message


@pytest.mark.parametrize("content", ["", "{", "[]", '{"batch": 1}', "\ufeff{}"])
def test_a_file_that_is_no_profile(tmp_path: Path, content: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(content)
    assert "is not one that specswitch has written" in refusal(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "p.json")
    with pytest.raises(ProfileError, match="cannot be written"):
        save(profile(), tmp_path / "gone" / "p.json")


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="contradicts itself"):
        save(profile(accept_length=9.0), tmp_path / "p.json")
    assert not list(tmp_path.iterdir())


def test_longest_accept_length() -> None:
    assert profile().longest_accept_length == 4.0
    ngram = msgspec.structs.replace(KEY, algorithm="NGRAM", num_steps=None, topk=None, num_draft_tokens=12)
    assert profile(key=ngram).longest_accept_length == 12.0


def test_differences_name_field_and_both_values() -> None:
    assert differences(KEY, KEY) == {}
    running = msgspec.structs.replace(KEY, tp_size=2, release="0.5.22")
    assert differences(KEY, running) == {"release": "release is 0.5.22, not 0.5.23", "tp_size": "tp_size is 2, not 1"}


@pytest.mark.parametrize(
    ("made_for", "running"),
    [
        ({}, {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "cuda_graphs": False, "draft_model": "d"}),
        ({"model": "/models/m"}, {"model": "org/m"}),
        ({"dtype": "auto"}, {"dtype": "float16"}),
        ({}, {"dtype": "auto"}),
    ],
)
def test_what_cannot_be_compared_is_no_difference(made_for: dict[str, Any], running: dict[str, Any]) -> None:
    assert differences(msgspec.structs.replace(KEY, **made_for), msgspec.structs.replace(KEY, **running)) == {}


def test_a_profile_of_another_server_is_refused_by_the_first_difference() -> None:
    known = profile(key=msgspec.structs.replace(KEY, quantization="none", cuda_graphs=True))
    path = Path("p.json")
    assert fit(known, path, known.key) is None
    for name, value, shown in [
        ("model", "other", "model is other, not m"),
        ("gpu", "h", "gpu is h, not g"),
        ("quantization", "fp8", "quantization is fp8, not none"),
        ("cuda_graphs", False, "cuda_graphs is False, not True"),
        ("num_steps", 5, "num_steps is 5, not 3"),
    ]:
        with pytest.raises(ProfileError) as refused:
            fit(known, path, msgspec.structs.replace(known.key, **{name: value, "release": "0.5.22"}))
        assert f"The profile p.json was made for another server ({shown}): " in str(refused.value)


def test_what_served_steps_correct_is_warned_of() -> None:
    warning = fit(profile(), Path("p.json"), msgspec.structs.replace(KEY, release="0.5.22", page_size=64))
    assert warning is not None
    assert "slightly different server (release is 0.5.22, not 0.5.23; page_size is 64, not 1)" in warning
