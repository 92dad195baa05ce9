"""Settings of configurations that differ only in their folder and in the ports of their servers.

Most deployments of a test process have the same text, but for these two. To load it takes 10 ms,
and was a third of the time of the tests of services. So a text is loaded once, and each further
deployment gets a copy with the names of its own folder and ports.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentctl.config import load_settings
from agentctl.config.settings import Settings

__all__ = ["load_settings_copy"]

_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")

_MARK = re.compile(r"\x00(\d+)\x00")
"""The number of a place, where the place was; no text of a configuration has such characters."""

_pickles: dict[str, bytes] = {}
"""The pickled settings by the text of their file, both with marks."""


def load_settings_copy(path: Path) -> Settings:
    """Return what `load_settings` returns for a file without variables, as new objects."""
    text = path.read_text()
    places = [str(path.parent), *dict.fromkeys(_ADDRESS.findall(text))]
    marked_text = f"{path.name}\n{_put_marks(text, places)}"
    if marked_text not in _pickles:
        content = io.BytesIO()
        _Pickler(content, places).dump(load_settings(path, {}))
        _pickles[marked_text] = content.getvalue()

    copy = _Unpickler(io.BytesIO(_pickles[marked_text]), places).load()
    assert isinstance(copy, Settings)
    return copy


def _put_marks(text: str, places: Sequence[str]) -> str:
    for number, place in enumerate(places):
        text = text.replace(place, f"\x00{number}\x00")
    return text


class _Pickler(pickle.Pickler):
    """Writes texts and paths that contain a place with marks."""

    def __init__(self, file: io.BytesIO, places: Sequence[str]) -> None:
        super().__init__(file)
        self._places = places

    def persistent_id(self, obj: Any) -> tuple[type, str] | None:
        if not isinstance(obj, str | Path):
            return None

        text = str(obj)
        marked_text = _put_marks(text, self._places)
        if marked_text == text:
            return None
        return (str if isinstance(obj, str) else Path), marked_text


class _Unpickler(pickle.Unpickler):
    """Reads texts and paths with the places of another file."""

    def __init__(self, file: io.BytesIO, places: Sequence[str]) -> None:
        super().__init__(file)
        self._places = places

    def persistent_load(self, pid: tuple[type, str]) -> Any:
        kind, marked_text = pid
        return kind(_MARK.sub(lambda mark: self._places[int(mark[1])], marked_text))
