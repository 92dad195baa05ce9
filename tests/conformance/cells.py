"""The interface and the engine of each cell of the table: every pair of two of the four occurs.

A cell is a kind of agent with an ability (a column). All kinds with all abilities through all
interfaces on both engines would be twelve times as many tests, and hardly find more.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.conformance.table import COLUMNS, FORMS, REASONS, RUNNERS

__all__ = ["ENGINES", "INTERFACES", "LACKS", "Cell", "choose_engine", "choose_interface"]

INTERFACES = ("stream", "json", "client", "command", "openai", "agui")
"""The interfaces of `tests.conformance.interfaces`, by their names."""

ENGINES = ("sqlite", "postgres")

_ORDER = (*RUNNERS, *FORMS)

LACKS = {
    ("openai", "tools"): "a response does not show the calls that the server makes",
    ("openai", "metadata"): "its metadata are texts",
    ("openai", "step"): "a model is an agent or a team",
    ("openai", "edit"): "an approval has no arguments",
    ("agui", "metadata"): "a page gives no metadata",
    ("agui", "member"): "a page gives no metadata",
    **{
        ("agui", column): "a page cancels by leaving: tests/agui/test_agui_cancel.py"
        for column in COLUMNS
        if column.startswith("cancel-")
    },
    **{
        (interface, column): "has no request for it"
        for interface in ("openai", "agui")
        for column in ("messages", "retry", "fork")
    },
    **{
        (interface, column): "waits for the end of a run"
        for interface in ("json", "command")
        for column in ("stream", "tools")
    },
}
"""Abilities that an interface cannot express, with the reasons."""


def choose_interface(kind: str, column: str) -> str:
    """Return the interface of a cell: the next one that can express the ability."""
    place = _ORDER.index(kind) + list(COLUMNS).index(column)
    turned = [*INTERFACES, *INTERFACES][place % len(INTERFACES) :]
    return next(interface for interface in turned if (interface, column) not in LACKS)


def choose_engine(kind: str, column: str) -> str:
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
