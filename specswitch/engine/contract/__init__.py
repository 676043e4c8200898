"""The contract with SGLang: every function hooked or called, every attribute read or written.

:mod:`specswitch.engine.contract.table` states it, per release line; :func:`check_installed` holds it
against the SGLang that this process would import, by parsing its sources - neither ``sglang`` nor
``torch`` is imported, and a check takes well under a second on one core.
"""

from __future__ import annotations

from specswitch.engine.contract.pieces import EnginePath, Kind, Need, Piece, ReleaseLine, Use
from specswitch.engine.contract.report import (
    ContractReport,
    Verdict,
    check_folder,
    check_installed,
    check_tree,
    check_wheel,
    line_named,
    line_of,
    newest_tested,
)
from specswitch.engine.contract.sources import SourceTree
from specswitch.engine.contract.table import RELEASE_LINES
from specswitch.engine.contract.verify import Mismatch, verify

__all__ = [
    "RELEASE_LINES",
    "ContractReport",
    "EnginePath",
    "Kind",
    "Mismatch",
    "Need",
    "Piece",
    "ReleaseLine",
    "SourceTree",
    "Use",
    "Verdict",
    "check_folder",
    "check_installed",
    "check_tree",
    "check_wheel",
    "line_named",
    "line_of",
    "newest_tested",
    "verify",
]
