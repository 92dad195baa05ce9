"""Failures of agno. Its events have the text of an exception, but not the status of the provider,
so the exceptions of model calls are kept while a run is executed.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from agno.exceptions import ContextWindowExceededError
from agno.models.base import Model

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.library_failures import find_failure, find_failure_code, read_status

_PROVIDER = frozenset({"model_provider_error", "model_authentication_error"})
"""The types of the errors of model calls."""

_failed: ContextVar[dict[str, BaseException] | None] = ContextVar("agno_failures", default=None)


class AgnoError(Exception):
    """The text of an exception that agno has caught."""


@contextmanager
def keep_failures() -> Iterator[dict[str, BaseException]]:
    """Keep the exceptions of model calls in this context, by the id of their run of agno."""
    _watch_models()
    kept: dict[str, BaseException] = {}
    token = _failed.set(kept)
    try:
        yield kept
    finally:
        _failed.reset(token)


def to_failure(event: Any, failed: dict[str, BaseException]) -> ExecutionError:
    """Return the failure that an event of agno reports, without the text of its exception."""
    error = failed.get(event.run_id)
    if error is not None and (failure := find_failure(error)):
        return failure
    if isinstance(error, ContextWindowExceededError):
        return ExecutionError("CONTEXT_EXCEEDED")
    if event.error_type not in _PROVIDER:
        return ExecutionError("AGENT_FAILED")
    if error is None:
        return ExecutionError("MODEL_UNAVAILABLE")
    # The code of the client's exception, or else that of the status agno found.
    code = find_failure_code(error, in_model=True) or read_status(
        getattr(error, "status_code", 502)
    )
    return ExecutionError(code)


def find_cause(event: Any, failed: dict[str, BaseException]) -> BaseException:
    """Return the exception that such an event reports; its text if only that is known."""
    return failed.get(event.run_id) or AgnoError(event.content)


def _watch_models() -> None:
    """Let the calls of all models keep their exceptions; other contexts are not affected."""
    if hasattr(Model.aresponse_stream, "is_watched"):
        return
    stream, response = Model.aresponse_stream, Model.aresponse

    @functools.wraps(stream)
    async def watched_stream(self: Model, *args: Any, **options: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(stream(self, *args, **options)) as parts:
                async for part in parts:
                    yield part
        except Exception as error:
            _keep(error, options)
            raise

    @functools.wraps(response)
    async def watched_response(self: Model, *args: Any, **options: Any) -> Any:
        try:
            return await response(self, *args, **options)
        except Exception as error:
            _keep(error, options)
            raise

    watched_stream.is_watched = True  # type: ignore[attr-defined]
    Model.aresponse_stream = watched_stream
    Model.aresponse = watched_response


def _keep(error: BaseException, options: dict[str, Any]) -> None:
    kept, run = _failed.get(), options.get("run_response")
    if kept is not None and run is not None:
        kept[run.run_id] = error
