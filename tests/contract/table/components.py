"""Rows about agents, teams and workflows, and their versions."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.interface.requests import DiffFilter, VersionFilter
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from tests.contract.rows import FORBIDDEN, NOT_FOUND, Row

__all__ = ["component_rows", "version_rows"]

COMPONENTS: dict[ComponentKind, str] = {"agent": "echo", "team": "desk", "workflow": "line"}


def component_rows() -> Iterator[Row]:
    for kind, name in COMPONENTS.items():
        yield from _rows_of(kind, name)

    yield Row(
        "get_agents",
        "GET /agents",
        lambda o, at: o.components.list("agent"),
        "one agent",
        has=('"echo"',),
        lacks=('"apart"',),
    )

    odd = "a bü?%"
    yield Row(
        "get_agent",
        "GET /agents/a%20b%C3%BC%3F%25",
        lambda o, at: o.components.get("agent", odd),
        "admin",
        404,
        NOT_FOUND,
    )

    yield Row(
        "get_agent",
        "GET /agents/%2E%2E",
        lambda o, at: o.components.get("agent", ".."),
        "admin",
        404,
        NOT_FOUND,
        is_same=False,
    )

    # No id has a slash, and no path of a server an encoded one.
    yield Row(
        "get_agent",
        "GET /agents/a%2Fb",
        lambda o, at: o.components.get("agent", "a/b"),
        "admin",
        404,
        NOT_FOUND,
        is_same=False,
    )


def _rows_of(kind: ComponentKind, name: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    path = f"/{KINDS[kind].path}"
    identified = f'"{KINDS[kind].id_field}":"{name}"'
    yield Row(ids.list, f"GET {path}", lambda o, at: o.components.list(kind), has=(identified,))
    yield Row(
        ids.get, f"GET {path}/{name}", lambda o, at: o.components.get(kind, name), has=(identified,)
    )

    yield Row(
        ids.get,
        f"GET {path}/nothing",
        lambda o, at: o.components.get(kind, "nothing"),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        ids.get,
        f"GET {path}/{name}",
        lambda o, at: o.components.get(kind, name),
        "powerless",
        403,
        (*FORBIDDEN, f"{KINDS[kind].path}:{name}:read"),
    )


def version_rows() -> Iterator[Row]:
    """Yield rows about versions, which a run, or the start of a server, stores."""
    for kind, name in COMPONENTS.items():
        yield from _versions_of(kind, name)


def _versions_of(kind: ComponentKind, name: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    versions = f"/{KINDS[kind].path}/{name}/versions"
    yield Row(
        ids.get_versions,
        f"GET {versions}?limit=5",
        lambda o, at: o.components.list_versions(kind, name, VersionFilter(5)),
        has=('"is_current":true', '"next_cursor":null'),
    )

    yield Row(
        ids.get_versions,
        f"GET {versions}?cursor=x",
        lambda o, at: o.components.list_versions(kind, name, VersionFilter(cursor="x")),
        status=422,
        has=("cursor",),
    )

    yield Row(
        ids.get_version_diff,
        f"GET {versions}/diff",
        lambda o, at: o.components.compare_versions(kind, name, DiffFilter()),
        has=('"changes":',),
    )

    yield Row(
        ids.get_version_diff,
        f"GET {versions}/diff?before=a&after=b",
        lambda o, at: o.components.compare_versions(kind, name, DiffFilter("a", "b")),
        status=404,
        has=NOT_FOUND,
    )
