"""The outermost layer, pure ASGI: who calls, and what every answer carries.

It turns the Authorization header into a principal or a failure in the ASGI scope, and refuses
nothing: that is for `routing`, which knows what was asked for. Every answer, also to what nobody
foresaw, gets a request id of ours and the security header fields.

Cross-origin requests, for the configured origins only.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from time import perf_counter

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.errors import AgentctlError, BadRequest, InternalError, Unauthenticated, Unavailable
from agentctl.records.ids import new_id
from agentctl.records.log_context import add_log_context, set_log_context
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.server.answers import BytesResponse, error_response
from agentctl.server.observability.log import FinishedRequest
from agentctl.server.state import CALLER_KEY, AppState, Caller

__all__ = [
    "AuthenticationMiddleware",
    "CrossOriginMiddleware",
    "TrackedSend",
    "add_common_headers",
    "send_error_response",
]

_log = logging.getLogger("agentctl.server")
_complaints = RateLimitedLog(_log)

_FIXED_HEADERS = ((b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"))
_DEFAULT_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)

_SEVERAL_CREDENTIALS = re.compile(rb"bearer .*,\s*bearer ", re.IGNORECASE)

HeaderFields = Iterable[tuple[bytes, bytes]]


def add_common_headers(fields: HeaderFields, request_id: str) -> list[tuple[bytes, bytes]]:
    """The header fields of an answer, with those that every answer carries."""
    given = [*fields, (b"x-request-id", request_id.encode("ascii")), *_FIXED_HEADERS]
    names = dict(given)
    for field in _DEFAULT_HEADERS:
        if field[0] not in names:
            given.append(field)
    return given


class TrackedSend:
    """`send`, that remembers whether the status line went out: after it no failure can be told."""

    __slots__ = ("send", "started")

    def __init__(self, send: Send) -> None:
        self.send = send
        self.started = False

    async def __call__(self, message: Message) -> None:
        self.started = True
        await self.send(message)


class _HeaderAddingSend(TrackedSend):
    """Adds the header fields of every answer; takes the body away for HEAD.

    Attributes:
        status: of the answer, once it began.
    """

    __slots__ = ("omits_body", "request_id", "status")

    def __init__(self, send: Send, request_id: str, *, omits_body: bool) -> None:
        super().__init__(send)
        self.request_id = request_id
        self.omits_body = omits_body
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = add_common_headers(message["headers"], self.request_id)
        elif self.omits_body:
            message["body"] = b""
        await super().__call__(message)


class AuthenticationMiddleware:
    """Identifies the caller and dresses the answer.

    Args:
        app: what answers.
        door: of the application.
    """

    def __init__(self, app: ASGIApp, door: AppState) -> None:
        self.app = app
        self.door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = perf_counter()
        request_id = new_id()
        set_log_context(request_id=request_id)
        head = scope["method"] == "HEAD"
        reply = _HeaderAddingSend(send, request_id, omits_body=head)
        asked = scope["method"]
        if head:  # a copy: the server below still has to know that it was HEAD
            scope = {**scope, "method": "GET"}
        try:
            self.door.running_service  # noqa: B018 - refuses everything while not running
            scope[CALLER_KEY] = await self._caller(scope["headers"], request_id)
            await self.app(scope, receive, reply)
        except Exception as error:
            await send_error_response(error, request_id, reply, scope, receive)
        finally:
            self._tell(scope, asked, reply.status, perf_counter() - began)

    def _tell(self, scope: Scope, method: str, status: int | None, seconds: float) -> None:
        route, caller = scope.get("route"), scope.get(CALLER_KEY)
        operation = getattr(route, "operation", None)
        principal = None if caller is None else caller.principal
        identity = None if principal is None else principal.identity
        finished = FinishedRequest(operation, method, status, seconds, identity)
        for told in self.door.request_observers:
            told(finished)

    async def _caller(self, headers: HeaderFields, request_id: str) -> Caller:
        assert self.door.verifier is not None
        try:
            principal = await self.door.verifier.identify(_get_authorization(headers))
        except (Unauthenticated, Unavailable) as error:
            return Caller(self.door, request_id, None, error)
        add_log_context(principal=principal.identity)
        return Caller(self.door, request_id, principal)


def _get_authorization(headers: HeaderFields) -> str | None:
    """The value of the Authorization header, or None when there is none.

    Raises:
        BadRequest: more than one, or several in one value, which is what a program between makes
            of them: they are told apart by nobody the same way (RFC 6750 3.1, `invalid_request`).
    """
    values = [value for name, value in headers if name == b"authorization"]
    if not values:
        return None
    if len(values) > 1 or (b"," in values[0] and _SEVERAL_CREDENTIALS.search(values[0])):
        raise BadRequest("The request has more than one credential")
    return values[0].decode("latin-1")


async def send_error_response(
    error: Exception, request_id: str, reply: TrackedSend, scope: Scope, receive: Receive
) -> None:
    """Answer a failure in our shape; what is no failure of ours is a 500 and goes to the log.

    Raises:
        Exception: the answer had already begun, so that only closing the connection tells it.
    """
    told = error if isinstance(error, AgentctlError) else None
    if told is None or (told.status == 500 and not isinstance(told, InternalError)):
        _log.error("request %s failed", request_id, exc_info=error)
        told = InternalError()
    elif isinstance(told, Unavailable):
        # What keeps one request from its answer keeps many, and has said in the log what it is.
        _complaints.make("requests are answered with 503: %s", told.detail)
        _log.debug("request %s: %s", request_id, told.detail, exc_info=error.__cause__)
    elif told.status >= 500:
        _log.warning("request %s: %s", request_id, told.detail, exc_info=error.__cause__)
    if reply.started:
        raise error
    await error_response(told)(scope, receive, reply)


class CrossOriginMiddleware(CORSMiddleware):
    """Starlette's, without cookies: callers authenticate with a header. Its refusals are ours.

    Args:
        app: what answers.
        origins: `server.cors_origins`.
    """

    def __init__(self, app: ASGIApp, origins: tuple[str, ...]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("DELETE", "GET", "HEAD", "PATCH", "POST"),
            allow_headers=("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"),
            expose_headers=("Retry-After", "X-Request-ID"),
            max_age=600,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """204 with what is allowed, or 400."""
        response = super().preflight_response(request_headers)
        allowed = response.status_code < 400
        answer = (
            BytesResponse(b"", 204, None)
            if allowed
            else error_response(BadRequest("Origin not allowed"))
        )
        kept = [
            field
            for field in response.raw_headers
            if field[0].startswith(b"access-control-") or field[0] == b"vary"
        ]
        answer.raw_headers = [*answer.raw_headers, *kept]
        return answer
