"""The state machines of `store.states`: every statement that changes a state is one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import agentctl
from agentctl.store.states import CHANGES, IS_LIVE, IS_NEXT_LEG, MACHINES, Machine, Transition
from tests.kit.tables import every_row
from tests.store.statements import module_statements

CHANGE = re.compile(
    r"\b(?:(INSERT INTO|DELETE FROM)|UPDATE) (runs|approvals|run_steps|run_messages)\b(.*)",
    re.DOTALL,
)
CASES = [
    (sql, machine, transition) for sql, found in CHANGES.items() for machine, transition in found
]


def split_update(text: str) -> tuple[str, str]:
    """Return the SET and the WHERE of the first UPDATE of a state in a statement."""
    match = CHANGE.search(text)
    assert match is not None
    before, _, after = match[3].partition(" WHERE ")
    return before.removeprefix(" SET "), after


def list_set_columns(assignments: str) -> set[str]:
    flat = assignments
    while (shorter := re.sub(r"\([^()]*\)", "", flat)) != flat:
        flat = shorter
    return {part.split(" = ")[0].strip() for part in flat.split(",")}


def find_machines(sql: str) -> list[Machine]:
    """Return the machines whose columns a statement sets, or whose rows it adds or deletes."""
    match = CHANGE.search(sql)
    if match is None:
        return []
    tables = [machine for machine in MACHINES if machine.table == match[2]]
    if match[1]:
        return [next(machine for machine in tables)]
    columns = list_set_columns(split_update(sql)[0])
    return [machine for machine in tables if columns.intersection(machine.columns)]


def test_every_change_of_a_state_names_its_transitions() -> None:
    unnamed = [
        f"{machine.name}: {sql}"
        for sql in module_statements()
        for machine in find_machines(sql)
        if machine not in [each for each, _ in CHANGES.get(sql, ())]
    ]
    assert not unnamed, "\n".join(unnamed)


def test_every_transition_has_a_statement() -> None:
    known = set(module_statements())
    made = {
        (machine.name, transition.name)
        for sql, found in CHANGES.items()
        if sql in known
        for machine, transition in found
    }
    every = {(machine.name, each.name) for machine in MACHINES for each in machine.transitions}
    assert made == every


def test_no_other_module_changes_states() -> None:
    """The statements of other modules would not be among those that these tests read."""
    package = Path(agentctl.__file__).parent
    allowed = set((package / "store/repositories").glob("*.py"))
    texts = {
        path: path.read_text(encoding="utf-8")
        for path in package.rglob("*.py")
        if path not in allowed
    }
    found = [
        f"{path}:{node.lineno}"
        for path, text in texts.items()
        # To parse all modules would take a second.
        if re.search("INSERT INTO|DELETE FROM|UPDATE ", text)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if CHANGE.match(node.value)
    ]
    assert not found


def find_values(column: str, condition: str) -> set[str | None]:
    """Return the values that a condition compares a column of its table with."""
    condition = condition.split("EXISTS (SELECT")[0]
    found: set[str | None] = set()
    for values in re.findall(rf"\b{column} (?:= |IN \()('[^)]*?')(?:\)| |$)", condition):
        found |= set(re.findall(r"'(\w+)'", values))
    if re.search(rf"\b{column} IS NULL", condition):
        found.add(None)
    return found


def find_assigned(column: str, assignments: str) -> list[str]:
    """Return the literals that an UPDATE stores in a column."""
    match = re.search(rf"(?:^|, ){column} = ('\w+'|CASE .*? END)", assignments)
    return re.findall(r"(?:^|THEN |ELSE )'(\w+)'", match[1]) if match else []


@every_row("sql, machine, transition", CASES)
def test_statement_has_the_states_of_its_transitions(
    sql: str, machine: Machine, transition: Transition
) -> None:
    names = [each.name for owner, each in CHANGES[sql] if owner is machine]
    others = [each for owner, each in CHANGES[sql] if owner is machine]
    match = CHANGE.search(sql)
    assert match is not None
    if match[1]:
        assert not (transition.before and transition.after), "it is a new row, or deletes one"
        return
    assignments, condition = split_update(sql)
    assert machine.where(*names) in condition
    if f"{machine.column} <> " not in condition and machine.column in machine.where(*names):
        before = {name for each in others for name in each.before}
        assert find_values(machine.column, condition) == set(machine.values(before))
    after = set(machine.values({name for each in others for name in each.after}))
    for value in find_assigned(machine.column, assignments):
        assert value in after
    assert any(each.new_attempt for each in others) == bool(
        "attempt = attempt + " in assignments
    ), "a statement with a new attempt says so, and no other one has it"


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_machine_is_complete(machine: Machine) -> None:
    """Every state is reached and, unless it is final, left; no name occurs twice."""
    names = [state.name for state in machine.states]
    assert len(names) == len(set(names))
    used = [each.name for each in machine.transitions]
    assert len(used) == len(set(used))
    reached = {name for each in machine.transitions for name in each.after}
    left = {name for each in machine.transitions for name in each.before}
    assert reached | left <= set(names)
    # `none` is the state of a call when its approval is created.
    assert set(names) - reached <= {"none"}
    final = {"approved call": {"done", "failed"}, "message": {"next run", "refused"}}
    assert set(names) - left <= final.get(machine.name, set())


def test_partial_indexes_have_the_condition_of_a_claim() -> None:
    folder = Path(agentctl.__file__).parent / "store/migrations"
    text = " ".join("".join(path.read_text() for path in sorted(folder.glob("*.sql"))).split())
    assert f"WHERE {IS_NEXT_LEG}" in text
    assert f"WHERE {IS_LIVE}" in text
