"""Settings as JSON text for worker processes, and as plain values for display.

`settings_from_text` checks nothing, because the text comes from checked settings. The text contains
secrets: it is for a process of the server, never for a file. `effective_settings` masks secrets.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from agentctl.config.settings import Settings
from agentctl.config.tables import ENTRY_TABLES, list_sections
from agentctl.config.types import Secret
from agentctl.records.text import MASK
from agentctl.records.value_types import ValueType, field_types


def settings_to_text(settings: Settings) -> str:
    """Return the settings, including `sources`, as one line of ASCII."""
    return json.dumps(_encode(settings), default=_encode)


def settings_from_text(text: str) -> Settings:
    """Return the settings of a text from `settings_to_text`, with equal values."""
    plain = json.loads(text)
    settings: Settings = _decode_table(Settings, plain)
    tables = list_sections()
    added = {name: _decode_table(tables[name], table) for name, table in plain["added"].items()}
    return dataclasses.replace(settings, added=added)


def _encode(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _decode_table(cls: Any, table: dict[str, Any]) -> Any:
    return cls(
        **{
            name: _decode_value(table[name], value_type)
            for name, value_type in field_types(cls).items()
        }
    )


def _decode_value(value: Any, value_type: ValueType) -> Any:
    if value is None:
        return None
    if value_type.is_list:
        return tuple(_decode_value(item, value_type.item) for item in value)
    if value_type.is_table:
        return {name: _decode_value(item, value_type.item) for name, item in value.items()}
    if dataclasses.is_dataclass(value_type.kind):
        return _decode_table(value_type.kind, value)
    return Path(value) if value_type.kind is Path else value


def effective_settings(settings: Settings) -> dict[str, Any]:
    """Return the values in effect, table by table, in the shape of the file.

    Returns:
        `{"server": {"port": 7777, …}, …, "agents": [{"id": …}, …], …}`; paths are text, and a path
        that is not set is `""`. Verification keys are masked, because one may be a secret.
    """
    tables: dict[str, Any] = {
        name: _plain_table(getattr(settings, name, None) or settings.get_table(table))
        for name, table in list_sections().items()
    }
    for name in ENTRY_TABLES:
        tables[name] = [_plain_table(entry) for entry in getattr(settings, name)]
    return tables


def _plain_table(table: Any) -> dict[str, Any]:
    return {
        name: _plain_value(getattr(table, name), value_type)
        for name, value_type in field_types(table.__class__).items()
    }


def _plain_value(value: Any, value_type: ValueType) -> Any:
    if isinstance(value, tuple):
        return [_plain_value(item, value_type.item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {key: item for key, item in _plain_table(value).items() if item not in ("", [])}
    if value_type.is_table and value is not None:
        return {name: _plain_value(item, value_type.item) for name, item in value.items()}
    secret = value_type.find_rule(Secret)
    if secret is not None and secret.masked:
        return MASK
    if isinstance(value, Path):
        return str(value)
    return "" if value is None else value
