"""The versions of components that programs have started with, in the system database."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agentctl.records.kinds import ComponentKind
from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, unit


class VersionRow(NamedTuple):
    """A stored version. `seq` only grows; `configuration` is JSON."""

    seq: int
    component_type: ComponentKind
    component_id: str
    version: str
    first_seen_at: int
    configuration: str


_NEW = VersionRow._fields[1:]

_ADD = Sql(
    f"{build_insert('component_versions', _NEW)}"
    " ON CONFLICT (component_type, component_id, version) DO NOTHING"
)

_COLUMNS = ", ".join(VersionRow._fields)

_OF_COMPONENT = "component_type = :component_type AND component_id = :component_id"

_KNOWN = Sql(f"SELECT version FROM component_versions WHERE {_OF_COMPONENT}")

_PAGE = Sql(
    f"SELECT {_COLUMNS} FROM component_versions WHERE {_OF_COMPONENT} AND seq < :before"
    " ORDER BY seq DESC LIMIT :limit"
)

_GET = Sql(
    f"SELECT {_COLUMNS} FROM component_versions WHERE {_OF_COMPONENT} AND version = :version"
)

LAST_NUMBER = 2**62
"""A number larger than the number of any row."""


def list_known(kind: ComponentKind, component_id: str) -> Work[list[str]]:
    """Return the versions of a component, in any order."""
    return _KNOWN.column(component_type=kind, component_id=component_id)


@unit
def add(rows: Iterable[VersionRow]) -> Steps[None]:
    """Store the versions that are not stored yet; their `seq` is not read."""
    for row in rows:
        yield Statement(_ADD, {name: getattr(row, name) for name in _NEW})


def list_page(
    kind: ComponentKind, component_id: str, before: int, limit: int
) -> Work[list[VersionRow]]:
    """Return versions of a component with lower numbers than `before`, the newest first."""
    return _PAGE.rows(
        VersionRow, component_type=kind, component_id=component_id, before=before, limit=limit
    )


def get(kind: ComponentKind, component_id: str, version: str) -> Work[VersionRow | None]:
    """Return a version of a component, or None."""
    return _GET.first(VersionRow, component_type=kind, component_id=component_id, version=version)
