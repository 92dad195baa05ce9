"""Which component is meant: `--agent`, `--team` or `--workflow`, or what a run says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from agentctl.errors import UsageFailed
from agentctl.records.kinds import KINDS, Kind

__all__ = ["Chosen", "chosen_component", "component_named", "component_of_run"]

Chosen = tuple[Kind, str]


def chosen_component(agent: str | None, team: str | None, workflow: str | None) -> Chosen | None:
    """The component of the options; None when none of them is given.

    Raises:
        UsageFailed: more than one is given.
    """
    values: dict[Kind, str | None] = {"agent": agent, "team": team, "workflow": workflow}
    given = [(kind, value) for kind, value in values.items() if value is not None]
    if len(given) > 1:
        raise UsageFailed("a run is of one component: --agent, --team or --workflow")
    return given[0] if given else None


def component_named(record: Mapping[str, Any]) -> Chosen | None:
    """The component that the record of a session or run names; None when it names none."""
    for names in KINDS.values():
        if record.get(names.id_field):
            return names.kind, cast(str, record[names.id_field])
    return None


def component_of_run(run: Mapping[str, Any]) -> Chosen:
    """The component that a run record names.

    Raises:
        UsageFailed: it names none.
    """
    named = component_named(run)
    if named is not None:
        return named
    raise UsageFailed(
        "the server does not say which component the run is of",
        hint="name it: --agent ID, --team ID or --workflow ID, with --session ID",
    )
