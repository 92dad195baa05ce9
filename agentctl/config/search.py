"""The table `[search]` of the configuration."""

from __future__ import annotations

from typing import Literal

from agentctl.light_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Search:
    """Search in messages, answers and names of sessions.

    `tokenizer` "trigram" is for SQLite only: it finds parts of words.
    """

    enabled: bool = False
    tokenizer: Literal["words", "trigram"] = "words"
