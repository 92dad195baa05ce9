"""One server for all tests of the interface."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.agui.pages import CODE, CONFIG, ORIGIN, Thread
from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.server.threaded_server import ThreadedServer, serve_in_thread

__all__ = ["model_endpoint"]

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    folder, url = tmp_path_factory.mktemp("agui"), model_endpoint.base_url
    (folder / "agui_agents.py").write_text(CODE)
    origins = f'cors_origins = ["{ORIGIN}"]'
    deployment = create_deployment(folder, url, extra=CONFIG.format(url=url), server=origins)
    with serve_in_thread(deployment) as host:
        yield host


@pytest.fixture
def talk(served: ThreadedServer) -> Callable[..., Thread]:
    """Begin a thread with a component such as `agents/echo`."""

    def begin(component: str, **fields: object) -> Thread:
        return Thread(served, component, f"thread-{next(_NUMBERS)}", **fields)  # type: ignore[arg-type]

    return begin
