"""Cross-origin requests, for the configured origins only."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from agentctl.errors import BadRequest
from agentctl.server.answers import Answer, failure

__all__ = ["CrossOrigin"]


class CrossOrigin(CORSMiddleware):
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
        answer = Answer(b"", 204, None) if allowed else failure(BadRequest("Origin not allowed"))
        kept = [
            field
            for field in response.raw_headers
            if field[0].startswith(b"access-control-") or field[0] == b"vary"
        ]
        answer.raw_headers = [*answer.raw_headers, *kept]
        return answer
