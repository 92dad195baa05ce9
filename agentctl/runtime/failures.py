"""Why a run ends as ERROR: a code of contract.md 5 and a public text from a fixed catalogue.

What a provider or a tool said goes to the log `agentctl.runtime` and nowhere else.
"""

from __future__ import annotations

from typing import Literal

__all__ = ["DETAILS", "ExecutionError", "FailureCode"]

FailureCode = Literal[
    "MODEL_UNAVAILABLE", "MODEL_REJECTED", "MODEL_TIMEOUT", "TOOL_FAILED", "INTERNAL"
]
"""The codes that work itself ends with; RUN_TIMEOUT and WORKER_LOST are the engine's."""

DETAILS: dict[FailureCode, str] = {
    "MODEL_UNAVAILABLE": "The model is not available now",
    "MODEL_REJECTED": "The model refused the request or gave an unusable answer",
    "MODEL_TIMEOUT": "The model did not answer in time",
    "TOOL_FAILED": "A tool failed repeatedly",
    "INTERNAL": "The run failed inside the service",
}
"""The public text of each code where nothing more precise is known."""


class ExecutionError(Exception):
    """Ends a run as ERROR.

    Args:
        code: one of contract.md 5.
        detail: public, one line; never the text of a provider or of an exception. None: the
            catalogue's text for the code.
    """

    def __init__(self, code: FailureCode, detail: str | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail if detail is not None else DETAILS[code]
