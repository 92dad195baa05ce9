"""Prices of models in the configuration (docs/usage.md)."""

from __future__ import annotations

from typing import Annotated

from agentctl.light_dataclass import dataclass
from agentctl.records.value_types import Range


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """The table `price` of a model: US dollars for a million tokens.

    Attributes:
        cached: for input tokens that the provider has in its cache; None for those of `input`.
    """

    input: Annotated[float, Range(0, 1_000_000)]
    output: Annotated[float, Range(0, 1_000_000)]
    cached: Annotated[float | None, Range(0, 1_000_000)] = None
