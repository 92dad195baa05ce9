"""The faults that `python -m tests.faults` puts into a module."""

from __future__ import annotations

import pytest

from tests.faults.mutations import choose_faults, find_faults

SOURCE = '''"""A docstring with = and AND."""

FAMILY = int | None
SQL = "SELECT 1 FROM runs WHERE run_id = :id AND seq IS NULL"

def read(rows: list[int], limit: int = 20) -> int | None:
    if (len(rows) > limit
            and rows):
        log.info("a > b")
        rows.append(min(rows), key=limit)
    return rows[limit - 1] if not rows else None

def is_long(row: str) -> bool:
    return row.endswith(f"{row} AND {row}")
'''


@pytest.mark.parametrize(
    ("line", "new"),
    [
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id <> :id AND seq IS NULL"'),
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id = :id OR seq IS NULL"'),
        (4, 'SQL = "SELECT 1 FROM runs WHERE run_id = :id AND seq IS NOT NULL"'),
        (6, "def read(rows: list[int], limit: int = 21) -> int | None:"),
        (7, "if (len(rows) >= limit"),
        (8, "or rows):"),
        (10, "rows.append(max(rows), key=limit)"),
        (10, "rows.append(min(rows))"),
        (10, "pass"),
        (11, "return rows[limit + 1] if not rows else None"),
        (11, "return rows[limit - 1] if (rows) else None"),
        (11, "return None"),
        (14, 'return (not (row.endswith(f"{row} AND {row}")))'),
    ],
)
def test_each_kind_of_fault_is_found(line: int, new: str) -> None:
    assert (line, new) in {(fault.line, fault.new) for fault in find_faults(SOURCE)}


def test_types_docstrings_logs_and_other_texts_have_no_faults() -> None:
    faults = find_faults(SOURCE)
    assert not {1, 3, 9} & {fault.line for fault in faults}
    assert [fault.new for fault in faults if fault.line == 14 and "OR" in fault.new] == []


def test_a_seed_chooses_faults_of_different_lines() -> None:
    faults = find_faults(SOURCE)
    chosen = choose_faults(faults, 6, seed=1)
    assert len({fault.line for fault in chosen}) == 6
    assert chosen == choose_faults(faults, 6, seed=1)
    assert chosen != choose_faults(faults, 6, seed=2)
    assert choose_faults(faults, 1_000, seed=1) == faults


def test_an_excluded_fault_is_replaced_and_the_others_stay() -> None:
    faults = find_faults(SOURCE)
    chosen = choose_faults(faults, 6, seed=1)
    excluded = (chosen[0].old, chosen[0].new)
    again = choose_faults(faults, 6, seed=1, without={excluded})
    assert chosen[0] not in again
    assert len(again) == 6
    assert set(chosen[1:]) <= set(again)
