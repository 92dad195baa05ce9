"""Routes and the ids of operations; the search for the operation of a path.

The routes of the operations are in `interface.operations.ROUTES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
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
    """The operation ids of one kind of component; the default of each is its pattern."""

    list: str = "get_{}s"
    get: str = "get_{}"
    create_run: str = "create_{}_run"
    list_runs: str = "list_{}_runs"
    get_run: str = "get_{}_run"
    cancel_run: str = "cancel_{}_run"
    resume_run: str = "resume_{}_run_stream"
    follow_run: str = "get_{}_run_events"
    get_tool_call: str = "get_{}_run_tool_call"
    continue_run: str = "continue_{}_run"
    retry_run: str = "retry_{}_run"
    fork_run: str = "fork_{}_run"
    get_approval: str = "get_{}_approval"
    get_receipt: str = "get_{}_approval_receipt"
    decide_approval: str = "decide_{}_approval"
    get_versions: str = "get_{}_versions"
    get_version_diff: str = "get_{}_version_diff"


@cache
def operation_ids(kind: ComponentKind) -> ComponentOperationIds:
    """Return the operation ids of a kind: `get_agents`, `get_agent`, `create_agent_run`, ..."""
    return ComponentOperationIds(*(pattern.format(kind) for pattern in ComponentOperationIds()))


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
        self._routes: list[tuple[str, re.Pattern[str]]] = []
        self._index: dict[tuple[str, str], list[tuple[re.Pattern[str], str]]] = {}
        for name, (method, template) in routes.items():
            pattern = _compile_template(template)
            self._routes.append((method, pattern))
            self._index.setdefault((method, _first_segment(template)), []).append((pattern, name))

    def find(self, method: str, path: str) -> RouteMatch | None:
        """Return the operation of a request; None if there is none.

        Args:
            method: the HTTP method; the caller passes GET for HEAD.
            path: the decoded path below a `root_path`, without a query.
        """
        for pattern, operation in self._index.get((method, _first_segment(path)), ()):
            if match := pattern.fullmatch(path):
                return RouteMatch(operation, match.groupdict())
        return None

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the methods of a path, with HEAD if it has GET; empty: an unknown path."""
        methods = {method for method, pattern in self._routes if pattern.fullmatch(path)}
        if "GET" in methods:
            methods.add("HEAD")
        return tuple(sorted(methods))


def _compile_template(template: str) -> re.Pattern[str]:
    """Return the pattern of a path whose parameters are in braces: each is one segment."""
    pattern = ""
    for number, text in enumerate(re.split(r"\{(\w+)\}", template)):
        # Fixed texts and names of parameters take turns.
        is_parameter = number % 2 == 1
        pattern += f"(?P<{text}>[^/]+)" if is_parameter else re.escape(text)
    return re.compile(pattern)


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


def _first_segment(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
