"""The model endpoint and the browser of the tests with an identity provider."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.console.browser import open_browser
from tests.endpoint import model_endpoint

__all__ = ["model_endpoint"]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened
