"""The settings as plain values, to be shown: secrets are masked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentctl.config.convert import Kind, key_kinds
from agentctl.config.settings import Settings
from agentctl.config.tables import LISTS, SECTIONS

__all__ = ["MASK", "effective"]

MASK = "********"


def effective(settings: Settings) -> dict[str, Any]:
    """What is in force, table by table, in the shape of the file.

    Returns:
        `{"server": {"port": 7777, …}, …, "agents": [{"id": …}, …], …}`; paths are text, lists are
        lists, a path that is not set is `""`. Verification keys are masked: one may be a secret.
    """
    tables: dict[str, Any] = {name: _table(getattr(settings, name)) for name in SECTIONS}
    for name in LISTS:
        tables[name] = [_table(entry) for entry in getattr(settings, name)]
    return tables


def _table(table: object) -> dict[str, Any]:
    return {
        name: _plain(getattr(table, name), kind) for name, kind in key_kinds(type(table)).items()
    }


def _plain(value: Any, kind: Kind) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, kind.item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {key: item for key, item in _table(value).items() if item}
    if kind.masked:
        return MASK
    if isinstance(value, Path):
        return str(value)
    return "" if value is None else value
