"""Find the engine for the SGLang at hand, or say why there is none.

Each engine module offers ``unsupported(server_args) -> str | None`` and ``create(scheduler, release, config)``.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from specswitch.config import SwitchConfig
from specswitch.engine import profile_key, v2_compat
from specswitch.engine.base import LiveEngine
from specswitch.engine.contract import ContractReport, EnginePath, ReleaseLine
from specswitch.errors import UnsupportedError
from specswitch.profile import ProfileKey


def refusal(report: ContractReport, server_args: Any, config: SwitchConfig) -> str | None:
    """One sentence on why specswitch cannot switch under these resolved server arguments, or None."""
    module = _module(report, not server_args.disable_overlap_schedule)
    sentence: str | None = module.unsupported(server_args)
    if sentence is None and config.draft_kv_budget:
        sentence = _budget_refusal(v2_compat.resolved(server_args))
    return sentence


def _budget_refusal(server_args: Any) -> str | None:
    """One sentence on why no hidden states can be kept for the draft, or None."""
    algorithm = server_args.speculative_algorithm
    if algorithm == "NGRAM":
        why = "NGRAM has no draft model"
    elif algorithm == "STANDALONE":
        why = "the draft of STANDALONE takes no hidden states and catches up alone without them"
    elif algorithm == "EAGLE3" and server_args.enable_return_hidden_states:
        why = "with --enable-return-hidden-states the clients would get those that EAGLE3's draft takes"
    else:
        return None
    return f"--specswitch-draft-kv-budget is set, but {why}: leave it out."


def key(report: ContractReport, server_args: Any) -> ProfileKey:
    """What a profile for a server with these resolved arguments is made for."""
    _, path = _path(report, not server_args.disable_overlap_schedule)
    return profile_key.key_of(server_args, str(report.release), path)


def create(report: ContractReport, scheduler: Any, config: SwitchConfig) -> LiveEngine:
    """The engine for a constructed scheduler, not yet attached.

    Raises:
        UnsupportedError: the loaded model is none that the engine can switch.
    """
    engine: LiveEngine = _module(report, scheduler.enable_overlap).create(scheduler, report.release, config)
    return engine


def _module(report: ContractReport, overlap: bool) -> ModuleType:
    line, path = _path(report, overlap)
    return importlib.import_module(line.paths[path])


def _path(report: ContractReport, overlap: bool) -> tuple[ReleaseLine, EnginePath]:
    if report.line is None:
        raise UnsupportedError(report.message())
    return report.line, "v1" if "v1" in report.line.paths and not overlap else "v2"
