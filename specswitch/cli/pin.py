"""``specswitch pin``: how a running server is to operate from now on."""

from __future__ import annotations

from typing import get_args

import click

from specswitch.client import ServerClient
from specswitch.control import PinName
from specswitch.errors import SpecswitchError


@click.command()
@click.argument("mode", type=click.Choice(get_args(PinName)))
@click.option("--url", default="http://localhost:30000", show_default=True)
@click.option("--api-key", help="What the server was given as --api-key.")
@click.option("--admin-api-key", "admin_key", help="What it was given as --admin-api-key.")
def pin(mode: PinName, url: str, api_key: str | None, admin_key: str | None) -> None:
    """Operate the server at --url in MODE, without a restart.

    MODE is as in --specswitch-mode; 'configured' goes back to what the server was started with.  A mode that is pinned
    is left or entered at once, without a dwell.
    """
    client = ServerClient(url, api_key=api_key, admin_key=admin_key)
    try:
        client.pin(mode)
        status = client.status()
    except SpecswitchError as error:
        raise click.ClickException(str(error)) from error
    pinned = f"pinned to {status['pinned']}" if status["pinned"] else f"as configured, {status['config']['mode']}"
    print(f"{client.url}: {pinned}; now {status['mode']}")
