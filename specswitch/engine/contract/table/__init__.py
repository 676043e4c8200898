"""The contract's table: what specswitch needs of SGLang, per release line and per module of specswitch.

A row names a piece of SGLang by the path it is imported from, its parameters as the code passes them, what is
done with it (hook, call, read, write) and what for.  ``tests/unit/test_contract_covers_engine.py`` keeps the
rows and the code together: a name that the code touches and no row states fails there, and so does a row that
the code does not need.

A release joins a line's ``tested`` when the real-engine tests run on it, and nowhere else.
"""

from __future__ import annotations

from specswitch.engine.contract.pieces import ReleaseLine
from specswitch.engine.contract.table.line_0_5_12 import LINE_0_5_12
from specswitch.engine.contract.table.line_0_5_13 import LINE_0_5_13

RELEASE_LINES: tuple[ReleaseLine, ...] = (LINE_0_5_12, LINE_0_5_13)
