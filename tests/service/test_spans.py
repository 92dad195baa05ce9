"""The spans of a run: the times of its model calls, tool calls, members and steps."""

from __future__ import annotations

from typing import Any

from agentctl.interface.requests import RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.transcript.events import ToolCallCompleted, ToolCallStarted
from agentctl.service.service import Service, ServiceOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.service import collect_run_events, event_data, open_service, streamed_run, user
from tests.runs.shared_databases import create_live_run, store_events

Span = dict[str, Any]


def check_order(run: dict[str, Any], spans: list[Span]) -> None:
    """Check that the spans lie within the run, and first tokens within their calls."""
    for span in spans:
        times = [span["started_at"], span["first_token_at"], span["finished_at"]]
        known_times = [time for time in times if time is not None]
        assert known_times == sorted(known_times)
        assert run["started_at"] <= known_times[0] <= known_times[-1] <= run["finished_at"]


def outline(spans: list[Span]) -> list[tuple[str, str, str]]:
    return [(span["kind"], span["name"], span["status"]) for span in spans]


async def run(
    service: Service, kind: ComponentKind, component_id: str, message: str
) -> dict[str, Any]:
    """Execute a run and return its record, whose spans are in order."""
    request = RunRequest(message, session_id=f"{kind}-1")
    record: Any = (await user(service).runs.create(kind, component_id, request)).value
    check_order(record, record["spans"])
    return dict(record)


async def test_run_of_an_agent_has_spans_of_model_and_tool_calls(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        record = await run(service, "agent", "tool-add", '{"a": 1, "b": 2}')

    assert outline(record["spans"]) == [
        ("model", "tool-add", "completed"),
        ("tool", "add", "completed"),
        ("model", "tool-add", "completed"),
    ]
    call, tool, answer = record["spans"]
    assert None not in (call["first_token_at"], answer["first_token_at"])
    assert call["input_tokens"] + answer["input_tokens"] == record["metrics"]["input_tokens"]
    assert tool["id"] == record["tools"][0]["tool_call_id"]
    assert tool["first_token_at"] is tool["input_tokens"] is None


async def test_failed_model_call_has_a_span_without_a_first_token(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        record = await run(service, "agent", "http-500", "hello")

    assert outline(record["spans"]) == [("model", "http-500", "failed")]
    assert record["spans"][0]["first_token_at"] is None


async def test_span_of_a_member_is_in_that_of_its_delegation(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        record = await run(service, "team", "desk", "hello")

    delegation, member = record["spans"][1:3]
    assert (delegation["kind"], member["kind"]) == ("tool", "member")
    assert member["parent"] == delegation["id"]
    assert delegation["member_run_id"] == member["member_run_id"] == record["member_runs"][0]


async def test_span_of_a_member_is_in_that_of_its_step(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        record = await run(service, "workflow", "line", "hello")

    step, member = record["spans"][:2]
    assert (step["kind"], member["kind"]) == ("step", "member")
    assert member["parent"] == step["id"]
    assert step["member_run_id"] == record["member_runs"][0]


async def test_events_have_their_time_in_microseconds(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        events = await collect_run_events(operations, "agent", "tool-add", message='{"a":1,"b":2}')
        record = (await operations.runs.get(event_data(events[0])["run_id"])).value

    times = [event_data(event)["at"] for event in events]
    assert times == sorted(times)
    assert times[-1] == record["finished_at"]


async def test_live_runs_have_spans_in_every_process(deployment: Deployment) -> None:
    async with open_service(deployment) as owner, open_service(deployment) as other:
        here = user(owner)
        there = user(other)
        start = streamed_run(here, "team", "crew", message="ask hang", session_id="s1")
        async with start as (record, _):
            run_id = record["run_id"]

            async def read_spans(operations: ServiceOperations) -> list[Span]:
                found: Any = (await operations.runs.get(run_id)).value
                return list(found["spans"])

            async def member_works() -> bool:
                return "member" in {span["kind"] for span in await read_spans(there)}

            await wait_until(member_works)
            live = await read_spans(here)
            stored = await read_spans(there)
            in_session: Any = (await here.sessions.list_runs("s1")).value
            live_later = await read_spans(here)
            of_session: Any = (await there.sessions.get_run("s1", run_id)).value

    # The events, which another process reads, have no model calls.
    assert [span["kind"] for span in live] == ["model", "tool", "member"]
    assert [span["kind"] for span in stored] == ["tool", "member"]
    for call, member in (live[1:], stored):
        assert (call["name"], member["name"]) == ("delegate_task_to_member", "hang")
        assert call["finished_at"] is member["finished_at"] is call["status"] is None
        assert member["parent"] == call["id"]
        assert call["member_run_id"] == member["member_run_id"] == member["id"]

    assert in_session[0]["spans"] == live_later
    assert of_session["spans"] == stored


async def test_spans_of_a_lost_run_are_those_of_its_events(deployment: Deployment) -> None:
    calls = [{"tool_call_id": name, "tool_name": name, "tool_args": {}} for name in ("one", "two")]
    started = [ToolCallStarted({**call, "tool_call_error": None, "result": None}) for call in calls]
    ended = ToolCallCompleted({**calls[0], "tool_call_error": False, "result": "x"})
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "dead", component_id="echo")
        await store_events(database, run, "text", *started, ended)
        operations = user(service, run.user_id)

        async def read_outline() -> list[tuple[str, str, str]]:
            found: Any = (await operations.runs.get("r1")).value
            return outline(found["spans"])

        assert await read_outline() == [("tool", "one", "completed"), ("tool", "two", None)]

        assert await recover_runs(database, "dead") == ["r1"]

        assert await read_outline() == [("tool", "one", "completed"), ("tool", "two", "failed")]
