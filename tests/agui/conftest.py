"""One server for all tests of the interface."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.agui.pages import Thread, serve_agents
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_agents(deploy) as host:
        yield host


@pytest.fixture
def talk(served: ThreadedServer) -> Callable[..., Thread]:
    """Begin a thread with a component such as `agents/echo`."""

    def begin(component: str, **fields: object) -> Thread:
        return Thread(served, component, f"thread-{next(_NUMBERS)}", **fields)  # type: ignore[arg-type]

    return begin
