"""Failures of models and tools, as the libraries of agents raise them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl.runtime.failures import ExecutionError, FailureCode
from agentctl.runtime.runners.hosted_run import HostedRun

_log = logging.getLogger("agentctl.runtime")

_CLIENTS = frozenset(
    {"anthropic", "botocore", "google", "groq", "httpx", "httpx2", "mistralai", "ollama", "openai"}
)
"""Top-level packages of the clients of model providers."""

_TIMEOUTS = frozenset({408, 504})


class ToolCalls:
    """The tool calls of a run, and the failures of its tools and models.

    Args:
        run: receives the calls.
    """

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._open = run.open_calls

    def start(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        self._open[call_id] = name
        self._run.start_call(call_id, name, arguments)

    def end(self, call_id: str, result: object, *, failed: bool) -> None:
        self._open.pop(call_id, None)
        self._run.end_call(call_id, result, failed=failed)

    def classify(self, error: Exception) -> Exception:
        """Return the public failure for an exception of a tool or model, else the exception.

        An exception that arrives while exactly one call is open is that of its tool. The text of
        the exception goes to the log and to the causes of the run only.
        """
        run_id = self._run.context.run_id
        if len(self._open) == 1:
            ((call_id, name),) = self._open.items()
            _log.warning("run %s: the tool %s failed", run_id, name, exc_info=error)
            self._run.environment.keep_cause(error, name)
            detail = f"The tool {name} failed ({type(error).__name__})"
            self.end(call_id, detail, failed=True)
            return ExecutionError("TOOL_FAILED", detail)
        if failure := find_failure(error):
            return failure
        code = find_failure_code(error)
        if code is None:
            return error
        _log.warning("run %s: the model failed", run_id, exc_info=error)
        self._run.environment.keep_cause(error)
        return ExecutionError(code)


def find_failure(error: BaseException) -> ExecutionError | None:
    """Return the failure of a model of the configuration that is or caused an exception."""
    return next((cause for cause in _causes(error) if isinstance(cause, ExecutionError)), None)


def find_failure_code(error: BaseException) -> FailureCode | None:
    """Return the code of an exception that a client of a model provider has raised or caused.

    None for an exception of other code.
    """
    return next(filter(None, map(_read_code, _causes(error))), None)


def read_status(status: int) -> FailureCode:
    """Return the code of the HTTP status of a model provider."""
    if status in _TIMEOUTS:
        return "MODEL_TIMEOUT"
    return "MODEL_UNAVAILABLE" if status == 429 or status >= 500 else "MODEL_REJECTED"


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return
        yield cause
        if isinstance(cause, BaseExceptionGroup) and cause.exceptions:
            # The last of several models that were called one after the other.
            cause = cause.exceptions[-1]
            continue
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _read_code(error: BaseException) -> FailureCode | None:
    bases = type(error).__mro__
    if not any(base.__module__.partition(".")[0] in _CLIENTS for base in bases):
        return None
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return read_status(status)
    if any("Timeout" in base.__name__ for base in bases):
        return "MODEL_TIMEOUT"
    return "MODEL_UNAVAILABLE"
