"""The table `[search]` (docs/search.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Search:
    """Search in messages, answers and names of sessions.

    `tokenizer` "trigram" is for SQLite only: it finds parts of words.
    """

    enabled: bool = False
    tokenizer: Literal["words", "trigram"] = "words"
