"""Routes and the ids of operations; the search for the operation of a path.

The routes of the operations are in `operations.ROUTES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from agentctl.records.kinds import ComponentKind

INTERFACE_HEADER = "Agentctl-Interface"
"""Header field of a request for the shapes of the contract, with any `server.compatibility`."""

_INVALID_SEGMENT = re.compile(r"[\x00-\x1f\x7f-\x9f\ufffd\ud800-\udfff]|^[.]{1,2}$")


class Route(NamedTuple):
    """The HTTP method of an operation, and its path with parameters in braces."""

    method: str
    template: str


class ComponentOperationIds(NamedTuple):
    """The operation ids of one kind of component."""

    list: str
    get: str
    create_run: str
    list_runs: str
    get_run: str
    cancel_run: str
    resume_run: str
    follow_run: str
    get_tool_call: str


def operation_ids(kind: ComponentKind) -> ComponentOperationIds:
    """Return the operation ids of a kind: `get_agents`, `get_agent`, `create_agent_run`, ..."""
    return ComponentOperationIds(
        list=f"get_{kind}s",
        get=f"get_{kind}",
        create_run=f"create_{kind}_run",
        list_runs=f"list_{kind}_runs",
        get_run=f"get_{kind}_run",
        cancel_run=f"cancel_{kind}_run",
        resume_run=f"resume_{kind}_run_stream",
        follow_run=f"get_{kind}_run_events",
        get_tool_call=f"get_{kind}_run_tool_call",
    )


PAGE_ROUTES: dict[str, Route] = {
    "get_docs": Route("GET", "/docs"),
    "get_redoc": Route("GET", "/redoc"),
    "get_openapi": Route("GET", "/openapi.json"),
    "get_oauth2_redirect": Route("GET", "/docs/oauth2-redirect"),
    "get_docs_asset": Route("GET", "/docs/assets/{name}"),
    "get_console": Route("GET", "/console"),
    "get_console_asset": Route("GET", "/console/assets/{version}/{folder}/{name}"),
}
"""Pages and their files, which the OpenAPI document does not contain."""


class RouteMatch(NamedTuple):
    """The operation of a request, and its path parameters as in the path."""

    operation: str
    path_params: dict[str, str]


class RouteTable:
    """The mapping from method and whole decoded path to an operation.

    Args:
        routes: the served routes by operation id.
    """

    def __init__(self, routes: Mapping[str, Route]) -> None:
        self._routes = [
            (route, _compile_template(route.template), name) for name, route in routes.items()
        ]
        self._index: dict[tuple[str, str], list[tuple[re.Pattern[str], str]]] = {}
        for route, pattern, name in self._routes:
            key = route.method, _first_segment(route.template)
            self._index.setdefault(key, []).append((pattern, name))

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Return the operation of a request; None: there is none.

        Args:
            method: the HTTP method; the caller passes GET for HEAD.
            path: the decoded path below a `root_path`, without a query.
        """
        for pattern, operation in self._index.get((method, _first_segment(path)), ()):
            found = pattern.fullmatch(path)
            if found is not None:
                return RouteMatch(operation, found.groupdict())
        return None

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the methods of a path, with HEAD if it has GET; empty: an unknown path."""
        found = set[str]()
        for route, pattern, _ in self._routes:
            if pattern.fullmatch(path) is not None:
                found |= {"GET", "HEAD"} if route.method == "GET" else {route.method}
        return tuple(sorted(found))


def has_encoded_slash(raw_path: bytes) -> bool:
    """Return True if a raw path has an encoded slash; such a path is not served.

    A proxy may have matched the path with the slash decoded.
    """
    return b"%2f" in raw_path.lower()


def is_valid_segment(segment: str) -> bool:
    """Return True if a decoded path segment can name a resource.

    Control characters, `.`, `..` and invalid UTF-8 cannot.
    """
    return _INVALID_SEGMENT.search(segment) is None


def _compile_template(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    texts = [
        f"(?P<{part}>[^/]+)" if number % 2 else re.escape(part) for number, part in enumerate(parts)
    ]
    return re.compile("".join(texts))


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
