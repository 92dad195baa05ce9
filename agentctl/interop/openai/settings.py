"""The table `[openai]`."""

from __future__ import annotations

from typing import Literal

from agentctl.light_dataclass import dataclass

IgnoredParameter = Literal[
    "context_management", "frequency_penalty", "include", "logit_bias", "logprobs",
    "max_completion_tokens", "max_output_tokens", "max_tokens", "max_tool_calls", "n", "prediction",
    "presence_penalty", "prompt_cache_retention", "reasoning", "reasoning_effort", "seed",
    "service_tier", "stop", "store", "temperature", "top_logprobs", "top_p", "truncation",
    "verbosity", "web_search_options",
]  # fmt: skip

DEFAULT_IGNORED: tuple[IgnoredParameter, ...] = (
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_output_tokens", "max_tokens",
    "presence_penalty", "reasoning", "reasoning_effort", "seed", "service_tier", "temperature",
    "top_p", "verbosity",
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
