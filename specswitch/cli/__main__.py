"""``python -m specswitch.cli``."""

from __future__ import annotations

from specswitch.cli import main

main(prog_name="specswitch")
