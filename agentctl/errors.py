"""Everything that can go wrong, as one tree.

Each class carries what both doors need: `error_code` and `status` for HTTP, `exit_code` for the
terminal. `detail` is public: it is written by us, never the text of another library's exception,
and never holds a secret. The private reason of a failure goes to the log and nowhere else.

    AgentctlError
    |-- BadRequest                400
    |-- Unauthenticated           401
    |   `-- InvalidToken          the one thing that verification of a credential raises
    |-- Forbidden                 403
    |-- NotFound                  404
    |-- MethodNotAllowed          405
    |-- Conflict                  409
    |-- TooLarge                  413
    |-- UnsupportedMediaType      415
    |-- ValidationFailed          422
    |-- TooManyRequests           429
    |-- HeaderTooLarge            431
    |-- InternalFailure           500
    |-- Unavailable               503  (database or server)
    |   `-- OutcomeUnknown        a change that was made, or was not: nobody can tell
    |-- UsageFailed               a command line that cannot be carried out
    |   |-- InvalidConfiguration
    |   `-- InvalidKey            a key that is refused when it is loaded
    |-- RunFailed                 a run that ended as ERROR, seen from the terminal
    |-- SchemaMismatch            the database is older or newer than the code
    |-- ProblemsFound             problems that `runs doctor` did not repair
    |-- SomethingWrong            problems that `doctor` or `db check` found
    |-- PartFailed                some of several operations failed
    |-- PortInUse
    |-- Refused                   a prompt answered no
    `-- StillPending              asked for, not done within the time to wait
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar

__all__ = [
    "AgentctlError",
    "BadRequest",
    "ConfirmationDeclined",
    "Conflict",
    "Forbidden",
    "HeaderTooLarge",
    "InternalError",
    "InvalidConfiguration",
    "InvalidKey",
    "InvalidToken",
    "MethodNotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "PartFailed",
    "PortInUse",
    "ProblemsFound",
    "RunFailed",
    "SchemaMismatch",
    "SomethingWrong",
    "StillPending",
    "TooLarge",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "UnsupportedMediaType",
    "UsageError",
    "ValidationFailed",
    "error_from_response",
    "iter_error_classes",
]

_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")


class AgentctlError(Exception):
    """A failure that a user is told about.

    Args:
        detail: what failed, public, one line without a full stop.
        cause: why, public, one line; shown on the terminal only.
        hint: what to do about it; shown on the terminal only.
        command: instead of a hint, the `agentctl` command that helps: the command line adds the
            `--config` that it was given.
    """

    error_code: ClassVar[str] = "INTERNAL_SERVER_ERROR"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        detail: str,
        *,
        cause: str | None = None,
        hint: str | None = None,
        command: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.cause = cause
        self.hint = hint or command
        self.command = command

    def body(self) -> dict[str, object]:
        """The error body of spec.md "Errors"."""
        return {"detail": self.detail, "error_code": self.error_code}

    def headers(self) -> dict[str, str]:
        """Response headers that belong to this failure."""
        return {}


class BadRequest(AgentctlError):
    """The request makes no sense as a whole (400)."""

    error_code = "BAD_REQUEST"
    status = 400


class Unauthenticated(AgentctlError):
    """No credential, or one that does not hold (401). RFC 6750 3: no error code without one."""

    error_code = "UNAUTHENTICATED"
    status = 401
    exit_code = 4

    def __init__(
        self,
        detail: str = "Authentication required",
        *,
        cause: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(detail, cause=cause, hint=hint)

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Bearer realm="agentctl"'}


class InvalidToken(Unauthenticated):
    """A credential that does not hold. What is private is for the audit, the log and explain.

    Args:
        reason: why, private, one line; never a part of the credential.
        check: the step that it failed, a stable name of a small fixed set: `auth.steps.CHECKS`.
    """

    def __init__(self, reason: str, *, check: str = "form", hint: str | None = None) -> None:
        super().__init__("Invalid or expired credential", hint=hint)
        self.reason = reason
        self.check = check

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Bearer realm="agentctl", error="invalid_token"'}


class Forbidden(AgentctlError):
    """A known caller who lacks what the operation requires (403, RFC 6750 3.1)."""

    error_code = "FORBIDDEN"
    status = 403
    exit_code = 4

    def __init__(self, detail: str, *, required_scopes: tuple[str, ...] = ()) -> None:
        super().__init__(
            detail,
            hint=f"use a token with one of: {', '.join(required_scopes)}"
            if required_scopes
            else None,
        )
        self.required_scopes = required_scopes

    def body(self) -> dict[str, object]:
        return {**super().body(), "required_scopes": list(self.required_scopes)}

    def headers(self) -> dict[str, str]:
        # An id from the path is part of a scope: only what RFC 6750 3 allows may reach a header.
        names = [scope for scope in self.required_scopes if _SCOPE_TOKEN.fullmatch(scope)]
        scope = f', scope="{" ".join(names)}"' if names else ""
        return {"WWW-Authenticate": f'Bearer realm="agentctl", error="insufficient_scope"{scope}'}


class NotFound(AgentctlError):
    """What was named is not there, or not for this caller (404): both read the same."""

    error_code = "NOT_FOUND"
    status = 404
    exit_code = 5


class MethodNotAllowed(AgentctlError):
    """The path exists, not with this method (405). `allow`: the methods that it has."""

    error_code = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, detail: str = "Method not allowed", *, allow: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allow)} if self.allow else {}


class Conflict(AgentctlError):
    """The state of the thing forbids the change (409)."""

    error_code = "CONFLICT"
    status = 409
    exit_code = 6


class TooLarge(AgentctlError):
    """A body or a field over its limit (413)."""

    error_code = "TOO_LARGE"
    status = 413


class UnsupportedMediaType(AgentctlError):
    """A body of a type that the operation does not read (415)."""

    error_code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class ValidationFailed(AgentctlError):
    """A parameter or a field with a value that is not allowed (422)."""

    error_code = "VALIDATION_ERROR"
    status = 422
    exit_code = 2


class TooManyRequests(AgentctlError):
    """More than the server takes at once (429)."""

    error_code = "TOO_MANY_REQUESTS"
    status = 429
    exit_code = 7

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class HeaderTooLarge(AgentctlError):
    """Header fields over the limit (431)."""

    error_code = "REQUEST_HEADER_FIELDS_TOO_LARGE"
    status = 431


class InternalError(AgentctlError):
    """A fault of ours (500). The text is fixed; the log has the rest under the request id."""

    def __init__(self, detail: str = "Internal server error", *, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)


class Unavailable(AgentctlError):
    """The database or the server cannot serve now (503); trying again may help."""

    error_code = "UNAVAILABLE"
    status = 503
    exit_code = 7

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class OutcomeUnknown(Unavailable):
    """The database went away at the commit, and nobody can tell what became of it."""


class UsageError(AgentctlError):
    """A command line that cannot be carried out as given."""

    error_code = "USAGE"
    exit_code = 2


class InvalidConfiguration(UsageError):
    """A configuration that cannot be used: file, key, what is wrong, what is allowed."""

    error_code = "CONFIGURATION"


class InvalidKey(UsageError):
    """A key or key set that is refused when it is loaded."""

    error_code = "INVALID_KEY"


class RunFailed(AgentctlError):
    """A run that ended as ERROR, told at the terminal."""

    error_code = "RUN_FAILED"


class SchemaMismatch(AgentctlError):
    """The database's schema is older or newer than this code."""

    error_code = "SCHEMA_MISMATCH"


class ProblemsFound(AgentctlError):
    """Problems that `runs doctor` found and did not repair."""

    error_code = "PROBLEMS_FOUND"


class SomethingWrong(AgentctlError):
    """Problems of the installation that `doctor` or `db check` found."""

    error_code = "SOMETHING_WRONG"


class PartFailed(AgentctlError):
    """Some of several operations failed; each failure was reported."""

    error_code = "PART_FAILED"


class PortInUse(AgentctlError):
    """Another program listens where the server was told to listen."""

    error_code = "PORT_IN_USE"


class ConfirmationDeclined(AgentctlError):
    """The user answered no."""

    error_code = "REFUSED"
    exit_code = 2


class StillPending(AgentctlError):
    """What was asked for has not happened within the time to wait."""

    error_code = "STILL_PENDING"
    exit_code = 8


def iter_error_classes(root: type[AgentctlError] = AgentctlError) -> Iterator[type[AgentctlError]]:
    """Every class of the tree below `root`, depth first."""
    for child in root.__subclasses__():
        yield child
        yield from iter_error_classes(child)


def error_from_response(status: int, body: Mapping[str, object]) -> AgentctlError:
    """The failure that a server's error body stands for.

    Args:
        status: HTTP status of the answer.
        body: the parsed error body, `{"detail": str, "error_code": str | null}`; a foreign server
            may leave `error_code` out, then the status decides.
    """
    detail = body.get("detail")
    text = detail if isinstance(detail, str) else f"The server answered {status}"
    if status == Forbidden.status:
        scopes = body.get("required_scopes")
        names = tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()
        return Forbidden(text, required_scopes=names)
    by_status = {
        kind.status: kind for kind in reversed([*iter_error_classes()]) if kind.status != 500
    } | {401: Unauthenticated}
    if status in by_status:
        return by_status[status](text)
    return Unavailable(text) if status in (502, 504) else InternalError(text)
