"""The response of a provider to a command: a listener on this machine (RFC 8252 7.3)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from types import TracebackType
from urllib.parse import parse_qsl, urlsplit

from agentctl.errors import Unavailable, UsageError

PATH = "/callback"

MAXIMUM_HEAD_BYTES = 16_384
"""Maximum size of the head of a request: other programs may connect, too."""

HEAD_SECONDS = 5.0
"""Maximum time until the head of a request has arrived."""

MAXIMUM_CONNECTIONS = 64
"""Maximum number of connections at a time."""

_NOT_EXPECTED = ("404 Not Found", "This is not the response for the sign-in at the terminal.")

_PAGE = """<!doctype html><meta charset="utf-8"><title>agentctl</title><p>{text}</p>"""


class LoopbackListener:
    """A listener on 127.0.0.1, as an async context manager.

    Args:
        port: 0 for any free port.

    Raises:
        UsageError: the port is in use.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections = 0
        self._state = b""
        self._fields: asyncio.Future[dict[str, str]] = asyncio.Future()
        self._outcome: asyncio.Future[str] = asyncio.Future()

    async def __aenter__(self) -> LoopbackListener:
        try:
            self._server = await asyncio.start_server(
                self._handle, "127.0.0.1", self._port, limit=MAXIMUM_HEAD_BYTES
            )
        except (OSError, OverflowError):
            raise UsageError(
                f"port {self._port} of this machine cannot be used",
                hint="leave out --port to use any free one",
            ) from None
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Answer the browser with the outcome of the block."""
        text = "The sign-in failed: see the terminal." if error else "Continue in the terminal."
        self._outcome.set_result(f"{text} You can close this page.")
        self._server.close()
        # The answer is written before the command ends.
        await asyncio.sleep(0)
        self._fields.cancel()

    @property
    def redirect_uri(self) -> str:
        return f"http://127.0.0.1:{self._port}{PATH}"

    async def wait(self, state: str, seconds: float) -> dict[str, str]:
        """Return the fields of the first response with the `state` of the sign-in.

        Other responses do not end the wait: any page or program may send one to a port.

        Raises:
            Unavailable: none arrives in time.
        """
        self._state = state.encode()
        try:
            async with asyncio.timeout(seconds):
                return await self._fields
        except TimeoutError:
            raise Unavailable(
                f"The browser did not return within {seconds:g} seconds",
                hint="sign in again, or with a code: agentctl login --device",
            ) from None

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a request: the response of the provider with an outcome, any other with 404."""
        self._connections += 1
        with contextlib.suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError):
            status, text = _NOT_EXPECTED
            if self._connections <= MAXIMUM_CONNECTIONS:
                async with asyncio.timeout(HEAD_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                fields = _parse_fields(head)
                if self._is_expected(fields) and not self._fields.done():
                    # The browser waits until the sign-in has ended.
                    self._fields.set_result(fields)
                    status = "200 OK"
                    text = await self._outcome

            body = _PAGE.format(text=text).encode()
            lines = (
                f"HTTP/1.1 {status}",
                "Content-Type: text/html; charset=utf-8",
                f"Content-Length: {len(body)}",
                "Content-Security-Policy: default-src 'none'",
                "Cache-Control: no-store",
                "Referrer-Policy: no-referrer",
                "Connection: close",
            )
            writer.write("\r\n".join((*lines, "", "")).encode() + body)
            await writer.drain()

        self._connections -= 1
        writer.close()

    def _is_expected(self, fields: dict[str, str]) -> bool:
        given = fields.get("state", "").encode()
        return bool(self._state) and secrets.compare_digest(given, self._state)


def _parse_fields(head: bytes) -> dict[str, str]:
    """Return the parameters of the redirect; an empty dictionary for any other request.

    A request that has a parameter twice is ambiguous, and no redirect.
    """
    method, _, rest = head.decode("latin-1").partition(" ")
    try:
        target = urlsplit(rest.partition(" ")[0])
        pairs = parse_qsl(target.query, keep_blank_values=True, max_num_fields=50)
    except ValueError:
        return {}

    if method != "GET" or target.path != PATH:
        return {}
    fields = dict(pairs)
    has_repeated_field = len(fields) != len(pairs)
    return {} if has_repeated_field else fields
