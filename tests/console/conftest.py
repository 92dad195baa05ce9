"""One server and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.browser import open_browser
from tests.console.deployed import EXTRA, HOLD
from tests.deployment import Deploy
from tests.server.threaded_server import ThreadedServer, serve_in_thread


@pytest.fixture(scope="package")
def server(deploy: Deploy) -> Iterator[ThreadedServer]:
    files = {"console_tools.py": HOLD}
    with serve_in_thread(deploy(EXTRA.format(url=deploy.url), files=files)) as host:
        yield host


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened
