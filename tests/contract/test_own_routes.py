"""Reads of both backends, if the server is an application with routes of a user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.backends import Backends, call_operation
from tests.contract.conftest import create_waiting
from tests.contract.test_reads import CALLERS, filled_sessions, reads
from tests.kit.model import ModelEndpoint
from tests.kit.process import start_server

__all__ = ["filled_sessions"]

APP = """
import agentctl

app = agentctl.create_app("agentctl.toml")


@app.middleware("http")
async def pass_on(request, call_next):
    return await call_next(request)


@app.get("/{page}")
@agentctl.public
def get_page(page: str) -> str:
    return page
"""


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Backends]:
    """Both backends on the same data; the remote one with a route that matches every word."""
    deployment = create_waiting(tmp_path_factory.mktemp("own"), model_endpoint.base_url)
    (deployment.folder / "words.py").write_text(APP)
    options = ("--app", "words:app", "--port", "0")
    with start_server(*options, log=deployment.folder / "server.log") as server:
        yield Backends(deployment, deployment, server.url, "sqlite", {})


@pytest.mark.parametrize("caller", ["owner", "narrow", "admin"])
async def test_reads_are_equal_with_own_routes(
    shared: Backends, filled_sessions: dict[str, str], caller: str
) -> None:
    subject, scopes = CALLERS[caller]
    token = shared.there.token(subject, *scopes)
    async with shared.local(token) as local, shared.remote(token) as remote:
        for name, ask in reads(filled_sessions).items():
            here = await call_operation(local, ask)
            there = await call_operation(remote, ask)
            assert here == there, name
