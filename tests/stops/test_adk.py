"""Agents of Google ADK: a cancel ends their tools, branches, members and model calls."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.kit.model import ModelEndpoint
from tests.stops.server import ADK_MODULE, StopServer, check_each, serve
from tests.stops.test_random_cancels import AT_ONCE, COUNT, FORMS, cancel_at_random

COMPONENTS = {
    "adk_agent": FORMS,
    "adk_called": FORMS,
    "adk_branches": FORMS,
    "adk_command": ("",),
    "adk_hang": ("",),
}
"""The forms of work with which each agent is cancelled."""


@pytest.fixture(scope="module")
def adk_server(
    tmp_path_factory: pytest.TempPathFactory, vendor_endpoint: ModelEndpoint
) -> Iterator[StopServer]:
    folder = tmp_path_factory.mktemp("stops-adk")
    with serve(folder, vendor_endpoint, module=ADK_MODULE) as running:
        yield running
    assert "Traceback" not in running.process.log_text


async def test_cancel_ends_tools_branches_and_members(
    adk_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    agents = ("adk_agent", "adk_called", "adk_branches")
    cases = [f"{agent} {form}" for agent in agents for form in ("task", "exec")]
    async with adk_server.connect() as operations:
        await check_each(partial(adk_server.check_cancel, operations), ["adk_command", *cases])
    vendor_endpoint.wait_for_open(0)


async def test_cancel_closes_the_model_call_of_a_member(
    adk_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    async with adk_server.connect() as operations:
        await adk_server.check_model_call(operations, vendor_endpoint, "adk_hang")


async def test_no_run_is_called_stopped_while_its_work_goes_on(
    adk_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    await cancel_at_random(adk_server, vendor_endpoint, COMPONENTS, max(COUNT // 3, AT_ONCE))
