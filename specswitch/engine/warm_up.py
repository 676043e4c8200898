"""The stretch of a server's start in which it answers HTTP and does not yet say that it is ready.

SGLang starts ``http_server._wait_and_warmup`` as a thread when the HTTP server comes up; it sends the warm-up request
and then sets the server's status to up (the same from 0.5.11 to 0.5.23).  Until then ``/health`` answers 503.
"""

from __future__ import annotations

from typing import Any

from specswitch.client import ServerClient

TARGET = "sglang.srt.entrypoints.http_server._wait_and_warmup"
"""Runs in the launcher, in a thread of its own."""


def client_of(server_args: Any) -> ServerClient:
    """Speaks to the server that is being started in this process, whatever its certificate."""
    return ServerClient(
        server_args.url(), api_key=server_args.api_key, admin_key=server_args.admin_api_key, verify=False
    )
