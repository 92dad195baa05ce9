"""The interface and the engine of each cell of the table: every pair of two of the four occurs.

A cell is a kind of agent with an ability (a column). All kinds with all abilities through all
interfaces on both engines would be sixteen times as many tests, and hardly find more. The seven
kinds of `make test` have seven of the eight interfaces with each ability; the further forms of
`make test-long` have the eighth.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.table import COLUMNS, FORMS, REASONS, RUNNERS

__all__ = [
    "ENGINES",
    "INTERFACES",
    "LACKS",
    "Cell",
    "choose_engine",
    "choose_interface",
    "list_interfaces",
]

INTERFACES = ("stream", "mcp", "command", "client", "json", "agui", "openai", "ai_sdk")
"""The interfaces of `tests.conformance.interfaces`, by their names.

The order decides the cells: in this one every pair occurs.
"""

ENGINES = ("sqlite", "postgres")

_ORDER = (*RUNNERS, *FORMS)

LACKS = {
    ("openai", "tools"): "a response does not show the calls that the server makes",
    ("openai", "metadata"): "its metadata are texts",
    ("openai", "step"): "a model is an agent or a team",
    ("openai", "edit"): "an approval has no arguments",
    ("ai_sdk", "edit"): "a page only approves or denies",
    ("mcp", "edit"): "a question takes a decision and a note",
    ("mcp", "elsewhere"): "a question belongs to a call, which ended with its server",
    **{
        (interface, column): "a page gives no metadata"
        for interface in ("agui", "ai_sdk")
        for column in ("metadata", "member")
    },
    **{("mcp", column): "a tool has no argument for metadata" for column in ("metadata", "member")},
    **{
        ("agui", column): "a page cancels by leaving: tests/agui/test_agui_cancel.py"
        for column in COLUMNS
        if column.startswith("cancel-")
    },
    **{
        (interface, column): "has no request for it"
        for interface in ("openai", "agui", "mcp")
        for column in ("messages", "retry", "fork")
    },
    **{("ai_sdk", column): "has no request for it" for column in ("messages", "fork")},
    ("ai_sdk", "retry"): "a page cannot confirm that code runs again",
    **{
        (interface, column): "waits for the end of a run"
        for interface in ("json", "command", "mcp")
        for column in ("stream", "tools")
    },
}
"""Abilities that an interface cannot express, with the reasons."""


def list_interfaces(column: str) -> list[str]:
    """Return the interfaces that can express an ability."""
    return [interface for interface in INTERFACES if (interface, column) not in LACKS]


def choose_interface(kind: str, column: str) -> str:
    """Return the interface of a cell: each kind of a column has the next one."""
    interfaces = list_interfaces(column)
    place = _ORDER.index(kind) + list(COLUMNS).index(column)
    return interfaces[place % len(interfaces)]


def choose_engine(kind: str, column: str) -> str:
    """Return the engine of a cell: both for each kind, except for Google ADK.

    Its agents need a process for each engine, and no library knows the engine.
    """
    if kind == "adk":
        return "sqlite"
    place = _ORDER.index(kind) + list(COLUMNS).index(column)
    return ENGINES[(place // len(INTERFACES) + _ORDER.index(kind)) % len(ENGINES)]


@dataclass(frozen=True)
class Cell:
    """A kind of agent and an ability."""

    kind: str
    column: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.interface}-{self.engine}"

    @property
    def is_yes(self) -> bool:
        """False if the table has a reason instead."""
        return (self.kind, self.column) not in REASONS

    @property
    def interface(self) -> str:
        return choose_interface(self.kind, self.column)

    @property
    def engine(self) -> str:
        return choose_engine(self.kind, self.column)
