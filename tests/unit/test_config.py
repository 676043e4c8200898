from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from specswitch.config import SwitchConfig, add_arguments, from_environ, load, to_environ
from specswitch.errors import ConfigError, SpecswitchError
from specswitch.signals import SAMPLING_FEATURES

# Per setting: as text in a flag or variable, as written in a file, and what both mean.
SETTINGS: dict[str, tuple[str, Any, Any]] = {
    "high_watermark": ("40", 40, 40),
    "low_watermark": ("7", 7, 7),
    "policy": ("watermark", "watermark", "watermark"),
    "profile": ("here.json", "here.json", "here.json"),
    "calibrate": ("never", "never", "never"),
    "hysteresis": ("0.02", 0.02, 0.02),
    "probe_share": ("0.0025", 0.0025, 0.0025),
    "dwell_steps": ("5", 5, 5),
    "mode": ("observe", "observe", "observe"),
    "draft_kv": ("cold", "cold", "cold"),
    "max_pause_ms": ("20", 20, 20),
    "draft_kv_budget": ("64", 64, 64),
    "plain_overlap": ("off", "off", "off"),
    "log_format": ("json", "json", "json"),
    "on_mismatch": ("serve-unswitched", "serve-unswitched", "serve-unswitched"),
    "plain_for": ("penalties, min_p", ["penalties", "min_p"], frozenset({"penalties", "min_p"})),
}


def parse(line: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(shlex.split(line))


def loaded(line: str = "", environ: Mapping[str, str] | None = None) -> SwitchConfig:
    config = load(parse(f"--enable-specswitch {line}"), environ or {})
    assert config is not None
    return config


def refused(line: str = "--enable-specswitch", environ: Mapping[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(parse(line), environ or {})
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert ". " not in message
    assert ".)" not in message
    return message


def flag(name: str) -> str:
    return "--specswitch-" + name.replace("_", "-")


def test_every_setting_is_covered_here() -> None:
    assert set(SETTINGS) == set(SwitchConfig().as_dict())


def test_defaults() -> None:
    assert SwitchConfig().as_dict() == {
        "high_watermark": 32,
        "low_watermark": 24,
        "policy": "watermark",
        "profile": "",
        "calibrate": "auto",
        "hysteresis": 0.005,
        "probe_share": 0.005,
        "dwell_steps": 32,
        "mode": "auto",
        "draft_kv": "catch-up",
        "max_pause_ms": 50,
        "draft_kv_budget": 0,
        "plain_overlap": "on",
        "log_format": "console",
        "on_mismatch": "refuse",
        "plain_for": [],
    }
    assert loaded() == SwitchConfig()


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        SwitchConfig().mode = "plain"  # type: ignore[misc]


@pytest.mark.parametrize("name", SETTINGS)
def test_direct_construction_brings_values_to_their_type(name: str) -> None:
    text, written, meaning = SETTINGS[name]
    for given_as in (text, written, meaning):
        fields: dict[str, Any] = {name: given_as}
        value = getattr(SwitchConfig(**fields), name)
        assert value == meaning
        assert type(value) is type(meaning)


def test_as_dict_is_json_able() -> None:
    config = SwitchConfig(plain_for=SAMPLING_FEATURES)
    assert json.loads(json.dumps(config.as_dict()))["plain_for"] == sorted(SAMPLING_FEATURES)


class TestFlags:
    def test_not_given_is_none(self) -> None:
        assert set(vars(parse("")).values()) == {None}

    def test_stand_in_a_group_of_their_own(self) -> None:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        text = parser.format_help()
        group = text[text.index("specswitch:") :]
        for name in SETTINGS:
            assert flag(name) in group
        assert "--enable-specswitch" in group
        assert "--specswitch-config" in group

    @pytest.mark.parametrize("name", SETTINGS)
    def test_set_their_field(self, name: str) -> None:
        text, _, meaning = SETTINGS[name]
        assert getattr(loaded(f"{flag(name)} {shlex.quote(text)}"), name) == meaning


class TestEnabling:
    def test_off_by_default(self) -> None:
        assert load(parse(""), {}) is None
        assert load(None, {}) is None

    def test_by_flag(self) -> None:
        assert load(parse("--enable-specswitch"), {}) == SwitchConfig()

    def test_by_variable_alone(self) -> None:
        environ = {"SPECSWITCH_ENABLE": "1", "SPECSWITCH_MODE": "plain"}
        assert load(None, environ) == SwitchConfig(mode="plain")
        assert load(argparse.Namespace(model_path="m"), environ) == SwitchConfig(mode="plain")

    def test_the_variable_enables_flags_too(self) -> None:
        assert load(parse("--specswitch-mode plain"), {"SPECSWITCH_ENABLE": "1"}) == SwitchConfig(mode="plain")

    def test_kill_switch_wins_over_everything(self) -> None:
        line = "--enable-specswitch --specswitch-mode nonsense --specswitch-config missing.yaml"
        assert load(parse(line), {"SPECSWITCH_ENABLE": "0", "SPECSWITCH_TYPO": "1"}) is None

    def test_variables_without_enabling_change_nothing(self) -> None:
        assert load(parse(""), {"SPECSWITCH_MODE": "nonsense", "SPECSWITCH_TYPO": "1"}) is None

    @pytest.mark.parametrize("line", ["--specswitch-mode plain", "--specswitch-config s.yaml"])
    def test_flags_without_enabling(self, line: str) -> None:
        message = refused(line)
        assert line.split()[0] in message
        assert "add --enable-specswitch" in message

    def test_a_word_that_is_neither_on_nor_off(self) -> None:
        assert "SPECSWITCH_ENABLE is 'maybe'" in refused("", {"SPECSWITCH_ENABLE": "maybe"})


class TestPrecedence:
    @pytest.mark.parametrize("name", SETTINGS)
    @pytest.mark.parametrize("suffix", [".yaml", ".json"])
    def test_file_then_variable_then_flag(self, tmp_path: Path, name: str, suffix: str) -> None:
        text, written, meaning = SETTINGS[name]
        variable = f"SPECSWITCH_{name.upper()}"
        default = getattr(SwitchConfig(), name)
        path = tmp_path / f"settings{suffix}"
        path.write_text((json.dumps if suffix == ".json" else yaml.safe_dump)({name: written}))
        plain_default = ",".join(default) if name == "plain_for" else str(default)

        from_file = f"--specswitch-config {path}"
        assert getattr(loaded(from_file), name) == meaning
        if plain_default:
            assert getattr(loaded(from_file, {variable: plain_default}), name) == default
        assert getattr(loaded(f"{from_file} {flag(name)} {shlex.quote(plain_default)}"), name) == default
        assert getattr(loaded(f"{flag(name)} {shlex.quote(text)}", {variable: plain_default}), name) == meaning

    def test_file_named_by_variable(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("dwell_steps: 3\n")
        (tmp_path / "b.yaml").write_text("dwell_steps: 4\n")
        environ = {"SPECSWITCH_CONFIG": str(tmp_path / "a.yaml")}
        assert loaded("", environ).dwell_steps == 3
        assert loaded(f"--specswitch-config {tmp_path / 'b.yaml'}", environ).dwell_steps == 4

    def test_empty_variable_counts_as_not_set(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("dwell_steps: 3\n")
        environ = {"SPECSWITCH_DWELL_STEPS": "", "SPECSWITCH_CONFIG": ""}
        assert loaded(f"--specswitch-config {tmp_path / 'a.yaml'}", environ).dwell_steps == 3

    def test_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text("# nothing yet\n")
        assert loaded(f"--specswitch-config {tmp_path / 'a.yaml'}") == SwitchConfig()


BAD_VALUES = [
    ("high_watermark", "0", "an integer of at least 1"),
    ("high_watermark", "many", "an integer of at least 1"),
    ("high_watermark", "3.5", "an integer of at least 1"),
    ("low_watermark", "-1", "an integer of at least 0"),
    ("policy", "fastest", "one of watermark, goodput"),
    ("hysteresis", "-0.1", "a number of at least 0 and at most 1"),
    ("hysteresis", "much", "a number of at least 0 and at most 1"),
    ("probe_share", "0.01", "a number of at least 0 and less than 0.01"),
    ("dwell_steps", "0", "an integer of at least 1"),
    ("mode", "Auto", "one of auto, observe, plain, speculative"),
    ("draft_kv", "warm", "one of catch-up, cold"),
    ("log_format", "text", "one of console, json"),
    ("on_mismatch", "ignore", "one of refuse, serve-unswitched"),
    ("plain_for", "penalties,minp", "grammar, hidden_states, logit_bias, logprobs, min_p, penalties"),
]


class TestRefusals:
    @pytest.mark.parametrize(("name", "value", "allowed"), BAD_VALUES)
    def test_a_flag(self, name: str, value: str, allowed: str) -> None:
        message = refused(f"--enable-specswitch {flag(name)}={value}")
        assert message.startswith(f"{flag(name)} is {value!r}")
        assert allowed in message

    @pytest.mark.parametrize(("name", "value", "allowed"), BAD_VALUES)
    def test_a_variable(self, name: str, value: str, allowed: str) -> None:
        message = refused(environ={f"SPECSWITCH_{name.upper()}": value})
        assert message.startswith(f"SPECSWITCH_{name.upper()} is {value!r}")
        assert allowed in message

    @pytest.mark.parametrize(
        ("written", "shown"),
        [
            ("high_watermark: true", "True"),
            ("dwell_steps: 2.5", "2.5"),
            ("mode: [auto]", "['auto']"),
            ("plain_for: 3", "3"),
            ("plain_for: [minp]", "['minp']"),
            ("low_watermark:", "None"),
        ],
    )
    def test_a_key_in_a_file(self, tmp_path: Path, written: str, shown: str) -> None:
        path = tmp_path / "s.yaml"
        path.write_text(written)
        message = refused(f"--enable-specswitch --specswitch-config {path}")
        assert message.startswith(f"Key {written.split(':')[0]!r} in {path} is {shown}, which is not ")

    @pytest.mark.parametrize(("name", "value", "allowed"), BAD_VALUES)
    def test_a_direct_construction(self, name: str, value: str, allowed: str) -> None:
        fields: dict[str, Any] = {name: value}
        with pytest.raises(ConfigError, match=allowed):
            SwitchConfig(**fields)

    def test_an_unknown_variable_suggests_the_nearest(self) -> None:
        message = refused(environ={"SPECSWITCH_HIGH_WATERMAK": "3"})
        assert message == (
            "SPECSWITCH_HIGH_WATERMAK is not a variable of specswitch: use SPECSWITCH_HIGH_WATERMARK or unset it."
        )

    def test_an_unknown_key_suggests_the_nearest(self, tmp_path: Path) -> None:
        path = tmp_path / "s.json"
        path.write_text('{"dwel-steps": 3}')
        message = refused(f"--enable-specswitch --specswitch-config {path}")
        assert message == f"Key 'dwel-steps' in {path} is not a setting of specswitch: use dwell_steps or remove it."

    def test_an_unknown_key_like_nothing_lists_all(self, tmp_path: Path) -> None:
        path = tmp_path / "s.yaml"
        path.write_text("1: 2")
        message = refused(f"--enable-specswitch --specswitch-config {path}")
        assert all(name in message for name in SETTINGS)

    @pytest.mark.parametrize(
        ("name", "content", "why"),
        [
            ("s.yaml", b"mode: [", "not valid YAML or JSON"),
            ("s.json", b"{", "not valid YAML or JSON"),
            ("s.yaml", b"mode: \xff", "not valid YAML or JSON"),
            ("s.yaml", b"- mode", "holds a list"),
            ("s.yaml", b"plain", "holds a str"),
        ],
    )
    def test_a_file_that_holds_no_settings(self, tmp_path: Path, name: str, content: bytes, why: str) -> None:
        path = tmp_path / name
        path.write_bytes(content)
        message = refused(f"--enable-specswitch --specswitch-config {path}")
        assert str(path) in message
        assert why in message

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        assert "No such file" in refused(f"--enable-specswitch --specswitch-config {tmp_path / 'gone.yaml'}")
        assert "Is a directory" in refused(f"--enable-specswitch --specswitch-config {tmp_path}")

    def test_watermarks_that_cross_name_both_sources(self) -> None:
        message = refused("--enable-specswitch --specswitch-high-watermark 8", {"SPECSWITCH_LOW_WATERMARK": "9"})
        assert "low watermark 9 (SPECSWITCH_LOW_WATERMARK)" in message
        assert "high watermark 8 (--specswitch-high-watermark)" in message
        assert "7 or less" in message

    def test_watermarks_that_meet(self) -> None:
        message = refused("--enable-specswitch --specswitch-high-watermark 24")
        assert "low watermark 24 (the default)" in message
        assert loaded("--specswitch-high-watermark 25").low_watermark == 24

    def test_goodput_without_a_profile_names_the_source(self) -> None:
        assert loaded("--specswitch-policy goodput").calibrate == "auto"
        message = refused(environ={"SPECSWITCH_POLICY": "goodput", "SPECSWITCH_CALIBRATE": "never"})
        assert message.startswith("The goodput policy (SPECSWITCH_POLICY) has no profile")
        assert "--specswitch-profile" in message
        assert loaded("--specswitch-policy goodput --specswitch-profile p.json").policy == "goodput"
        with pytest.raises(ConfigError, match="no profile"):
            SwitchConfig(policy="goodput", calibrate="never")

    def test_a_profile_that_would_always_be_measured_is_not_named(self) -> None:
        message = refused("--enable-specswitch --specswitch-profile p.json --specswitch-calibrate always")
        assert "(--specswitch-calibrate) does not go by the one that --specswitch-profile names" in message

    def test_is_a_specswitch_error(self) -> None:
        assert issubclass(ConfigError, SpecswitchError)
        assert issubclass(SpecswitchError, ValueError)


@st.composite
def configs(draw: st.DrawFn) -> SwitchConfig:
    high = draw(st.integers(1, 4096))
    return SwitchConfig(
        high_watermark=high,
        low_watermark=draw(st.integers(0, high - 1)),
        dwell_steps=draw(st.integers(1, 4096)),
        policy=draw(st.sampled_from(["watermark", "goodput"])),
        profile=draw(st.sampled_from(["p.json", "a b/q.json"])),
        calibrate=draw(st.sampled_from(["auto", "never"])),
        hysteresis=draw(st.floats(0, 1)),
        probe_share=draw(st.floats(0, 0.01, exclude_max=True)),
        mode=draw(st.sampled_from(["auto", "observe", "plain", "speculative"])),
        draft_kv=draw(st.sampled_from(["catch-up", "cold"])),
        log_format=draw(st.sampled_from(["console", "json"])),
        on_mismatch=draw(st.sampled_from(["refuse", "serve-unswitched"])),
        plain_for=draw(st.frozensets(st.sampled_from(sorted(SAMPLING_FEATURES)))),
    )


class TestHandingDown:
    @given(config=configs())
    def test_round_trip(self, config: SwitchConfig) -> None:
        environ = to_environ(config)
        assert list(environ) == ["SPECSWITCH_RESOLVED"]
        assert from_environ(environ) == config

    @given(config=configs())
    def test_the_same_settings_as_flags_give_the_same_configuration(self, config: SwitchConfig) -> None:
        fields = config.as_dict() | {"plain_for": ",".join(sorted(config.plain_for))}
        line = " ".join(f"{flag(name)} {shlex.quote(str(value))}" for name, value in fields.items())
        assert loaded(line) == config

    def test_nothing_handed_down(self) -> None:
        assert from_environ({"SPECSWITCH_MODE": "plain"}) is None

    def test_a_resolved_variable_left_over_is_not_an_unknown_one(self) -> None:
        assert loaded("", to_environ(SwitchConfig(mode="plain"))) == SwitchConfig()

    @pytest.mark.parametrize("text", ["{", '{"mode": "x"}', '{"high_watermark": 1}', '{"gone": 1}', "[]"])
    def test_a_damaged_variable(self, text: str) -> None:
        with pytest.raises(ConfigError) as caught:
            from_environ({"SPECSWITCH_RESOLVED": text})
        message = str(caught.value)
        assert message.startswith("SPECSWITCH_RESOLVED does not hold a configuration")
        assert message.endswith(".")
        assert ".)" not in message
