"""Notices for the plugin `tests.accounting`: tests tell it that they use a program or page.

A module of its own: environments with other libraries, whose processes are counted, have no pytest.

They are no audit events (`sys.audit`): Python has one for each `open`, `id` and import, and a hook
that sees all of them took 3% of the CPU time of `check`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["PAGE", "PROGRAM", "listeners", "tell"]

PROGRAM = "program"
"""A program that is started, with its words."""

PAGE = "page"
"""A page that is opened in a browser, with its URL."""

listeners: list[Callable[[str, Any], None]] = []
"""Called for each notice, with its kind and its value."""


def tell(kind: str, value: Any) -> None:
    for listener in listeners:
        listener(kind, value)
