"""The states of libraries without the bytes of files.

A library keeps the base64 form of a picture in its messages, and so in its checkpoints. A mark
takes its place before they are stored. It has a random part, which no text of the run can know.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from agentctl.runtime.files import LoadedFile


class HiddenFiles:
    """The files whose bytes the messages of one run have.

    Args:
        is_url_safe: True for a library whose base64 form has `-` and `_`.
    """

    def __init__(self, *, is_url_safe: bool) -> None:
        self._encode = base64.urlsafe_b64encode if is_url_safe else base64.b64encode
        self._random = secrets.token_hex(8)
        self._forms: dict[str, bytes] = {}

    def add(self, files: Iterable[LoadedFile]) -> None:
        for file in files:
            if file.reference.file_id not in self._forms:
                self._forms[file.reference.file_id] = self._encode(file.data)

    def take_over(self, record: Mapping[str, Any], files: Iterable[LoadedFile]) -> None:
        """Continue with the marks of a stored state, see `record`."""
        self._random = record["random"]
        self.add(files)

    def record(self) -> dict[str, Any] | None:
        """Return a JSON object for a state with marks; None if there are no files."""
        return {"random": self._random, "files": [*self._forms]} if self._forms else None

    def hide(self, state: bytes) -> bytes:
        """Return a state with marks in place of bytes."""
        for file_id, form in self._forms.items():
            state = state.replace(form, self._mark(file_id))
        return state

    def is_in(self, state: bytes) -> bool:
        """Return True if a state has the bytes of a file."""
        return any(form in state for form in self._forms.values())

    def reveal(self, state: bytes) -> bytes:
        """Return the state that `hide` has got."""
        for file_id, form in self._forms.items():
            state = state.replace(self._mark(file_id), form)
        return state

    def _mark(self, file_id: str) -> bytes:
        return f"file:{self._random}:{file_id}:".encode()
