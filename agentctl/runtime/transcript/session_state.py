"""The state of a session while a run uses it, and the changes that the end of the run stores."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import orjson

from agentctl.light_dataclass import dataclass
from agentctl.records.document import parse_stored
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NotSerializable, ValueTooLarge, to_json_value


@dataclass(frozen=True, slots=True)
class StateChanges:
    """The top-level keys of the state that a run has changed.

    Attributes:
        values: the new JSON values by key.
        removed: the keys that the run has removed.
    """

    values: dict[str, Any]
    removed: tuple[str, ...]


class SessionState:
    """The state of a session as a run and the runs of its members see it.

    The start of a run parses it once, to find damage; a copy is made on the first access only.

    Args:
        text: the stored JSON object, None for an empty state. A run does not see one that is
            damaged.
        limit: maximum size in bytes of a state that the run has changed.
    """

    def __init__(self, text: str | None, limit: int) -> None:
        self._text = text
        self._limit = limit
        self._parsed: dict[str, Any] | None = None
        self._values: dict[str, Any] | None = None
        self._before: dict[str, bytes] = {}

    @property
    def values(self) -> dict[str, Any]:
        """The state, which the code of users may change in place, in any thread."""
        if self._values is None:
            stored = self._parse() if self._parsed is None else self._parsed
            # The code of users changes it: the stored values are parsed again when they are needed.
            self._parsed = None
            self._before = {key: _dump(value) for key, value in stored.items()}
            self._values = stored
        return self._values

    @cached_property
    def damaged_bytes(self) -> int:
        """The size of a stored state that is no JSON object; 0 if it is one."""
        if self._text is None:
            return 0
        parsed = parse_stored(self._text, dict)
        if self._values is None:
            self._parsed = parsed
        return len(self._text.encode()) if parsed is None else 0

    def _parse(self) -> dict[str, Any]:
        return (parse_stored(self._text, dict) if self._text is not None else None) or {}

    def apply(self, changes: StateChanges) -> None:
        """Repeat changes that an earlier process has made, and that are not stored yet."""
        values = self.values
        values.update(changes.values)
        for key in changes.removed:
            values.pop(key, None)

    def discard_changes(self) -> None:
        """Restore the state of the start in place, for a function that runs again from its top."""
        if self._values is not None:
            self._values.clear()
            self._values.update(self._parse())

    def find_changes(self) -> StateChanges | None:
        """Return the changes since the start of the run, None if there are none.

        Raises:
            ExecutionError: STATE_REJECTED if a value has no JSON form, or the state is too large.
        """
        if self._values is None:
            return None
        limit = max(self._limit, len((self._text or "").encode()))
        try:
            current = {**self._values}
            # JSON of the same value differs by some characters, such as those of numbers.
            values = to_json_value(current, 2 * limit)
            if not all(isinstance(key, str) for key in current):
                raise TypeError("a key of the state is not a string")
            after = {key: _dump(value) for key, value in values.items()}
        except ValueTooLarge as error:
            raise self._too_large() from error
        except (NotSerializable, TypeError, RuntimeError) as error:
            raise ExecutionError(
                "STATE_REJECTED", "The session state has a value without a JSON form"
            ) from error
        changed = {key: values[key] for key in values if after[key] != self._before.get(key)}
        removed = tuple(key for key in self._before if key not in values)
        if not changed and not removed:
            return None
        size = sum(len(key.encode()) + len(text) for key, text in after.items())
        if size > limit:
            raise self._too_large()
        return StateChanges(changed, removed)

    def _too_large(self) -> ExecutionError:
        return ExecutionError(
            "STATE_REJECTED", f"The session state is larger than {self._limit} bytes"
        )


def _dump(value: object) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
