"""The face for clients of OpenAI's API (docs/openai.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from agentctl.extensions import AddedTable, Extension, FaceRoute

if TYPE_CHECKING:
    from agentctl.config.places import Place
    from agentctl.config.settings import Settings
    from agentctl.interop.openai.face import OpenAIFace


def _list_tables() -> tuple[AddedTable, ...]:
    from agentctl.interop.openai.settings import OpenAI

    return (AddedTable("openai", OpenAI, after="metrics"),)


def _check_settings(settings: Settings, places: Mapping[str, Place]) -> None:
    from agentctl.interop.openai.settings import DEFAULT_IGNORED, OpenAI

    table = settings.get_table(OpenAI)
    # The sample configuration has the default.
    if table.ignored_parameters not in ((), DEFAULT_IGNORED) and not table.enabled:
        places["openai.ignored_parameters"].refuse(
            "has no effect while openai.enabled is false",
            hint="set enabled = true in [openai], or remove ignored_parameters",
        )


def _build_face(settings: Settings) -> OpenAIFace | None:
    from agentctl.interop.openai.settings import OpenAI

    if not settings.get_table(OpenAI).enabled:
        return None
    from agentctl.interop.openai.face import OpenAIFace

    return OpenAIFace()


def _find_route(settings: Settings, method: str, path: str) -> FaceRoute | None:
    from agentctl.interop.openai.settings import DECISIONS, OPENAI_ROUTES, TABLE, OpenAI

    match = TABLE.find(method, path)
    if match is None:
        return None
    route = OPENAI_ROUTES[match.operation]
    return FaceRoute(
        name=match.operation,
        place=f"{route.method} {route.template}",
        setting="openai.enabled",
        is_served=settings.get_table(OpenAI).enabled,
        decision=DECISIONS[match.operation],
    )


EXTENSION = Extension(
    "openai",
    list_tables=_list_tables,
    check_settings=_check_settings,
    build_face=_build_face,
    find_route=_find_route,
)
