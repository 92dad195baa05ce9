"""Settings as one JSON text and back: how the processes of one server get what was configured.

Nothing is checked again, since the text is only ever written from settings that were. It holds
every value as it is, secrets included: it is for a process that is to serve, and for no file.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from agentctl.config.convert import Kind, key_kinds
from agentctl.config.settings import Settings

__all__ = ["settings_from_text", "settings_to_text"]


def settings_to_text(settings: Settings) -> str:
    """The settings as one line of ASCII, `sources` included."""
    return json.dumps(_plain(settings), default=_plain)


def settings_from_text(text: str) -> Settings:
    """The settings that `settings_to_text` made the text of: equal to them in every value."""
    settings: Settings = _made(Settings, json.loads(text))
    return settings


def _plain(value: Any) -> Any:
    """What JSON has no word for: a table becomes an object, a path its text."""
    if isinstance(value, Path):
        return str(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _made(cls: Any, table: dict[str, Any]) -> Any:
    return cls(**{name: _value(table[name], kind) for name, kind in key_kinds(cls).items()})


def _value(value: Any, kind: Kind) -> Any:
    if kind.is_list:
        return tuple(_value(item, kind.item) for item in value)
    if dataclasses.is_dataclass(kind.type):
        return _made(kind.type, value)
    return Path(value) if kind.type is Path and value is not None else value
