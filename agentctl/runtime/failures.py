"""Failures of runs: codes with fixed public texts, causes, and the bounds of what a peer sends.

The public texts are in docs/contract.md "Failures of a run". The text of a provider or of a tool
goes to the log `agentctl.runtime` only.

A cause has the type, the message and the place of an exception of the code of an agent or a tool.
It is kept with its run for callers with the scope `runs:debug` (docs/contract.md "Causes"); every
other caller has the fixed text of the failure.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb
from typing import Any, Literal

from agentctl.config.known_secrets import list_secrets
from agentctl.config.settings import Settings
from agentctl.records.text import cut_text, escape_controls, mask_secrets, replace_unstorable
from agentctl.records.times import now

FailureCode = Literal[
    "AGENT_FAILED",
    "APPROVALS_FULL",
    "BUDGET_EXCEEDED",
    "CONTEXT_EXCEEDED",
    "GUARDRAIL",
    "INTERRUPTED",
    "LOOP",
    "MODEL_ANSWER_INVALID",
    "MODEL_CALLS_EXCEEDED",
    "MODEL_KEY_REJECTED",
    "MODEL_NOT_FOUND",
    "MODEL_REJECTED",
    "MODEL_TIMEOUT",
    "MODEL_UNAVAILABLE",
    "OUTPUT_INVALID",
    "REPLAY_MISMATCH",
    "STATE_REJECTED",
    "TOOL_FAILED",
    "VERSION_CHANGED",
    "INTERNAL",
]
"""The codes of failed work; the engine adds RUN_TIMEOUT and WORKER_LOST."""

MODEL_FAILURES: frozenset[FailureCode] = frozenset(
    {
        "CONTEXT_EXCEEDED",
        "MODEL_ANSWER_INVALID",
        "MODEL_KEY_REJECTED",
        "MODEL_NOT_FOUND",
        "MODEL_REJECTED",
        "MODEL_TIMEOUT",
        "MODEL_UNAVAILABLE",
    }
)
"""The codes of a model call that failed, after its repetitions and fallbacks."""

UNCOUNTED_FAILURES: frozenset[str] = frozenset(
    {
        "APPROVALS_FULL",
        "BUDGET_EXCEEDED",
        "CONTEXT_EXCEEDED",
        "GUARDRAIL",
        "INTERNAL",
        "MODEL_REJECTED",
        "QUEUE_TIMEOUT",
        "VERSION_CHANGED",
        "WORKER_LOST",
    }
)
"""The codes of runs and model calls that no breaker counts (docs/halts.md "Breakers").

The cause is the request of a user, a bound that an operator has set, or the server: a halt of the
component or the model would help nobody, and every user could provoke it.
"""

DETAILS: dict[FailureCode, str] = {
    "AGENT_FAILED": "The code of the agent failed",
    "APPROVALS_FULL": "Too many approvals are pending in this database",
    "BUDGET_EXCEEDED": "A budget is used up",
    "CONTEXT_EXCEEDED": "The conversation is larger than the context window of the model",
    "GUARDRAIL": "A guardrail of the agent ended the run",
    "REPLAY_MISMATCH": "The agent did not repeat its work when the run went on",
    "INTERRUPTED": "The agent waits for input, which the server cannot give",
    "LOOP": "The model made the same call again after it was refused as a repetition",
    "MODEL_UNAVAILABLE": "The model is not available now",
    "MODEL_ANSWER_INVALID": "The answer of the model cannot be used",
    "MODEL_CALLS_EXCEEDED": "The model did not finish within its maximum number of calls",
    "MODEL_KEY_REJECTED": "The provider of the model rejected the API key",
    "MODEL_NOT_FOUND": "The provider does not have the model",
    "MODEL_REJECTED": "The model refused the request",
    "MODEL_TIMEOUT": "The model did not answer in time",
    "OUTPUT_INVALID": "The answer does not match the output schema",
    "STATE_REJECTED": "The session state cannot be stored",
    "TOOL_FAILED": "A tool failed repeatedly",
    "VERSION_CHANGED": "The run cannot go on with the changed component",
    "INTERNAL": "The run failed inside the service",
}
"""The public text of each code, used if there is no more specific one."""


def build_too_large() -> ExecutionError:
    """Build the failure of a run whose stored data would exceed `limits.run_bytes`.

    It has one code, whether a tool, the code of an agent or a model adds the data: the model has
    done nothing wrong.
    """
    return ExecutionError("AGENT_FAILED", "The run exceeded its maximum size")


_CONTEXT_TEXTS = (
    "context_length_exceeded",
    "maximum context length",
    "maximum prompt length",
    "exceeds the context window",
    "exceeds the available context size",
    "reduce the length of the messages",
    "prompt is too long",
    "input is too long",
    "too many input tokens",
    "exceed context limit",
    "exceeds the maximum number of tokens",
)
"""Texts of OpenAI, Anthropic, Google, Bedrock and compatible servers, in lower case."""


def is_context_exceeded(text: str) -> bool:
    """Return True if a provider has refused a request because it exceeds its context window."""
    text = text.lower()
    return any(part in text for part in _CONTEXT_TEXTS)


def is_temporary_status(status: int) -> bool:
    """Return True if a request whose response has this HTTP status may succeed later."""
    return status in {408, 409, 425, 429} or status >= 500


_KEY_TEXTS = ("api_key_invalid", "api key not valid", "invalid_api_key", "authentication_error")
"""Texts of Google, OpenAI and Anthropic for a wrong API key, in lower case.

Google sends them with the status 400.
"""

_MODEL_TEXTS = ("model_not_found",)
"""Texts of OpenAI and compatible servers for an unknown model, in lower case."""


def classify_refusal(status: int | None, text: str = "") -> FailureCode:
    """Return the code of a request that a provider has refused for good.

    Args:
        status: the HTTP status of the response; None for an error without a status.
        text: the codes and the text of the error.
    """
    text = text.lower()
    if status in (401, 403) or any(part in text for part in _KEY_TEXTS):
        return "MODEL_KEY_REJECTED"
    if status in (404, 410) or any(part in text for part in _MODEL_TEXTS):
        return "MODEL_NOT_FOUND"
    return "MODEL_REJECTED"


class ExecutionError(Exception):
    """Ends a run as ERROR.

    Args:
        code: the public error code.
        detail: public text of one line, never the text of a provider or of an exception. None for
            the text of the code in `DETAILS`.
    """

    def __init__(self, code: FailureCode, detail: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail if detail is not None else DETAILS[code]


MAXIMUM_CAUSES = 16
"""Maximum number of causes that are kept with a run: the first causes, and the last one."""

MESSAGE_CHARACTERS = 2_000
"""Maximum length of the message of a cause."""

_NAME_CHARACTERS = 200
_PLACE_CHARACTERS = 500
_READ_CHARACTERS = 65_536
"""Length of a message that is searched for secrets before it is cut."""

_DEPTH = 10
"""Maximum number of exceptions of which each is the cause of the one before."""

_OWN_FOLDER = str(Path(__file__).parents[1]) + os.sep
_PATHS = sysconfig.get_paths()
_STANDARD_LIBRARY = tuple(_PATHS[name] + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class CauseReader:
    """Reads the causes of failures in this process.

    Args:
        settings: the configuration, which names the secrets and the modules of agents and tools.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = None if settings.path is None else f"{settings.path.parent}{os.sep}"
        self._secrets = list_secrets(settings, os.environ)
        self._packages = _list_packages(settings)

    def read(self, error: BaseException, tool: str | None = None) -> dict[str, Any]:
        """Return the cause that an exception is, as a JSON object; control characters are escaped.

        It is the outermost exception with a line of the user's code in its traceback. Of a group
        of exceptions it is the first one.

        Args:
            tool: name of the tool that has raised it; None for other code.
        """
        error, place = self._choose(error)
        return {
            "tool_name": tool,
            "type": cut_text(_name_type(error), _NAME_CHARACTERS),
            "message": self._read_message(error),
            "place": place or self._find_place(error, any_code=True),
            "raised_at": now(),
        }

    def _choose(self, error: BaseException) -> tuple[BaseException, str | None]:
        """Return the first exception with a line of the user's code, and this line.

        The outermost exception and None if no exception has such a line.
        """
        for cause in _walk(error):
            place = self._find_place(cause)
            if place:
                return cause, place
        return next(_walk(error)), None

    def _read_message(self, error: BaseException) -> str:
        try:
            text = str.__str__(str(error))
        except Exception:
            text = "(its text cannot be read)"
        text = mask_secrets(text[:_READ_CHARACTERS], self._secrets)
        text = escape_controls(replace_unstorable(text), lines=True)
        return cut_text(text, MESSAGE_CHARACTERS)

    def _find_place(self, error: BaseException, *, any_code: bool = False) -> str | None:
        """Return the innermost line of the user's code, `FILE:LINE in FUNCTION`."""
        place = None

        for frame, line in walk_tb(error.__traceback__):
            code = frame.f_code
            package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
            if self._is_own(code.co_filename, package, any_code):
                path = code.co_filename
                if self._folder is not None:
                    path = path.removeprefix(self._folder)
                place = f"{path}:{line} in {code.co_name}"

        if place is None:
            return None
        return cut_text(escape_controls(replace_unstorable(place)), _PLACE_CHARACTERS)

    def _is_own(self, path: str, package: str, any_code: bool) -> bool:
        if path.startswith(_OWN_FOLDER):
            return False
        if any_code or package in self._packages:
            return True
        return not is_library(path)


class Causes(list[dict[str, Any]]):
    """The causes of one run, in the order in which they were raised."""

    def add(self, cause: dict[str, Any]) -> None:
        """Add a cause. The last one replaces the one before if the run has too many."""
        if len(self) == MAXIMUM_CAUSES:
            self.pop()
        self.append(cause)


def is_library(path: str) -> bool:
    """Return True for a file of the standard library or of an installed package."""
    return path.startswith((*_STANDARD_LIBRARY, "<")) or any(name in path for name in _INSTALLED)


def _list_packages(settings: Settings) -> frozenset[str]:
    names = [reference for team in settings.teams for reference in team.tools]
    for agent in settings.agents:
        names += [*agent.tools, agent.object, agent.deps, agent.output]
    modules = (name.partition(":")[0].partition(".")[0] for name in names)
    return frozenset(module for module in modules if module not in ("", "mcp"))


def _walk(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes; a group is replaced by its first exception."""
    cause: BaseException | None = error
    for _ in range(_DEPTH):
        while isinstance(cause, BaseExceptionGroup):
            cause = cause.exceptions[0]
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _name_type(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__
    is_own = kind.__module__.partition(".")[0] == "agentctl"
    return name if is_own or kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


MAXIMUM_CALLS = 128
"""Maximum number of tool calls in one answer: they are executed concurrently."""

MAXIMUM_PARTS = 1_024
"""Maximum number of parts in one answer: texts, reasoning and tool calls in turn."""

MAXIMUM_FAILURES = 3
"""Failures of one tool in a row after which the run ends with TOOL_FAILED."""

MAXIMUM_UNKNOWN = 3
"""Calls of unknown tools that a run tolerates; the next one ends it with
MODEL_ANSWER_INVALID."""


def check_parts(parts: int, calls: int) -> None:
    """Raise ExecutionError if an answer that arrives has too many parts or tool calls."""
    if calls > MAXIMUM_CALLS:
        raise ExecutionError("MODEL_ANSWER_INVALID", "The model called too many tools at once")
    if parts > MAXIMUM_PARTS:
        raise ExecutionError("MODEL_ANSWER_INVALID", "The model's answer has too many parts")
