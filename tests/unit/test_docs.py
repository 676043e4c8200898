from __future__ import annotations

import argparse
import ast
import json
import re
from dataclasses import fields
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml

from specswitch.config import SwitchConfig, add_arguments, load
from specswitch.engine.admission import AdmissionFacts
from specswitch.engine.base import EngineFacts, Rehearsal
from specswitch.engine.draft_stats import DraftStats
from specswitch.engine.pause import PauseWatch
from specswitch.engine.plain_graphs import PlainGraphFacts
from specswitch.engine.reentry import Reentry, ReentryRecord
from specswitch.errors import ConfigError
from specswitch.machine import Transition, diagram
from specswitch.observe.status import Status
from specswitch.records import StepCounts, TransitionRecord
from specswitch.signals import LoadSample, Mode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def rows(text: str) -> dict[str, list[str]]:
    """Table rows by each name that stands in backticks in their first column."""
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return {name: row for row in cells for name in re.findall(r"`([^`]+)`", row[0])}


def section(text: str, heading: str) -> str:
    return text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_design_shows_the_machine_as_it_is() -> None:
    assert f"```mermaid\n{diagram()}```" in read("design.md")


def test_configuration_lists_every_setting_with_its_default() -> None:
    table = rows(section(read("configuration.md"), "Settings"))
    defaults = SwitchConfig().as_dict()
    assert set(table) == set(defaults)
    for name, default in defaults.items():
        assert table[name][2] == ("none" if default in ("", []) else f"`{default}`")


def test_the_example_files_are_valid_and_equal() -> None:
    text = read("configuration.md")
    (as_json,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (as_yaml,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    assert SwitchConfig(**json.loads(as_json)).dwell_steps == 64


def test_the_errors_shown_are_those_that_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("settings.yaml").write_text("dwel_steps: 3")
    enabled = ["--enable-specswitch"]
    cases: list[tuple[list[str], dict[str, str]]] = [
        ([*enabled, "--specswitch-mode", "fast"], {}),
        (enabled, {"SPECSWITCH_HIGH_WATERMAK": "3"}),
        ([*enabled, "--specswitch-config", "settings.yaml"], {}),
        ([*enabled, "--specswitch-high-watermark", "8"], {}),
        (["--specswitch-mode", "plain"], {}),
    ]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    came = []
    for flags, environ in cases:
        with pytest.raises(ConfigError) as caught:
            load(parser.parse_args(flags), environ)
        came.append(str(caught.value))
    (shown,) = re.findall(r"```text\n(.*?)```", section(read("configuration.md"), "Errors"), re.DOTALL)
    assert shown.splitlines() == came


FACTS = EngineFacts("0.5.12.post1", "v1", "EAGLEWorker", False, "EAGLE", 4, 3, 16, 1)
IDLE = LoadSample(Mode.SPECULATIVE, 0, 0, 0, 0, None)
RECORD = TransitionRecord(Transition.RETURN, "idle", 1, 0, 2.0, 100, 3.0, tokens_caught_up=5)


@pytest.mark.parametrize(
    ("heading", "shown"),
    [
        ("`specswitch.active`", {*(field.name for field in fields(EngineFacts)), "config"}),
        ("`specswitch.admission`", {field.name for field in fields(AdmissionFacts)}),
        ("`specswitch.plain_graphs`", {field.name for field in fields(PlainGraphFacts)}),
        ("`specswitch.rehearsal`", {field.name for field in fields(Rehearsal)}),
        ("`specswitch.reentry`", {field.name for field in fields(ReentryRecord)}),
        ("`specswitch.transition`", set(RECORD.as_dict())),
        ("The same in `/server_info`", set(Status(FACTS, SwitchConfig()).as_dict(IDLE, StepCounts(0, 0, 0)))),
    ],
)
def test_log_explains_exactly_the_fields_there_are(heading: str, shown: set[str]) -> None:
    assert set(rows(section(read("log.md"), heading))) == shown


def test_log_explains_the_counts_of_draft_kv() -> None:
    log = read("log.md")
    bullets = re.findall(r"^- (`[^:]+):", log, re.MULTILINE)
    names = {name for bullet in bullets for name in re.findall(r"`(\w+)`", bullet)}
    assert {*(field.name for field in fields(DraftStats)), "reentry"} <= names
    told = set(re.findall(r"`(\w+)`", log.split("\n- `reentry`:", 1)[1].split("\n- ", 1)[0]))
    assert set(Reentry(PauseWatch(True)).as_dict()) <= told


def test_log_explains_every_event() -> None:
    source = (ROOT / "specswitch" / "observe" / "log.py").read_text(encoding="utf-8")
    events = set(re.findall(r'"(specswitch\.\w+)"', source))
    assert len(events) == 12
    assert {line.strip("# `") for line in read("log.md").splitlines() if line.startswith("## `specswitch.")} == events


def refused_in(module: str) -> set[str]:
    """The names of what a ``supported_*`` module refuses: in its rows the first text, and the keys of its dicts."""
    source = (ROOT / "specswitch" / "engine" / f"{module}.py").read_text(encoding="utf-8")
    names = set()
    for node in ast.walk(ast.parse(source)):
        elements = node.elts if isinstance(node, ast.Tuple) else node.keys if isinstance(node, ast.Dict) else []
        texts = [part.value for part in elements if isinstance(part, ast.Constant) and isinstance(part.value, str)]
        if isinstance(node, ast.Dict):
            names.update(texts)
        elif texts and not all(isinstance(part, ast.Constant) for part in elements):
            names.add(texts[0])
    return names


@pytest.mark.parametrize("module", ["supported_0_5_12", "supported_v2"])
def test_design_names_whatever_is_refused(module: str) -> None:
    told = section(read("design.md"), "What is refused").replace("`", "")
    refused = refused_in(module)
    assert len(refused) > 12
    assert not {name for name in refused if name not in told}


PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), ROOT / "examples" / "README.md"]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_readme_gives_flags_and_defaults_as_they_are() -> None:
    table = rows(section((ROOT / "README.md").read_text(encoding="utf-8"), "Use"))
    defaults = SwitchConfig().as_dict()
    flags = {name: row for name, row in table.items() if name.startswith("--specswitch-")}
    assert len(flags) >= 5
    for name, row in flags.items():
        default = defaults[name.split()[0].removeprefix("--specswitch-").replace("-", "_")]
        assert row[1].strip("`") == (str(default) if default else "none")


def test_installing_the_plugin_moves_no_version_of_the_server() -> None:
    needed = {
        re.split(r"[^\w-]", line, maxsplit=1)[0].lower()
        for line in requires("specswitch") or ()
        if "extra ==" not in line
    }
    assert "structlog" in needed
    assert not needed & {"torch", "sglang", "transformers", "triton", "numpy"}
