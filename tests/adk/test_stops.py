"""Agents of Google ADK: a cancel ends their tools, branches, members and model calls."""

from __future__ import annotations

from functools import partial

from tests.kit.model import ModelEndpoint
from tests.stops.server import StopServer, check_each
from tests.stops.test_random_cancels import AT_ONCE, COUNT, FORMS, cancel_at_random

COMPONENTS = {
    "adk_agent": FORMS,
    "adk_called": FORMS,
    "adk_branches": FORMS,
    "adk_command": ("",),
    "adk_hang": ("",),
}
"""The forms of work with which each agent is cancelled."""


async def test_cancel_ends_tools_branches_and_members(
    stop_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    agents = ("adk_agent", "adk_called", "adk_branches")
    cases = [f"{agent} {form}" for agent in agents for form in ("task", "exec")]
    async with stop_server.connect() as operations:
        await check_each(partial(stop_server.check_cancel, operations), ["adk_command", *cases])
    vendor_endpoint.wait_for_open(0)


async def test_cancel_closes_the_model_call_of_a_member(
    stop_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    async with stop_server.connect() as operations:
        await stop_server.check_model_call(operations, vendor_endpoint, "adk_hang")


async def test_no_run_is_called_stopped_while_its_work_goes_on(
    stop_server: StopServer, vendor_endpoint: ModelEndpoint
) -> None:
    await cancel_at_random(stop_server, vendor_endpoint, COMPONENTS, max(COUNT // 3, AT_ONCE))
