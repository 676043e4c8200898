"""The ``specswitch`` command.

A sub-command is a :mod:`click` command in a module of its own; :data:`SUBCOMMANDS` says where.  It is
imported when it is called, so that no command pays for another's imports: ``specswitch check`` must
answer on a machine where ``torch`` cannot even be imported.
"""

from __future__ import annotations

import importlib

import click

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "calibrate": ("specswitch.cli.calibrate:calibrate", "Measure a running server and write its profile."),
    "check": ("specswitch.cli.check:check", "Hold SGLang against what specswitch relies on."),
    "demo": ("specswitch.cli.demo:demo", "Watch a server switch while its load rises and falls."),
    "pin": ("specswitch.cli.pin:pin", "Have a running server decode plainly or speculatively, or decide again."),
    "replay": ("specswitch.cli.replay:command", "Compare the policies on a load, by a profile, without a GPU."),
}
"""Name to ``module:command`` and the line that ``specswitch --help`` shows."""


class LazyGroup(click.Group):
    """Imports a sub-command when it is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every sub-command, by name."""
        return sorted(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the sub-command, or None where there is none of that name."""
        if cmd_name not in SUBCOMMANDS:
            return None
        module, _, attribute = SUBCOMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, SUBCOMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="specswitch")
def main() -> None:
    """Switch a running SGLang server between speculative and plain decoding."""
