"""The rows and cells of the table of operations in docs/agentos.md."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["NONE", "Cell", "Row", "refused", "works"]


class Cell(NamedTuple):
    """One who uses an operation.

    Attributes:
        text: the result: `works`, or a few words.
        file: the module of the tests, in this folder.
        tests: names of its functions.
        reason: the difference, or the reason for it.
    """

    text: str = "-"
    file: str = ""
    tests: str = ""
    reason: str = ""


NONE = Cell()
"""The user of this column has no such operation."""


class Row(NamedTuple):
    """One operation.

    Attributes:
        name: its name in the table.
        client: clients of AgentOS on this server.
        page: agent-ui on this server.
        methods: the methods of the client of AgentOS.
    """

    name: str
    client: Cell = NONE
    page: Cell = NONE
    methods: tuple[str, ...] = ()


def works(file: str, tests: str, reason: str = "") -> Cell:
    """Return the cell of an operation that works, if need be with a difference."""
    return Cell("works", file, tests, reason)


def refused(file: str, tests: str, reason: str) -> Cell:
    """Return the cell of an operation that is refused."""
    return Cell("refused", file, tests, reason)
