"""A running SGLang server with specswitch, seen over HTTP."""

from __future__ import annotations

import json
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import msgspec

from specswitch.control import MODE_KEY, NUMBERS, PROFILE_KEY, PinName
from specswitch.errors import CalibrationError
from specswitch.profile import ProfileKey


class ServerClient:
    """Raises :class:`CalibrationError` where the server does not answer, or not as specswitch does."""

    def __init__(
        self,
        url: str,
        timeout: float = 60.0,
        *,
        api_key: str | None = None,
        admin_key: str | None = None,
        verify: bool = True,
    ) -> None:
        """
        Args:
            url: of the server.
            timeout: seconds to wait for an answer.
            api_key: what the server was given as ``--api-key``.
            admin_key: the same of ``--admin-api-key``.
            verify: whether an https server must prove who it is.
        """
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._key = api_key
        self._admin_key = admin_key or api_key
        self._tls = None if verify else _unverified()
        self._random = Random(1)

    def info(self) -> dict[str, Any]:
        """``GET /server_info``."""
        info: dict[str, Any] = self._call("/server_info")
        return info

    def status(self) -> dict[str, Any]:
        """specswitch's own part of it, of the first scheduler."""
        return self._status_in(self.info())

    def key(self, gpu: str | None = None, model: str | None = None) -> ProfileKey:
        """What the server's profile holds for, with other names of GPU and model where they say too little."""
        key = msgspec.convert(self.status()["key"], ProfileKey)
        return msgspec.structs.replace(key, gpu=gpu or key.gpu, model=model or key.model)

    def pin(self, name: PinName) -> None:
        """Have the server operate so from now on, whatever it was configured to do."""
        self._call("/set_internal_state", {"server_args": {MODE_KEY: NUMBERS[name]}}, admin=True)

    def use_profile(self) -> None:
        """Have the server read its profile from the file again, and go by it."""
        self._call("/set_internal_state", {"server_args": {PROFILE_KEY: 1}}, admin=True)

    def warm_up(self) -> None:
        """Decode a few tokens in each mode, so that nothing is compiled while something is measured."""
        sampling = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
        for name in ("plain", "speculative"):
            self.pin(name)
            self._call("/generate", {"input_ids": list(range(10, 26)), "sampling_params": sampling}, timeout=600.0)

    @contextmanager
    def requests(self, count: int, prompt_tokens: int, output_tokens: int) -> Iterator[None]:
        """Keep ``count`` requests of their own prompts running, until all have ended or the block is left."""
        # small token ids exist in any vocabulary
        prompts = [[self._random.randrange(10, 200) for _ in range(prompt_tokens)] for _ in range(count)]
        sampling = {"temperature": 0, "max_new_tokens": output_tokens, "ignore_eos": True}
        answered = threading.Thread(target=self._generate, args=(prompts, sampling), daemon=True)
        answered.start()
        try:
            yield
        finally:
            self._call("/abort_request", {"rid": "", "abort_all": True}, as_json=False, admin=True)
            answered.join(self._timeout)

    def _generate(self, prompts: list[list[int]], sampling: dict[str, Any]) -> None:
        with suppress(CalibrationError):  # an aborted answer
            self._call("/generate", {"input_ids": prompts, "sampling_params": sampling}, timeout=3600.0)

    def _status_in(self, info: dict[str, Any]) -> dict[str, Any]:
        states = info.get("internal_states") or [{}]
        status: dict[str, Any] | None = states[0].get("specswitch")
        if status is None:
            raise CalibrationError(
                f"The server at {self.url} runs without specswitch, so its modes cannot be told apart:"
                " start it with --enable-specswitch."
            )
        return status

    def _call(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        timeout: float | None = None,
        as_json: bool = True,
        admin: bool = False,
    ) -> Any:
        key = self._admin_key if admin else self._key
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout or self._timeout, context=self._tls) as response:
                return json.load(response) if as_json else response.read()
        except urllib.error.HTTPError as error:
            raise CalibrationError(f"{self.url}{path} answers {error.code}: {_sentence(error)}") from None
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f"The server does not answer {self.url}{path} ({error}): check the address and that it is up."
            ) from None


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _sentence(error: urllib.error.HTTPError) -> str:
    """What SGLang's answer says is wrong (``{"message": ...}``), or the status in words."""
    try:
        content = json.load(error)
    except (OSError, ValueError):
        return str(error.reason)
    message = content.get("message") if isinstance(content, dict) else None
    return str(message or error.reason)
