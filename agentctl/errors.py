"""The tree of errors.

Each class has an `error_code` and a `status` for HTTP, and an `exit_code` for the command line.
`detail` is public: the project writes its text, which never contains the text of another library's
exception or a secret. The private reason of an error goes to the log only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar

_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")

INSUFFICIENT_SCOPES = "Insufficient scopes for this operation"
"""The detail of each denial by the policy."""


class AgentctlError(Exception):
    """An error with texts for the user.

    Args:
        detail: what failed; public, one line without a final period.
        cause: the reason; public, one line, for the command line only.
        hint: a command or setting that helps; for the command line only.
        command: instead of a hint, an `agentctl` command that helps; the command line adds its
            `--config` option.
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
        """Return the error body of the response (docs/contract.md "Errors")."""
        return {"detail": self.detail, "error_code": self.error_code}

    def headers(self) -> dict[str, str]:
        """Return the response headers of this error."""
        return {}


class BadRequest(AgentctlError):
    """The request is invalid as a whole (400)."""

    error_code = "BAD_REQUEST"
    status = 400


class Unauthenticated(AgentctlError):
    """The credential is missing or invalid (401).

    Without a credential the challenge has no error code (RFC 6750 3).
    """

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
    """An invalid credential (401). Its reason is for the audit log, the log and `explain` only.

    Args:
        reason: the private reason, one line, never a part of the credential.
        check: name of the failed check, one of `auth.explain.checks`.
    """

    def __init__(self, reason: str, *, check: str = "form", hint: str | None = None) -> None:
        super().__init__("Invalid or expired credential", hint=hint)
        self.reason = reason
        self.check = check

    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": 'Bearer realm="agentctl", error="invalid_token"'}


class Forbidden(AgentctlError):
    """An authenticated caller without the required scopes (403, RFC 6750 3.1)."""

    error_code = "FORBIDDEN"
    status = 403
    exit_code = 4

    def __init__(self, detail: str, *, required_scopes: tuple[str, ...] = ()) -> None:
        hint = None
        if required_scopes:
            hint = f"use a token with one of: {', '.join(required_scopes)}"
        elif detail == INSUFFICIENT_SCOPES:  # of an operation for operators
            hint = "use a token with the admin scope"
        super().__init__(detail, hint=hint)
        self.required_scopes = required_scopes

    def body(self) -> dict[str, object]:
        return {**super().body(), "required_scopes": list(self.required_scopes)}

    def headers(self) -> dict[str, str]:
        # A scope may contain an id from the path; a header may have only the characters of
        # RFC 6750 3.
        names = [scope for scope in self.required_scopes if _SCOPE_TOKEN.fullmatch(scope)]
        scope = f', scope="{" ".join(names)}"' if names else ""
        return {"WWW-Authenticate": f'Bearer realm="agentctl", error="insufficient_scope"{scope}'}


class CrossSiteRequest(Forbidden):
    """A request that a web page of another origin may have made (403).

    A server without authorization accepts none (docs/contract.md "Authentication"). No scope would
    help, so there is no challenge.
    """

    def headers(self) -> dict[str, str]:
        return {}


class FourEyes(Forbidden):
    """A decision that another person has to make (403): four eyes. No scope would help."""

    error_code = "FOUR_EYES"

    def headers(self) -> dict[str, str]:
        return {}


class NotFound(AgentctlError):
    """A resource that does not exist or is not visible to the caller (404)."""

    error_code = "NOT_FOUND"
    status = 404
    exit_code = 5


class MethodNotAllowed(AgentctlError):
    """A method that the path does not have (405). `allow`: the methods that it has."""

    error_code = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, detail: str = "Method not allowed", *, allow: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allow)} if self.allow else {}


class Conflict(AgentctlError):
    """The state of the resource does not allow the change (409)."""

    error_code = "CONFLICT"
    status = 409
    exit_code = 6


class NeedsConfirmation(Conflict):
    """A run that may repeat effects of another one (409). The same request with `confirm` runs.

    Args:
        plan: the public members of the body that describe it (`records.repeats.RepeatPlan`).
    """

    error_code = "NEEDS_CONFIRMATION"

    def __init__(self, detail: str, *, plan: Mapping[str, object]) -> None:
        super().__init__(detail)
        self.plan = dict(plan)

    def body(self) -> dict[str, object]:
        return {**super().body(), "plan": self.plan}


class Held(Conflict):
    """Sessions that administrators hold, so that they are not deleted (409).

    Args:
        session_ids: held sessions, not always all of them.
    """

    error_code = "HELD"

    def __init__(self, detail: str, *, session_ids: Iterable[str] = ()) -> None:
        super().__init__(detail, hint="an administrator can end the hold of a session")
        self.session_ids = list(session_ids)

    def body(self) -> dict[str, object]:
        return {**super().body(), "session_ids": self.session_ids}


class TooLarge(AgentctlError):
    """A body or a field over its limit (413)."""

    error_code = "TOO_LARGE"
    status = 413


class UnsupportedMediaType(AgentctlError):
    """A content type that the operation does not accept (415)."""

    error_code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class ValidationFailed(AgentctlError):
    """A parameter or a field with a value that is not allowed (422)."""

    error_code = "VALIDATION_ERROR"
    status = 422
    exit_code = 2


class TooManyRequests(AgentctlError):
    """The server is at its limit of runs or streams (429)."""

    error_code = "TOO_MANY_REQUESTS"
    status = 429
    exit_code = 7

    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}


class QuotaExceeded(TooManyRequests):
    """The data of a user has reached a quota (429); a retry does not help.

    Args:
        maximum: the number that the quota allows, with its unit.
        key: the key of `[quotas]`.
    """

    error_code = "QUOTA_EXCEEDED"
    exit_code = 6

    def __init__(self, maximum: str, key: str = "") -> None:
        # A client has the text of the response.
        text = f"The quota of {maximum} for one user is used up: delete data, or ask the operator"
        super().__init__(f"{text} to raise quotas.{key}" if key else maximum)

    def headers(self) -> dict[str, str]:
        return {}


class RateLimited(TooManyRequests):
    """A caller over a limit of `[rate_limits]` (429).

    Args:
        detail: the limit.
        seconds: time after which the next request is accepted.
    """

    error_code = "RATE_LIMITED"

    def __init__(self, detail: str, *, seconds: float = 1) -> None:
        super().__init__(detail)
        self._seconds = seconds

    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(max(math.ceil(self._seconds), 1))}


class BudgetExceeded(TooManyRequests):
    """A budget that is used up (429).

    Args:
        detail: the budget, its limit, and the time at which its next period begins.
        budget: its id; "" if the error was read from a response.
        seconds: time until then; None: a later request is refused as well.
    """

    error_code = "BUDGET_EXCEEDED"
    exit_code = 6

    def __init__(self, detail: str, *, budget: str = "", seconds: float | None = None) -> None:
        super().__init__(detail, command="agentctl budgets list")
        self.budget = budget
        self._seconds = seconds

    def body(self) -> dict[str, object]:
        return {**super().body(), "budget": self.budget}

    def headers(self) -> dict[str, str]:
        if self._seconds is None:
            return {}
        return {"Retry-After": str(max(math.ceil(self._seconds), 1))}


class HeaderTooLarge(AgentctlError):
    """Header fields over the limit (431)."""

    error_code = "REQUEST_HEADER_FIELDS_TOO_LARGE"
    status = 431


class InternalError(AgentctlError):
    """A fault of the server (500). The log has the details under the request id."""

    def __init__(self, detail: str = "Internal server error", *, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)


class Unavailable(AgentctlError):
    """The database or the server is not available (503); a retry may succeed."""

    error_code = "UNAVAILABLE"
    status = 503
    exit_code = 7
    retry_after = "1"

    def headers(self) -> dict[str, str]:
        return {"Retry-After": self.retry_after}


class DatabaseMoved(Unavailable):
    """A write to a database that has moved, or moves now, to another place (503)."""

    error_code = "DATABASE_MOVED"
    retry_after = "5"


class OutcomeUnknown(Unavailable):
    """A change that may be committed, of the run `run_id` unless it is None (503)."""

    error_code = "OUTCOME_UNKNOWN"
    run_id: str | None = None

    def body(self) -> dict[str, object]:
        return {**super().body(), **({"run_id": self.run_id} if self.run_id else {})}

    def headers(self) -> dict[str, str]:
        # Clients of OpenAI and Anthropic repeat a request after any other 503.
        return {"X-Should-Retry": "false"}


class InvalidResponse(Unavailable):
    """A response of a server that is not what the interface defines: a retry does not help."""


class UsageError(AgentctlError):
    """A command line that is invalid."""

    error_code = "USAGE"
    exit_code = 2


class Unsupported(UsageError):
    """An operation that the server or database, of another product, does not have."""

    error_code = "UNSUPPORTED"


class InvalidConfiguration(UsageError):
    """An invalid configuration: file, key, problem, allowed values."""

    error_code = "CONFIGURATION"


class InvalidKey(UsageError):
    """A key or key set that is rejected when it is loaded."""

    error_code = "INVALID_KEY"


class InvalidStatement(AgentctlError):
    """A signed statement that a verifier rejects.

    Args:
        reason: why, one line.
    """

    error_code = "INVALID_STATEMENT"

    def __init__(self, reason: str) -> None:
        super().__init__("The signed statement is not valid", cause=reason)
        self.reason = reason


class RunFailed(AgentctlError):
    """A run that ended as ERROR, as an error of the command."""

    error_code = "RUN_FAILED"


class SchemaMismatch(AgentctlError):
    """The schema of the database is older or newer than the code."""

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
    """Another program listens on the address of the server."""

    error_code = "PORT_IN_USE"


class ConfirmationDeclined(AgentctlError):
    """The user answered no to a confirmation."""

    error_code = "REFUSED"
    exit_code = 2


class StillPending(AgentctlError):
    """The request was accepted but not completed within the time to wait."""

    error_code = "STILL_PENDING"
    exit_code = 8


class WaitsForDecision(AgentctlError):
    """The run of the command waits for a decision of a person."""

    error_code = "WAITS_FOR_DECISION"
    exit_code = 9


def iter_error_classes(root: type[AgentctlError] = AgentctlError) -> Iterator[type[AgentctlError]]:
    """Yield every class of the tree below `root`, depth first."""
    for child in root.__subclasses__():
        yield child
        yield from iter_error_classes(child)


def error_from_response(status: int, body: Mapping[str, object]) -> AgentctlError:
    """Return the error that an error body of a server represents.

    Args:
        status: HTTP status of the response.
        body: the parsed body, `{"detail": str, "error_code": str | null}`. Other servers may omit
            `error_code`; the status decides then.
    """
    detail = body.get("detail")
    text = detail if isinstance(detail, str) else f"The server responded with status {status}"
    if status == Forbidden.status:
        scopes = body.get("required_scopes")
        names = tuple(str(scope) for scope in scopes) if isinstance(scopes, list) else ()
        kind = FourEyes if body.get("error_code") == FourEyes.error_code else Forbidden
        return kind(text, required_scopes=names)
    if body.get("error_code") == NeedsConfirmation.error_code:
        plan = body.get("plan")
        return NeedsConfirmation(text, plan=plan if isinstance(plan, Mapping) else {})
    if body.get("error_code") == Held.error_code:
        held = body.get("session_ids")
        return Held(text, session_ids=map(str, held) if isinstance(held, list) else ())
    for refusal in (QuotaExceeded, RateLimited, BudgetExceeded, OutcomeUnknown):
        if body.get("error_code") == refusal.error_code:
            return refusal(text)
    by_status = {
        kind.status: kind for kind in reversed([*iter_error_classes()]) if kind.status != 500
    } | {401: Unauthenticated}
    if status in by_status:
        return by_status[status](text)
    return Unavailable(text) if status in (502, 504) else InternalError(text)
