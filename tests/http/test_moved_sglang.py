"""An SGLang that has moved: a renamed function is told by name, a newer version that fits is served with a warning."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import pytest
from packaging.version import Version

from specswitch.cpu_engine.prompts import PROMPTS
from specswitch.cpu_engine.releases import RELEASES, installed_release
from specswitch.cpu_engine.server import CpuServer, ServerFailed

pytestmark = [
    pytest.mark.http,
    pytest.mark.skipif(
        installed_release().version != max(RELEASES, key=Version), reason="what is newer is held against the newest"
    ),
]


def _copy(folder: Path, version: str | None = None) -> Path:
    """The installed SGLang, copied so that it may be changed; ``version`` is what it says it is."""
    spec = importlib.util.find_spec("sglang")
    assert spec is not None
    (origin,) = spec.submodule_search_locations or ()
    root = Path(origin).parent
    shutil.copytree(origin, folder / "sglang", symlinks=True)
    (metadata,) = root.glob("sglang-*.dist-info")
    name = metadata.name if version is None else f"sglang-{version}.dist-info"
    shutil.copytree(metadata, folder / name)
    if version is not None:
        described = folder / name / "METADATA"
        described.write_text(
            described.read_text().replace(f"Version: {installed_release().version}", f"Version: {version}")
        )
    return folder


def _server(copied: Path, *flags: str) -> CpuServer:
    server = CpuServer("eagle-topk1", flags=["--enable-specswitch", "--specswitch-log-format=json", *flags])
    server.environment["PYTHONPATH"] = os.pathsep.join([server.environment["PYTHONPATH"], str(copied)])
    return server


def test_a_renamed_function_is_told_and_served_only_if_asked_for(tmp_path: Path) -> None:
    copied = _copy(tmp_path)
    for file in (copied / "sglang" / "srt").rglob("*.py"):
        text = file.read_text(errors="surrogateescape")
        if "update_running_batch" in text:
            file.write_text(text.replace("update_running_batch", "renew_running_batch"), errors="surrogateescape")

    with pytest.raises(ServerFailed) as refused, _server(copied):
        pass
    assert refused.value.returncode
    assert "Scheduler.update_running_batch" in refused.value.log
    assert f"SGLang {installed_release().version} lacks" in refused.value.log
    assert "Load weight" not in refused.value.log

    with _server(copied, "--specswitch-on-mismatch=serve-unswitched") as server:
        assert server.generate(PROMPTS[0], max_new_tokens=8)["text"]
        assert "specswitch" not in server.server_info()["internal_states"][0]
        assert server.log().count("Serving without switching") == 1


def test_a_newer_release_that_fits_switches_with_one_warning(tmp_path: Path) -> None:
    copied = _copy(tmp_path, version="0.5.99")

    with _server(copied) as server:
        assert server.generate(PROMPTS[0], max_new_tokens=8)["text"]
        assert server.server_info()["internal_states"][0]["specswitch"]["mode"] == "SPECULATIVE"
        assert server.log().count("newer than") == 1
