"""The table `[openai]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

IgnoredParameter = Literal[
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "max_tool_calls", "presence_penalty", "reasoning", "reasoning_effort", "seed", "service_tier",
    "stop", "store", "temperature", "top_p", "truncation", "verbosity",
]  # fmt: skip

DEFAULT_IGNORED: tuple[IgnoredParameter, ...] = (
    "max_completion_tokens", "max_output_tokens", "max_tokens", "temperature", "top_p",
)  # fmt: skip
"""Parameters that chat programs send with their first message, without being asked to."""


@dataclass(frozen=True, slots=True)
class OpenAI:
    """The table `[openai]`: the interface for clients of OpenAI's API (docs/openai.md).

    Attributes:
        ignored_parameters: parameters of requests that have no effect instead of an error.
    """

    enabled: bool = False
    ignored_parameters: tuple[IgnoredParameter, ...] = DEFAULT_IGNORED
