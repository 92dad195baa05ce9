"""The items of runs from the service: ended, live, and as a stream of changes."""

from __future__ import annotations

from typing import Any

import orjson

from agentctl.interface.requests import RunView, StreamEvent
from agentctl.records.kinds import ComponentKind
from agentctl.runs.follow.follow import stream_items
from agentctl.service.service import ServiceOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import collect_run_events, event_data, open_service, streamed_run, user

ITEMS = RunView("items")

RUNS: tuple[tuple[ComponentKind, str, str, list[str]], ...] = (
    ("agent", "tool-add", '{"a": 1, "b": 2}', ["tool_call", "text"]),
    ("team", "desk", "hello", ["member", "text"]),
    ("team", "choir", "hello", ["member", "member", "text"]),
    ("workflow", "line", "hello", ["step", "step", "text"]),
)


async def read_items(operations: ServiceOperations, run_id: str) -> list[dict[str, Any]]:
    found: Any = (await operations.runs.get(run_id, form=ITEMS)).value
    assert {"content", "messages", "tools"} & found.keys() == set()
    return list(found["items"])


def apply_changes(events: list[StreamEvent]) -> dict[str, list[Any]]:
    """Return the items of each run after the changes of a stream, as a client does."""
    items: dict[str, list[Any]] = {}
    for event in events:
        for change in orjson.loads(event.data)["changes"]:
            own = items.setdefault(change["run_id"], [])
            if "added" in change:
                own[change["position"]]["text"] += change["added"]
            elif "item" in change:
                own[change["position"] : change["position"] + 1] = [change["item"]]
    return items


async def test_stream_and_record_have_the_same_items(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        for kind, component, message, types in RUNS:
            events = await collect_run_events(operations, kind, component, message=message)
            run_id = event_data(events[0])["run_id"]

            async def portions(events: list[StreamEvent] = events) -> Any:
                yield events

            changed = [event async for part in stream_items(portions(), None) for event in part]
            streamed = apply_changes(changed)[run_id]
            stored = [
                each for each in await read_items(operations, run_id) if each["type"] != "prompt"
            ]
            assert [each["type"] for each in stored] == types
            assert [each["type"] for each in streamed] == types
            assert stored[-1] == streamed[-1]
            for one, other in zip(stored, streamed, strict=True):
                assert one.get("name") == other.get("name")
                assert one.get("run_id") == other.get("run_id")
                assert one.get("result") == other.get("result")
            resumed = [
                event async for part in stream_items(portions(), changed[-2].seq) for event in part
            ]
            assert resumed == changed[-1:]


async def test_live_items_are_known_in_every_process(deployment: Deployment) -> None:
    async with open_service(deployment) as owner, open_service(deployment) as other:
        here = user(owner)
        there = user(other)
        start = streamed_run(here, "team", "crew", message="ask hang", session_id="s1")
        async with start as (run, _):

            async def member_works() -> bool:
                items = await read_items(there, run["run_id"])
                return bool(items) and items[-1]["type"] == "member"

            await wait_until(member_works)
            for operations in (here, there):
                (item,) = await read_items(operations, run["run_id"])
                assert item["run"]["agent_id"] == "hang"
                assert item["run"]["phase"]["name"] == "running"
