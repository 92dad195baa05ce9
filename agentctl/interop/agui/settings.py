"""The table `[agui]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgUi:
    """The table `[agui]`: agents, teams and workflows for clients of AG-UI (docs/agui.md)."""

    enabled: bool = False
