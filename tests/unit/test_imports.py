from __future__ import annotations

import subprocess
import sys

import pytest

PURE = ["config", "costs", "errors", "machine", "policy", "profile", "ranks", "records", "refine", "signals"]


def loaded_by(*modules: str) -> set[str]:
    """Top-level packages, and specswitch's own modules, that a fresh interpreter holds after the imports."""
    script = f"import sys, {', '.join(modules)}; print('\\n'.join(sys.modules))"
    names = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    return {name if name.startswith("specswitch.") else name.partition(".")[0] for name in names}


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_load_neither_torch_nor_sglang_nor_what_stands_above_them(module: str) -> None:
    loaded = loaded_by(f"specswitch.{module}")
    assert f"specswitch.{module}" in loaded
    assert loaded.isdisjoint({"torch", "sglang", "transformers", "numpy"})
    above = ("specswitch.engine", "specswitch.observe", "specswitch.plugin", "specswitch.switch", "specswitch.cli")
    assert not [name for name in loaded if name.startswith(above)]


def test_observing_loads_neither_torch_nor_sglang() -> None:
    assert loaded_by("specswitch.observe.log", "specswitch.observe.status").isdisjoint({"torch", "sglang"})


def test_replay_and_calibrate_need_neither_torch_nor_sglang() -> None:
    assert loaded_by("specswitch.cli.replay", "specswitch.cli.calibrate").isdisjoint({"torch", "sglang", "matplotlib"})
