"""One server for all tests of the interface."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.agui.pages import serve_agents
from tests.ai_sdk.chats import CONFIG, Chat
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_agents(deploy, CONFIG) as host:
        yield host


@pytest.fixture
def talk(served: ThreadedServer) -> Callable[..., Chat]:
    """Begin a chat with a component such as `agents/echo`."""

    def begin(component: str, **fields: object) -> Chat:
        return Chat(served, component, f"chat-{next(_NUMBERS)}", **fields)  # type: ignore[arg-type]

    return begin
