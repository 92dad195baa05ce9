"""The repository of the failures that breakers count, on both engines."""

from __future__ import annotations

from agentctl.store.repositories import failures
from agentctl.store.repositories.failures import Failure
from tests.kit.rows import START
from tests.store.conftest import Store

WITHIN = 100


def a_failure(at: int, failure_id: str, code: str = "LOOP", scope_id: str = "writer") -> Failure:
    return Failure("agent", scope_id, START + at, failure_id, code)


def test_failures_count_together_within_their_window(store: Store) -> None:
    assert store.write(failures.add(a_failure(0, "r1"), WITHIN)) == ["LOOP"]
    assert store.write(failures.add(a_failure(99, "r2", "TOOL_FAILED"), WITHIN)) == [
        "LOOP",
        "TOOL_FAILED",
    ]
    # The first one is as old as the window is long.
    assert store.write(failures.add(a_failure(100, "r3"), WITHIN)) == ["TOOL_FAILED", "LOOP"]
    assert store.write(failures.add(a_failure(500, "r4"), WITHIN)) == ["LOOP"]


def test_failure_that_is_stored_again_counts_once(store: Store) -> None:
    for _ in range(2):
        assert store.write(failures.add(a_failure(0, "r1"), WITHIN)) == ["LOOP"]
    assert len(store.write(failures.add(a_failure(0, "r2"), WITHIN))) == 2


def test_each_scope_has_its_own_count(store: Store) -> None:
    store.write(failures.add(a_failure(0, "r1"), WITHIN))
    assert store.write(failures.add(a_failure(1, "r1", scope_id="editor"), WITHIN)) == ["LOOP"]
    of_team = a_failure(2, "r1")._replace(scope="team")
    assert store.write(failures.add(of_team, WITHIN)) == ["LOOP"]

    store.write(failures.forget("agent", "writer"))
    assert store.write(failures.add(a_failure(3, "r2"), WITHIN)) == ["LOOP"]
    assert len(store.write(failures.add(a_failure(3, "r2", scope_id="editor"), WITHIN))) == 2
