"""Failures of models and tools, as the libraries of agents raise them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from agentctl.runtime.failures import ExecutionError, FailureCode, is_context_exceeded
from agentctl.runtime.runners.hosted_run import HostedRun

_log = logging.getLogger("agentctl.runtime")

_MODEL_CLIENTS = frozenset({"anthropic", "google.genai", "groq", "mistralai", "ollama", "openai"})
"""Packages of the clients of model providers."""

_CLIENTS = _MODEL_CLIENTS | {"botocore", "google", "httpx", "httpx2"}
"""Packages whose exceptions are those of a model only if they arrive while one is called."""

_TIMEOUTS = frozenset({408, 504})

_REFUSALS = frozenset({None, 400, 413, 422})
"""Statuses of a request that is too large; None for an error inside a stream."""


def to_public_failure(
    error: Exception, run: HostedRun, call_id: str | None = None, *, in_model: bool = False
) -> Exception:
    """Return the public failure for an exception of a tool or model, else the exception.

    The text of the exception goes to the log and to the causes of the run only.

    Args:
        call_id: the open call whose tool has raised the exception; None for none.
        in_model: True if the exception ended a call of a model.
    """
    run_id, name = run.context.run_id, run.transcript.open_calls.get(call_id or "")
    if call_id is not None and name is not None:
        _log.warning("run %s: the tool %s failed", run_id, name, exc_info=error)
        run.environment.keep_cause(error, name)
        detail = f"The tool {name} failed ({type(error).__name__})"
        run.end_call(call_id, detail, failed=True)
        return ExecutionError("TOOL_FAILED", detail)
    if failure := find_failure(error):
        return failure
    code = find_failure_code(error, in_model=in_model)
    if code is None:
        return error
    _log.warning("run %s: the model failed", run_id, exc_info=error)
    run.environment.keep_cause(error)
    return ExecutionError(code)


def find_failure(error: BaseException) -> ExecutionError | None:
    """Return the failure of a model of the configuration that is or caused an exception."""
    return next((cause for cause in list_causes(error) if isinstance(cause, ExecutionError)), None)


def find_failure_code(error: BaseException, *, in_model: bool) -> FailureCode | None:
    """Return the code of an exception that a client of a model provider has raised or caused.

    None for an exception of other code.

    Args:
        in_model: True if the exception ended a call of a model: then those of HTTP clients, which
            other code uses as well, count.
    """
    packages = _CLIENTS if in_model else _MODEL_CLIENTS
    return next(filter(None, (_read_code(each, packages) for each in list_causes(error))), None)


def read_status(status: int) -> FailureCode:
    """Return the code of the HTTP status of a model provider."""
    if status in _TIMEOUTS:
        return "MODEL_TIMEOUT"
    return "MODEL_UNAVAILABLE" if status == 429 or status >= 500 else "MODEL_REJECTED"


def list_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, newest first."""
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


def _read_code(error: BaseException, packages: frozenset[str]) -> FailureCode | None:
    bases = type(error).__mro__
    names = [base.__module__.split(".") for base in bases]
    if not any({name[0], ".".join(name[:2])} & packages for name in names):
        return None
    status = _find_status(error)
    if status in _REFUSALS and is_context_exceeded(f"{error} {getattr(error, 'code', '')}"):
        return "CONTEXT_EXCEEDED"
    if status is not None:
        return read_status(status)
    if any("Timeout" in base.__name__ for base in bases):
        return "MODEL_TIMEOUT"
    return "MODEL_UNAVAILABLE"


def _find_status(error: Any) -> int | None:
    """Return the HTTP status of an exception of a client, where the client keeps it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    else:
        status = getattr(response, "status_code", None)
    # httpx has it in the response, the clients of Google in `code`, most others in `status_code`.
    found = (getattr(error, "status_code", None), getattr(error, "code", None), status)
    return next((each for each in found if isinstance(each, int)), None)
