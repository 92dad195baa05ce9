"""The registration of extensions: what packages such as `interop` add to the core.

The core imports no extension, so that its changes need none in a module of a product. It loads the
modules of `BUILT_IN` and uses the `EXTENSION` of each.
These modules are imported at the start of many commands, so their functions import what they need
when they are called, and the classes here are tuples, which are made faster than dataclasses.
docs/internals/extending.md "An interface of another system" has the steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from agentctl.records.routes import Route, RouteMatch

BUILT_IN = (
    "agentctl.interop.agentos",
    "agentctl.interop.openai",
    "agentctl.interop.mcp",
    "agentctl.interop.ai_sdk",
    "agentctl.interop.agui",
)
"""The modules of the extensions of this distribution, each with an `EXTENSION`."""

T = TypeVar("T")


class AddedTable(NamedTuple):
    """A table of the configuration: its settings class, and the table that it follows."""

    name: str
    settings: type
    after: str


class AddedRoute(NamedTuple):
    """A request to an additional route of an operation, with the policy of that operation."""

    match: RouteMatch
    route: Route


class FaceRoute(NamedTuple):
    """A route that a face serves, for `auth explain`."""

    name: str
    """Its name in the log."""

    place: str
    """Its method and path."""

    setting: str
    """The key of the configuration that turns the face on."""

    is_served: bool

    decision: str
    """The operation whose policy decides."""


def _ignore(*_: object) -> None:
    return None


class Extension(NamedTuple):
    """The parts that a package adds to the core. Every part is optional.

    `settings` is the `config.settings.Settings` of a process.
    """

    name: str

    list_tables: Callable[[], Iterable[AddedTable]] = tuple
    """Returns the tables of the configuration."""

    check_settings: Callable[[Any, Mapping[str, Any]], None] = _ignore
    """Receives `settings` and the places of its keys, and raises InvalidConfiguration for the first
    mistake."""

    require_packages: Callable[[Any], None] = _ignore
    """Receives `settings`, and raises InvalidConfiguration if a package that they need is not
    installed."""

    adapt_operations: Callable[[list[Any], Any], list[Any] | None] = _ignore
    """Receives the list of `server.routing.Operation` and `settings`, and returns the operations to
    serve; None to serve the operations as they are."""

    build_face: Callable[[Any], Any] = _ignore
    """Receives `settings`, and returns a `server.routing.Face`; None without a face."""

    find_route: Callable[[Any, str, str], AddedRoute | FaceRoute | None] = _ignore
    """Receives `settings`, a method and a decoded path, and returns the route of the request; None
    if the extension adds no such route."""


@cache
def load_extensions() -> tuple[Extension, ...]:
    """Return the extensions, in the order of `BUILT_IN`."""
    return tuple(import_module(name).EXTENSION for name in BUILT_IN)


def insert_after(entries: Mapping[str, T], added: Iterable[tuple[str, str, T]]) -> dict[str, T]:
    """Return entries in their order, with further entries between them.

    Args:
        entries: by name.
        added: the name of an entry, the name of a new entry that follows it, and the new entry.
    """
    items = list(entries.items())
    for after, name, entry in added:
        names = [item_name for item_name, _ in items]
        items.insert(names.index(after) + 1, (name, entry))
    return dict(items)


def find_route(settings: Any, method: str, path: str) -> AddedRoute | FaceRoute | None:
    """Return the route of the first extension that has one for a request, served or not."""
    for extension in load_extensions():
        route = extension.find_route(settings, method, path)
        if route is not None:
            return route
    return None
