"""The routes of faces, and their registration, which loads no server."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

from agentctl.extensions import AddedTable, Extension, FaceRoute
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import Route, RouteTable, operation_ids


class PageRoute(NamedTuple):
    """The route of a request of a page, for one kind of component."""

    verb: str
    """The purpose of the request, such as `run`."""

    kind: ComponentKind
    route: Route

    operation: str
    """The operation whose policy decides."""

    @property
    def decision(self) -> str:
        """The policy that decides, in words for `auth explain`."""
        from agentctl.interface.operations import ROUTES

        return f"that of {self.operation}: explain {' '.join(ROUTES[self.operation])}"


def list_routes(
    protocol: str, prefix: str, verbs: Mapping[str, tuple[str, str, str]]
) -> dict[str, PageRoute]:
    """Return the routes of a protocol by their names in the log.

    Args:
        verbs: method, end of the path after the id of the component, and the operation, a field
            of `operation_ids`.
    """
    routes = dict[str, PageRoute]()
    for verb, (method, suffix, operation) in verbs.items():
        for kind, names in KINDS.items():
            path = f"{prefix}/{names.path}/{{component_id}}{suffix}"
            routes[f"{verb}_{protocol}_{kind}"] = PageRoute(
                verb=verb,
                kind=kind,
                route=Route(method, path),
                operation=getattr(operation_ids(kind), operation),
            )
    return routes


def build_extension(name: str, table: str, **parts: Any) -> Extension:
    """Return the extension of the face in `interop/{name}`.

    Args:
        table: the class of its table in the module `settings`, which also has `ROUTES`: by name a
            `route`, and the `decision` of a `FaceRoute`. The module `face` has `build_face`.
        parts: further parts of the extension.
    """

    def load(module: str) -> Any:
        return import_module(f"agentctl.interop.{name}.{module}")

    def is_enabled(settings: Any) -> bool:
        return bool(settings.get_table(getattr(load("settings"), table)).enabled)

    def list_tables() -> tuple[AddedTable, ...]:
        return (AddedTable(name, getattr(load("settings"), table), after="metrics"),)

    def build_face(settings: Any) -> Any:
        return load("face").build_face() if is_enabled(settings) else None

    def find_route(settings: Any, method: str, path: str) -> FaceRoute | None:
        routes = load("settings").ROUTES
        table = RouteTable({key: face_route.route for key, face_route in routes.items()})
        match = table.find(method, path)
        if match is None:
            return None

        face_route = routes[match.operation]
        return FaceRoute(
            name=match.operation,
            place=" ".join(face_route.route),
            setting=f"{name}.enabled",
            is_served=is_enabled(settings),
            decision=face_route.decision,
        )

    return Extension(
        name, list_tables=list_tables, build_face=build_face, find_route=find_route, **parts
    )
