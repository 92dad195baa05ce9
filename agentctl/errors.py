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

NO_SUCH_PATH = "Not found: the API has no such path"
"""The detail of each request that no operation answers."""


class AgentctlError(Exception):
    """An error with texts for the user.

    Args:
        detail: what failed; public, one line without a final period.
        cause: the reason; public, one line, for the command line only.
        hint: a command or setting that helps; for the command line only.
        command: instead of a hint, an `agentctl` command that helps; the command line adds its
            `--config` option.

    Attributes:
        error_code: the code in the error body. Like `status` and `exit_code`, a class has that of
            its base unless it gives another one.
        members: attributes that are further members of the error body.
        retry_after: seconds until the same request may succeed; None for no header field.
    """

    error_code: ClassVar[str] = "INTERNAL_SERVER_ERROR"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    members: ClassVar[tuple[str, ...]] = ()
    retry_after: float | None = None

    def __init_subclass__(
        cls, *, code: str | None = None, status: int | None = None, exit_code: int | None = None
    ) -> None:
        given = {"error_code": code, "status": status, "exit_code": exit_code}
        for name, value in given.items():
            if value is not None:
                setattr(cls, name, value)

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

    @property
    def detail_with_cause(self) -> str:
        """The failure and its reason in one line, for logs and findings."""
        return self.detail if self.cause is None else f"{self.detail}: {self.cause}"

    def body(self) -> dict[str, object]:
        """Return the error body of the response (docs/contract.md "Errors")."""
        more = {name: getattr(self, name) for name in self.members}
        return {"detail": self.detail, "error_code": self.error_code, **more}

    def headers(self) -> dict[str, str]:
        """Return the response headers of this error."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(math.ceil(self.retry_after), 1))}


class BadRequest(AgentctlError, code="BAD_REQUEST", status=400):
    """The request is invalid as a whole (400)."""


class Unauthenticated(AgentctlError, code="UNAUTHENTICATED", status=401, exit_code=4):
    """The credential is missing or invalid (401).

    Without a credential the challenge has no error code (RFC 6750 3).
    """

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


class Forbidden(AgentctlError, code="FORBIDDEN", status=403, exit_code=4):
    """An authenticated caller without the required scopes (403, RFC 6750 3.1)."""

    has_challenge = True

    def __init__(self, detail: str, *, required_scopes: tuple[str, ...] = ()) -> None:
        hint = None
        if required_scopes:
            scopes = ", ".join(required_scopes)
            hint = (
                f"use a token with one of: {scopes};"
                " an administrator sees why with `agentctl auth explain`"
            )
        elif detail.startswith(INSUFFICIENT_SCOPES):  # of an operation for operators
            hint = "use a token with the admin scope"
        super().__init__(detail, hint=hint)
        self.required_scopes = required_scopes

    def body(self) -> dict[str, object]:
        return {**super().body(), "required_scopes": list(self.required_scopes)}

    def headers(self) -> dict[str, str]:
        if not self.has_challenge:
            return {}
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

    has_challenge = False


class FourEyes(Forbidden, code="FOUR_EYES"):
    """A decision that another person has to make (403): four eyes. No scope would help."""

    has_challenge = False


class NotFound(AgentctlError, code="NOT_FOUND", status=404, exit_code=5):
    """A resource that does not exist or is not visible to the caller (404)."""


class MethodNotAllowed(AgentctlError, code="METHOD_NOT_ALLOWED", status=405):
    """A method that the path does not have (405). `allow`: the methods that it has."""

    def __init__(self, detail: str = "Method not allowed", *, allow: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.allow = allow

    def headers(self) -> dict[str, str]:
        return {"Allow": ", ".join(self.allow)} if self.allow else {}


class Conflict(AgentctlError, code="CONFLICT", status=409, exit_code=6):
    """The state of the resource does not allow the change (409)."""


class NeedsConfirmation(Conflict, code="NEEDS_CONFIRMATION"):
    """A run that may repeat effects of another one (409). The same request with `confirm` runs.

    Args:
        plan: the public members of the body that describe it (`records.run_spec.RepeatPlan`).
    """

    members = ("plan",)

    def __init__(self, detail: str, *, plan: Mapping[str, object]) -> None:
        super().__init__(detail)
        self.plan = dict(plan)


class Held(Conflict, code="HELD"):
    """Sessions that administrators hold, so that they are not deleted (409).

    Args:
        session_ids: held sessions, not always all of them.
    """

    members = ("session_ids",)

    def __init__(self, detail: str, *, session_ids: Iterable[str] = ()) -> None:
        super().__init__(detail, hint="an administrator can end the hold of a session")
        self.session_ids = list(session_ids)


class TooLarge(AgentctlError, code="TOO_LARGE", status=413):
    """A body or a field over its limit (413)."""


class UnsupportedMediaType(AgentctlError, code="UNSUPPORTED_MEDIA_TYPE", status=415):
    """A content type that the operation does not accept (415)."""


class RangeNotSatisfiable(AgentctlError, code="RANGE_NOT_SATISFIABLE", status=416, exit_code=2):
    """A range of bytes that a file does not have (416, RFC 9110 15.5.17).

    Args:
        size: bytes of the file; None if the error was read from a response.
    """

    def __init__(self, size: int | str) -> None:
        is_known = isinstance(size, int)
        super().__init__(f"The file has only {size} bytes" if is_known else str(size))
        self._size = size if is_known else None

    def headers(self) -> dict[str, str]:
        return {} if self._size is None else {"Content-Range": f"bytes */{self._size}"}


class ValidationFailed(AgentctlError, code="VALIDATION_ERROR", status=422, exit_code=2):
    """A parameter or a field with a value that is not allowed (422)."""


class TooManyRequests(AgentctlError, code="TOO_MANY_REQUESTS", status=429, exit_code=7):
    """The server is at its limit of runs or streams (429)."""

    retry_after: float | None = 1


class QuotaExceeded(TooManyRequests, code="QUOTA_EXCEEDED", exit_code=6):
    """The data of a user has reached a quota (429); a retry does not help.

    Args:
        maximum: the number that the quota allows, with its unit.
        key: the key of the configuration that has the quota.
    """

    retry_after = None

    def __init__(self, maximum: str, key: str = "") -> None:
        # A client has the text of the response.
        text = f"The quota of {maximum} for one user is used up: delete data, or ask the operator"
        super().__init__(f"{text} to raise {key}" if key else maximum)


class RateLimited(TooManyRequests, code="RATE_LIMITED"):
    """A caller over a limit of `[rate_limits]` (429).

    Args:
        detail: the limit.
        seconds: time after which the next request is accepted.
    """

    def __init__(self, detail: str, *, seconds: float = 1) -> None:
        super().__init__(detail)
        self.retry_after = seconds


class BudgetExceeded(TooManyRequests, code="BUDGET_EXCEEDED", exit_code=6):
    """A budget that is used up (429).

    Args:
        detail: the budget, its limit, and the time at which its next period begins.
        budget: its id; "" if the error was read from a response.
        seconds: time until then; None: a later request is refused as well.
    """

    members = ("budget",)

    def __init__(self, detail: str, *, budget: str = "", seconds: float | None = None) -> None:
        super().__init__(detail, command="agentctl usage --budgets")
        self.budget = budget
        self.retry_after = seconds


class HeaderTooLarge(AgentctlError, code="REQUEST_HEADER_FIELDS_TOO_LARGE", status=431):
    """Header fields over the limit (431)."""


class InternalError(AgentctlError):
    """A fault of the server (500). The log has the details under the request id."""

    def __init__(self, detail: str = "Internal server error", *, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint)


class Unavailable(AgentctlError, code="UNAVAILABLE", status=503, exit_code=7):
    """The database or the server is not available (503); a retry may succeed."""

    retry_after: float | None = 1


class Halted(Unavailable, code="HALTED"):
    """A run that must not begin, because an operator has halted it (503).

    Args:
        detail: what is halted, the reason of the operator, and when the halt ends.
        halt: the id of the halt; "" if the error was read from a response.
        seconds: time after which the same request may succeed.
    """

    members = ("halt",)

    def __init__(self, detail: str, *, halt: str = "", seconds: float = 60) -> None:
        super().__init__(detail, command="agentctl halts list")
        self.halt = halt
        self.retry_after = seconds


class DatabaseDamaged(Unavailable):
    """A database that has lost its content or a part of it (503). No retry helps."""

    retry_after = None


class DatabaseClosed(Unavailable):
    """A database that this process has closed at its shutdown (503). No retry here helps."""


class BytesMissing(Unavailable, code="BYTES_MISSING"):
    """The store of files lacks the bytes of a file (503)."""


class OutcomeUnknown(Unavailable, code="OUTCOME_UNKNOWN"):
    """A change that may be committed, of the run `run_id` unless it is None (503)."""

    run_id: str | None = None

    def body(self) -> dict[str, object]:
        return {**super().body(), **({"run_id": self.run_id} if self.run_id else {})}

    def headers(self) -> dict[str, str]:
        # Clients of OpenAI and Anthropic repeat a request after any other 503.
        return {"X-Should-Retry": "false"}


class NotConnected(Unavailable):
    """A server that cannot be reached: it has received nothing."""


class InvalidResponse(Unavailable):
    """A response of a server that is not what the interface defines: a retry does not help."""

    retry_after = None


class UsageError(AgentctlError, code="USAGE", exit_code=2):
    """A command line that is invalid."""


class InvalidConfiguration(UsageError, code="CONFIGURATION"):
    """An invalid configuration: file, key, problem, allowed values."""


class InvalidKey(UsageError, code="INVALID_KEY"):
    """A key or key set that is rejected when it is loaded."""


class InvalidStatement(AgentctlError, code="INVALID_STATEMENT"):
    """A signed statement that a verifier rejects.

    Args:
        reason: why, one line.
    """

    def __init__(self, reason: str) -> None:
        super().__init__("The signed statement is not valid", cause=reason)
        self.reason = reason


class RunFailed(AgentctlError, code="RUN_FAILED"):
    """A run that ended as ERROR, as an error of the command."""


class SchemaMismatch(AgentctlError, code="SCHEMA_MISMATCH"):
    """The schema of the database is older or newer than the code."""


class ProblemsFound(AgentctlError, code="PROBLEMS_FOUND"):
    """Problems that `doctor --runs` found and did not repair."""


class SomethingWrong(AgentctlError, code="SOMETHING_WRONG"):
    """Problems of the installation that `doctor` found."""


class PartFailed(AgentctlError, code="PART_FAILED"):
    """Some of several operations failed; each failure was reported."""


class PortInUse(AgentctlError, code="PORT_IN_USE"):
    """Another program listens on the address of the server."""


class ConfirmationDeclined(AgentctlError, code="REFUSED", exit_code=2):
    """The user answered no to a confirmation."""


class StillPending(AgentctlError, code="STILL_PENDING", exit_code=8):
    """The request was accepted but not completed within the time to wait."""


class WaitsForDecision(AgentctlError, code="WAITS_FOR_DECISION", exit_code=9):
    """The run of the command waits for a decision of a person."""


def is_store_failure(error: BaseException) -> bool:
    """Return True if a database, or the store of files, does not answer in this process.

    The failures of a client of another server, which the code of an agent may use, are none.
    """
    return type(error) is Unavailable or isinstance(error, BytesMissing | OutcomeUnknown)


def build_empty_value_error(name: str) -> UsageError:
    """Build the error of an option, argument or environment variable with an empty value.

    Args:
        name: the name as it is typed, such as `--url`.
    """
    return UsageError(
        f"{name} has an empty value",
        cause="an empty value is not the same as none",
        hint="give a value, or leave it out; perhaps a variable of your shell is not set",
    )


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

    for refusal in (
        QuotaExceeded,
        RateLimited,
        BudgetExceeded,
        OutcomeUnknown,
        BytesMissing,
        Halted,
    ):
        if body.get("error_code") == refusal.error_code:
            return refusal(text)

    for error_class in iter_error_classes():
        # The first class of a status is the general one. 500 is also the status of the classes that
        # no server sends.
        if error_class.status == status and status != InternalError.status:
            return error_class(text)

    return Unavailable(text) if status in (502, 504) else InternalError(text)
