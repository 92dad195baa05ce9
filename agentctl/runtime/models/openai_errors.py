"""Failures of endpoints with the chat completions interface: statuses, and errors in a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2
import orjson

from agentctl.records.times import read_retry_after
from agentctl.runtime.failures import (
    FailureCode,
    classify_refusal,
    is_context_exceeded,
    is_temporary_status,
)
from agentctl.runtime.models.calls import ModelFailure
from agentctl.runtime.models.provider import UnusableResponse

_QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "exceeded_current_quota_error",
    "organization_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
    "project_spend_limit_exceeded",
}
"""Codes of an account without credit, which a wait does not fill."""

_REJECTED_CODES = {"invalid_api_key", "invalid_request_error", "model_not_found"}
_UNAVAILABLE_CODES = {
    "overloaded",
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "server_error",
    "server_is_overloaded",
    "service_unavailable",
    "service_unavailable_error",
    "too_many_requests",
}
_TIMEOUT_STATUSES = {408, 504}


def build_status_failure(response: httpx2.Response, body: bytes) -> ModelFailure:
    """Return the failure of a response whose status is not a success."""
    status = response.status_code
    error = _find_error(body)

    code, repeatable = _classify(status, error)
    if response.headers.get("x-should-retry") == "false":
        repeatable = False

    text = body.decode(errors="replace")
    return ModelFailure(
        code,
        f"status {status}: {text}",
        retry_after=read_retry_after(response.headers),
        is_repeatable=repeatable,
        status=status,
    )


def build_stream_failure(error: object) -> ModelFailure:
    """Return the failure of an error object inside a stream, after a successful status."""
    fields = error if isinstance(error, dict) else {"message": error}
    status = _read_status(fields.get("code"))
    code, repeatable = _classify(status, fields)
    reason = f"error in the stream: {fields}"
    return ModelFailure(code, reason, is_repeatable=repeatable, status=status)


def build_transport_failure(error: httpx2.HTTPError) -> ModelFailure:
    """Return the failure of a connection."""
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, UnusableResponse):
        return ModelFailure("MODEL_ANSWER_INVALID", reason)
    if isinstance(error, httpx2.TimeoutException):
        return ModelFailure("MODEL_TIMEOUT", reason)
    return ModelFailure("MODEL_UNAVAILABLE", reason)


def _classify(status: int | None, error: Mapping[str, Any]) -> tuple[FailureCode, bool]:
    names = {name for name in (error.get("code"), error.get("type")) if isinstance(name, str)}

    if status in _TIMEOUT_STATUSES:
        return "MODEL_TIMEOUT", True

    if status == 402 or names & _QUOTA_CODES:
        return "MODEL_UNAVAILABLE", False

    text = " ".join((*names, str(error.get("message") or "")))
    if is_context_exceeded(text):
        return "CONTEXT_EXCEEDED", True

    if names & _UNAVAILABLE_CODES:
        return "MODEL_UNAVAILABLE", True

    if "content_filter" in names and (status is None or status < 500):
        return "MODEL_REJECTED", True

    is_named = bool(names & _REJECTED_CODES) and (status is None or status < 500)
    is_temporary = status is None or is_temporary_status(status)
    if is_temporary and not is_named:
        return "MODEL_UNAVAILABLE", True
    return classify_refusal(status, text), True


def _find_error(body: bytes) -> Mapping[str, Any]:
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}

    if isinstance(value, list) and value:
        value = value[0]

    if isinstance(value, dict):
        error = value.get("error", value)
        return error if isinstance(error, dict) else {"message": error}

    return {}


def _read_status(code: object) -> int | None:
    if isinstance(code, int | str) and str(code).isdigit() and 400 <= int(code) < 600:
        return int(code)
    return None
