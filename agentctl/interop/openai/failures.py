"""Errors in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from agentctl import errors
from agentctl.interop.openai.events import AnswerEnd
from agentctl.records.events import STREAM_CUT
from agentctl.server.answers import BytesResponse

_TYPES = {
    401: ("authentication_error", "invalid_api_key"),
    403: ("permission_error", "insufficient_permissions"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}
"""Types and codes of errors by status. Other errors of the client are `invalid_request_error`."""

_NO_RETRY = {"x-should-retry": "false"}
"""OpenAI's clients repeat a request after 409 and 5xx, which would start the run again."""

_LASTING_REFUSALS = (errors.BudgetExceeded, errors.QuotaExceeded, errors.Halted)
"""Refusals that last: a client that waits and repeats its request would hide them from its user."""

RUN_FAILED_STATUS = 502
"""The status of a response whose run ended with an error."""

RUN_STOPPED_STATUS = 409
"""The status of a response whose run was cancelled, or waits for a decision."""


class RefusedParameter(errors.BadRequest):
    """A parameter with a value that the face cannot honour (400).

    Args:
        detail: the reason; public.
        param: path of the parameter, such as `messages[0].content`.
        code: OpenAI's code of the error.
    """

    def __init__(self, detail: str, param: str | None, code: str = "unsupported_parameter") -> None:
        super().__init__(detail)
        self.param = param
        self.code = code


class ModelNotFound(errors.NotFound):
    """A model that is no agent and no team (404)."""

    def __init__(self) -> None:
        super().__init__("The model does not exist: it must be the id of an agent or a team")
        self.param = "model"
        self.code = "model_not_found"


class ResponseNotFound(errors.NotFound):
    """A response that does not exist, or that the caller does not see (404)."""

    def __init__(self) -> None:
        super().__init__("There is no response with this id")
        self.param = "response_id"
        self.code = "response_not_found"


def build_error_response(error: errors.AgentctlError) -> BytesResponse:
    """Return the response of an error. A 422 of agentctl is a 400 here, as OpenAI has it."""
    status = 400 if isinstance(error, errors.ValidationFailed) else error.status

    kind = "server_error" if status >= 500 else "invalid_request_error"
    code: str | None = None
    if status in _TYPES:
        kind, code = _TYPES[status]
    if isinstance(error, (errors.BudgetExceeded, errors.QuotaExceeded)):
        kind = "insufficient_quota"
        code = "insufficient_quota"
    elif isinstance(error, errors.Halted):
        code = "halted"

    headers = dict(error.headers())
    if status == 409 or isinstance(error, _LASTING_REFUSALS):
        headers |= _NO_RETRY

    body = format_error(
        error.detail,
        kind=kind,
        code=getattr(error, "code", code),
        param=getattr(error, "param", None),
        required_scopes=error.body().get("required_scopes"),
    )

    return BytesResponse(orjson.dumps(body), status, headers=headers)


def build_end_response(
    body: Mapping[str, Any], status: str | None, headers: Mapping[str, str]
) -> BytesResponse:
    """Return the response of a run that did not complete, with the error of `describe_end`."""
    code = RUN_FAILED_STATUS if status in ("ERROR", None) else RUN_STOPPED_STATUS
    return BytesResponse(orjson.dumps(body), code, headers={**headers, **_NO_RETRY})


def describe_end(end: AnswerEnd, paused_code: str = "run_paused") -> dict[str, Any]:
    """Return the error of a run that did not complete.

    Args:
        paused_code: the type and the code of the error of a run that waits for a decision.
    """
    if end.status == "CANCELLED":
        text = f"The run was cancelled: {end.reason}" if end.reason else "The run was cancelled"
        return format_error(text, kind="run_cancelled", code="run_cancelled")

    if end.status == "PAUSED":
        names = [f"{approval['approval_id']} ({approval['tool_name']})" for approval in end.waiting]
        approvals = ", ".join(names) or "of a member"
        text = f"The run waits for a decision about the approval {approvals}"
        return format_error(text, kind=paused_code, code=paused_code)

    error = end.error or {"detail": STREAM_CUT, "code": "UNAVAILABLE"}
    return format_error(error["detail"], kind="server_error", code=error["code"])


def format_error(
    message: str,
    *,
    kind: str,
    code: str | None,
    param: str | None = None,
    required_scopes: object = None,
) -> dict[str, Any]:
    """Return OpenAI's error object; `required_scopes` is an addition for 403."""
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if required_scopes is not None:
        error["required_scopes"] = required_scopes
    return {"error": error}
