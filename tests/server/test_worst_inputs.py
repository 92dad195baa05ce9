"""The worst input that each bound of docs/limits.md allows, at a real server (decision 75).

`/health` is requested meanwhile, from another process than the server, and answers each time. `make
bench-hostile` measures how long it waits.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.hostile.scenario import send
from tests.lab.hostile.worst_inputs import CASES, World, serve_world
from tests.server.test_limits import ROWS


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with serve_world(tmp_path_factory.mktemp("worst")) as world:
        yield world


@pytest.mark.parametrize("name", CASES)
def test_worst_input_has_its_answer_and_the_server_stays_healthy(world: World, name: str) -> None:
    case = CASES[name]
    answer, waits = send(world, case)
    assert waits
    assert case.expected in answer, answer[-600:]


def test_every_row_that_orders_work_has_an_input() -> None:
    ordered = {row.name for row in ROWS if row.longest != "-"}
    assert ordered == {row for case in CASES.values() for row in case.rows}
