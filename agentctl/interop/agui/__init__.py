"""The face for clients of AG-UI, the protocol between agents and pages (docs/agui.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.extensions import AddedTable, Extension, FaceRoute

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.interop.agui.face import AgUiFace


def _list_tables() -> tuple[AddedTable, ...]:
    from agentctl.interop.agui.settings import AgUi

    return (AddedTable("agui", AgUi, after="metrics"),)


def _is_enabled(settings: Settings) -> bool:
    from agentctl.interop.agui.settings import AgUi

    return settings.get_table(AgUi).enabled


def _build_face(settings: Settings) -> AgUiFace | None:
    if not _is_enabled(settings):
        return None
    from agentctl.interop.agui.face import AgUiFace

    return AgUiFace()


def _find_route(settings: Settings, method: str, path: str) -> FaceRoute | None:
    from agentctl.interop.agui.settings import PREFIX, ROUTE_KINDS, TABLE
    from agentctl.records.kinds import KINDS

    match = TABLE.find(method, path)
    if match is None:
        return None
    names = KINDS[ROUTE_KINDS[match.operation]]
    return FaceRoute(
        name=match.operation,
        place=f"POST {PREFIX}/{names.path}/{{component_id}}",
        setting="agui.enabled",
        is_served=_is_enabled(settings),
        decision=f"that of a run: explain POST /{names.path}/{{{names.id_field}}}/runs",
    )


EXTENSION = Extension(
    "agui", list_tables=_list_tables, build_face=_build_face, find_route=_find_route
)
