"""One server and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.browser import open_browser
from tests.console.deployed import EXTRA, HOLD
from tests.deployment import create_deployment
from tests.endpoint import ModelEndpoint, model_endpoint
from tests.server.threaded_server import ThreadedServer, serve_in_thread

__all__ = ["model_endpoint"]


@pytest.fixture(scope="package")
def server(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[ThreadedServer]:
    folder, url = tmp_path_factory.mktemp("console"), model_endpoint.base_url
    (folder / "console_tools.py").write_text(HOLD)
    deployment = create_deployment(folder, url, extra=EXTRA.format(url=url))
    with serve_in_thread(deployment) as host:
        yield host


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened
