"""What a failure of the model library, or of a provider behind it, means for a run."""

from __future__ import annotations

import logging

import httpx2
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelHTTPError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)

from agentctl.config.effective import MASK
from agentctl.runtime.bounded import AnswerTooLarge
from agentctl.runtime.failures import FailureCode, RunFailure

__all__ = ["classified"]

_log = logging.getLogger("agentctl.runtime")

_GATEWAY_TIMEOUTS = {408, 504}
_LOGGED = 2_000
"""Characters of a provider's text that go to the log."""

_SECRET_CHARACTERS = 8
"""What is shorter is no key that is kept secret, and may be a part of any word."""


def classified(
    error: AgentRunError | httpx2.HTTPError, run_id: str, secret: str = ""
) -> RunFailure:
    """The public failure; what the provider said goes to the log.

    Args:
        error: what the model library raised.
        run_id: whose model it was.
        secret: the key that the provider was sent: one that repeats it does not write it there.
    """
    said = " ".join(str(error).split())
    if len(secret) >= _SECRET_CHARACTERS:
        said = said.replace(secret, MASK)
    said = said[:_LOGGED]
    _log.warning("run %s: the model failed: %s: %s", run_id, type(error).__name__, said)
    return RunFailure(_code(error))


def _code(error: AgentRunError | httpx2.HTTPError) -> FailureCode:
    """MODEL_REJECTED is for what trying again unchanged will not mend.

    Failures of the connection itself come bare while a refusal is being read.
    """
    if isinstance(error.__cause__, ValueError) or _was_too_large(error):
        # An answer that was received and could not be read, such as half a JSON document.
        return "MODEL_REJECTED"
    if isinstance(error, httpx2.TimeoutException):
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelTimeoutError | ModelRequestTimeout):
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelHTTPError) and error.status_code in _GATEWAY_TIMEOUTS:
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelRequestRejectedError | UnexpectedModelBehavior):
        return "MODEL_REJECTED"
    if isinstance(error, ModelAPIError | httpx2.HTTPError):
        return "MODEL_UNAVAILABLE"
    return "INTERNAL"


def _was_too_large(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, AnswerTooLarge) or _was_too_large(error.__cause__)
    )
