"""Failures of runs: a code and a fixed public text (docs/contract.md "Failures of a run").

The text of a provider or of a tool goes to the log `agentctl.runtime` only.
"""

from __future__ import annotations

from typing import Literal

FailureCode = Literal[
    "AGENT_FAILED",
    "APPROVALS_FULL",
    "BUDGET_EXCEEDED",
    "CONTEXT_EXCEEDED",
    "GUARDRAIL",
    "INTERRUPTED",
    "MODEL_REJECTED",
    "MODEL_TIMEOUT",
    "MODEL_UNAVAILABLE",
    "OUTPUT_INVALID",
    "REPLAY_MISMATCH",
    "STATE_REJECTED",
    "TOOL_FAILED",
    "INTERNAL",
]
"""The codes of failed work; the engine adds RUN_TIMEOUT and WORKER_LOST."""

MODEL_FAILURES: frozenset[FailureCode] = frozenset(
    {"CONTEXT_EXCEEDED", "MODEL_REJECTED", "MODEL_TIMEOUT", "MODEL_UNAVAILABLE"}
)
"""The codes of a model call that failed, after its repetitions and fallbacks."""

DETAILS: dict[FailureCode, str] = {
    "AGENT_FAILED": "The code of the agent failed",
    "APPROVALS_FULL": "Too many approvals are pending in this database",
    "BUDGET_EXCEEDED": "A budget is used up",
    "CONTEXT_EXCEEDED": "The conversation is larger than the context window of the model",
    "GUARDRAIL": "A guardrail of the agent ended the run",
    "REPLAY_MISMATCH": "The agent did not repeat its work when the run went on",
    "INTERRUPTED": "The agent waits for input, which the server cannot give",
    "MODEL_UNAVAILABLE": "The model is not available now",
    "MODEL_REJECTED": "The model refused the request or gave an unusable answer",
    "MODEL_TIMEOUT": "The model did not answer in time",
    "OUTPUT_INVALID": "The answer does not match the output schema",
    "STATE_REJECTED": "The session state cannot be stored",
    "TOOL_FAILED": "A tool failed repeatedly",
    "INTERNAL": "The run failed inside the service",
}
"""The public text of each code, used if there is no more specific one."""


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
