"""A short ``specswitch demo``, from the command line to the picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from specswitch.cli.demo import demo
from specswitch.cpu_engine.releases import installed_release
from specswitch.demo.run import HIGH_WATERMARK, LOW_WATERMARK

pytestmark = [
    pytest.mark.http,
    pytest.mark.skipif("eagle-v2" not in installed_release().modes, reason="once, where `make demo` runs, is enough"),
]


def test_the_demo_switches_both_ways_and_every_answer_is_right(tmp_path: Path) -> None:
    result = CliRunner().invoke(demo, ["--seconds", "30", "--out", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "report.json").read_text())

    summary = report["summary"]
    assert summary["answers"] >= 10
    assert summary["answers_that_differ"] == 0
    assert summary["accept_length"] >= 1.8
    assert f"All {summary['answers']} answers equal the plain server's." in result.output

    ways = [(event["from"], event["to"]) for event in report["transitions"]]
    assert ways[:3] == [("SPECULATIVE", "DRAINING"), ("DRAINING", "PLAIN"), ("PLAIN", "SPECULATIVE")]
    assert report["transitions"][0]["batch_size"] >= HIGH_WATERMARK
    assert f"<= low watermark {LOW_WATERMARK}" in report["transitions"][2]["reason"]
    assert report["transitions"][2]["batch_size"] < HIGH_WATERMARK
    assert {sample["mode"] for sample in report["samples"]} >= {"SPECULATIVE", "PLAIN"}
    assert report["active"]["config"]["log_format"] == "json"
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
