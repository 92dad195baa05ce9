"""The requests of a run: the messages that its models were sent, by reference to stored ones.

The process that executes a run builds the record (`runs.log.requests`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any


class Requests:
    """The record of the requests of a run as JSON values, to which nothing is added.

    Attributes:
        left_out: results of tools that requests of the code of the run do not show whole, by the
            ids of their calls: the text and the characters of a page. They are not stored.
    """

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        record = stored or {}
        self.left_out: dict[str, tuple[str, int]] = {}
        self._calls: dict[str, dict[str, Any]] = dict(record.get("calls", {}))
        self._words: list[dict[str, Any]] = list(record.get("words", ()))
        self._models: dict[str, Sequence[str]] = dict(record.get("models", {}))
        self._runs: Sequence[int] = record.get("runs", ())

    def __bool__(self) -> bool:
        return bool(self._calls)

    def mark(self) -> tuple[int, int]:
        return len(self._calls), len(self._words)

    def since(self, mark: tuple[int, int] = (0, 0)) -> dict[str, Any]:
        """Return the additions after a mark as a JSON object."""
        record = {
            "calls": dict(islice(self._calls.items(), mark[0], None)),
            "models": self._models,
            "words": self._words[mark[1] :],
            "runs": self._runs,
        }
        return {name: value for name, value in record.items() if value}

    def extend(self, added: Mapping[str, Any]) -> None:
        """Add what `since` has returned."""
        self._calls |= added.get("calls", {})
        self._words += added.get("words", ())
        self._models |= added.get("models", {})
        self._runs = added.get("runs", self._runs)

    def begin(self, runs: Sequence[Any], completed: Sequence[Any] | None = None) -> None:
        """Set the earlier runs, with their messages as the component sends them, not a library."""

    def add(self, attempts: Any, call: Any, span: Any) -> dict[str, Any]:
        """Add a request before it is sent.

        Args:
            attempts, call: the `Attempts` of the run, and the `ModelCall` (`runtime.models`).
            span: the span of the call; None if the runner of a library has started one.

        Returns:
            The record of the call, to which its end is added.
        """
        return {}

    def end(self, record: dict[str, Any], answer: Any, span: Any) -> None:
        """Add the `ModelAnswer` of a call to its record and to its span."""

    def report(self, span: Any, model: object, answer_id: object, reason: object) -> None:
        """Add what a library reports about an answer of a model that was not called here."""
