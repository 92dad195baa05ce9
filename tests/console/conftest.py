"""One server and one browser for all tests of the console."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console.deployed import EXTRA, HOLD
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def server(deploy: Deploy) -> Iterator[ThreadedServer]:
    files = {"console_tools.py": HOLD}
    with serve_in_thread(deploy(EXTRA.format(url=deploy.url), files=files)) as host:
        yield host


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # The fast tests of this folder need no browser, whose library takes a second to import.
    from tests.kit.browser import open_browser

    with open_browser() as opened:
        yield opened
