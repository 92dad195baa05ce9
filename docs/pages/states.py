"""`states.md`: the states of runs, approvals, calls and steps, from agentctl/store/states.py."""

from __future__ import annotations

from typing import Any

from pages.markdown import code, made_from, table

__all__ = ["page"]

_INTRODUCTION = f"""# States

{made_from("agentctl/store/states.py and agentctl/store/repositories/integrity.py")}

Who changes the state of a run, an approval, an approved call and a step of a durable run, and under
which condition. Each transition is one conditional update: of several writers exactly one succeeds.
A member is a run with a parent, and has the same states. A leg is the work between a claim and the
next pause or end; a transition with a new attempt ends the right of earlier legs to write.

`owner` is the worker in the row of the root run, `caller` the server that executes a request, and
`sweep` the process with the lease of the sweep, or another one that finds a worker dead. [Decision
79](../internals/decisions/0079-legs-and-checkpoints.md) has the reasons.
"""

_DOCTOR = """## Checks of `doctor --runs`

`agentctl doctor --runs` reports an open run whose columns are those of no state, and a run of which
one of these is true. `--fix` repairs it:
"""


def page() -> str:
    """Build `states.md`."""
    import agentctl.store.repositories.retention
    import agentctl.store.repositories.runs
    import agentctl.store.repositories.steps  # noqa: F401  # they name the transitions
    from agentctl.store.repositories.integrity import INCONSISTENT
    from agentctl.store.states import MACHINES

    lines = [_INTRODUCTION]
    for machine in MACHINES:
        lines += [*_describe(machine), ""]
    rules = [(text, remedy) for text, remedy, _ in INCONSISTENT]
    lines += [_DOCTOR, *table(("problem", "repair"), rules)]
    return "\n".join(lines) + "\n"


def _describe(machine: Any) -> list[str]:
    states = [
        (state.name, code(state.value or "NULL"), state.meaning, _list_columns(state))
        for state in machine.states
    ]
    transitions = [
        (
            each.name,
            ", ".join(each.before) or "(new)",
            ", ".join(each.after) or "(deleted)",
            ", ".join(each.actors),
            each.condition
            + ("; new attempt" if each.new_attempt and "new attempt" not in each.condition else ""),
        )
        for each in machine.transitions
    ]
    return [
        f"## {machine.name[0].upper()}{machine.name[1:]}",
        "",
        f"The column {code(machine.column)} of the table {code(machine.table)}.",
        "",
        *_draw(machine),
        "",
        *table(("state", "stored as", "meaning", "columns"), states),
        "",
        *table(("transition", "from", "to", "by", "condition"), transitions),
    ]


def _draw(machine: Any) -> list[str]:
    """Draw the states with an arrow for each state that follows."""
    width = max(len(state.name) for state in machine.states)
    arrows: dict[str, list[str]] = {"": []}
    for state in machine.states:
        arrows[state.name] = []
    for each in machine.transitions:
        for before in each.before or ("",):
            arrows[before] += [name for name in each.after if name not in arrows[before]]
    drawn = [
        f"{before or '(new)':<{width}} -> {', '.join(after)}"
        for before, after in arrows.items()
        if after
    ]
    return ["```", *drawn, "```"]


def _list_columns(state: Any) -> str:
    parts = [code(name) for name in state.present]
    parts += [f"no {code(name)}" for name in state.absent]
    return ", ".join(parts + ([code(state.more)] if state.more else []))
