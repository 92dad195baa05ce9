"""The worst input that each bound of docs/limits.md allows, at a real server (docs/decisions/0075).

`/health` is requested meanwhile, from another process than the server. Its longest wait is compared
in processor time of the server, to which other work on the machine adds nothing; `make
bench-hostile` measures the time of the clock.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hostile.health import measure_waits
from tests.hostile.worst_inputs import CASES, World, serve_world
from tests.processor import measure_slowness
from tests.server.test_limits import ROWS

LONGEST_WAIT = 0.15
"""Seconds: 0.1, and a half for a processor that others use as well."""

ATTEMPTS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serve_world(tmp_path_factory.mktemp("worst")) as world:
        yield world


@pytest.mark.parametrize("name", CASES)
def test_worst_input_leaves_turns_to_other_requests(world: World, name: str) -> None:
    case = CASES[name]
    longest: list[float] = []
    answers: list[bytes] = []
    for attempt in range(ATTEMPTS):
        waits = measure_waits(world.target, lambda: answers.append(case.act(world)))
        assert len(answers) == attempt + 1, "the request has not ended"
        assert case.expected in answers[-1], answers[-1][-600:]
        longest.append(max(wait.busy for wait in waits))
        if longest[-1] < LONGEST_WAIT * measure_slowness():
            return
    pytest.fail(f"others waited for {min(longest):.3f} seconds")


def test_every_row_that_orders_work_has_an_input() -> None:
    ordered = {row.name for row in ROWS if row.longest != "-"}
    assert ordered == {row for case in CASES.values() for row in case.rows}
