"""The spans of a run: the times of its model calls, tool calls, members and steps."""

from __future__ import annotations

from typing import Any

from agentctl.interface.requests import RunRequest
from agentctl.runs.workers.recovery import recover_runs
from agentctl.runtime.transcript.events import ToolCallCompleted, ToolCallStarted
from agentctl.service.service import ServiceOperations
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.runs.shared_databases import create_live_run, store_events
from tests.service.callers import collect_run_events, event_data, open_service, streamed_run, user

Span = dict[str, Any]


def check_order(run: dict[str, Any], spans: list[Span]) -> None:
    """Check that the spans lie within the run, and first tokens within their calls."""
    for span in spans:
        times = [span["started_at"], span["first_token_at"], span["finished_at"]]
        known = [each for each in times if each is not None]
        assert known == sorted(known)
        assert run["started_at"] <= known[0] <= known[-1] <= run["finished_at"]


def outline(spans: list[Span]) -> list[tuple[str, str, str]]:
    return [(each["kind"], each["name"], each["status"]) for each in spans]


async def test_spans_of_an_agent_a_team_and_a_workflow(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)

        async def run(kind: Any, component_id: str, message: str) -> dict[str, Any]:
            request = RunRequest(message, session_id=f"{kind}-1")
            found: Any = (await operations.runs.create(kind, component_id, request)).value
            check_order(found, found["spans"])
            return dict(found)

        agent = await run("agent", "tool-add", '{"a": 1, "b": 2}')
        assert outline(agent["spans"]) == [
            ("model", "tool-add", "completed"),
            ("tool", "add", "completed"),
            ("model", "tool-add", "completed"),
        ]
        call, tool, answer = agent["spans"]
        assert tool["id"] == agent["tools"][0]["tool_call_id"]
        assert call["input_tokens"] + answer["input_tokens"] == agent["metrics"]["input_tokens"]
        assert None not in (call["first_token_at"], answer["first_token_at"])
        assert tool["first_token_at"] is tool["input_tokens"] is None

        failed = await run("agent", "http-500", "hello")
        assert outline(failed["spans"]) == [("model", "http-500", "failed")]
        assert failed["spans"][0]["first_token_at"] is None

        team = await run("team", "desk", "hello")
        delegation, member = team["spans"][1:3]
        assert (delegation["kind"], member["kind"]) == ("tool", "member")
        assert member["parent"] == delegation["id"]
        assert delegation["member_run_id"] == member["member_run_id"] == team["member_runs"][0]

        workflow = await run("workflow", "line", "hello")
        step, member = workflow["spans"][:2]
        assert (step["kind"], member["kind"], member["parent"]) == ("step", "member", step["id"])
        assert step["member_run_id"] == workflow["member_runs"][0]


async def test_events_have_their_time_in_microseconds(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        events = await collect_run_events(operations, "agent", "tool-add", message='{"a":1,"b":2}')
        times = [event_data(event)["at"] for event in events]
        assert times == sorted(times)
        run = (await operations.runs.get(event_data(events[0])["run_id"])).value
        assert times[-1] == run["finished_at"]


async def test_live_runs_have_spans_in_every_process(deployment: Deployment) -> None:
    async with open_service(deployment) as owner, open_service(deployment) as other:
        here = user(owner)
        there = user(other)
        start = streamed_run(here, "team", "crew", message="ask hang", session_id="s1")
        async with start as (run, _):
            run_id = run["run_id"]

            async def read(operations: ServiceOperations) -> list[Span]:
                found: Any = (await operations.runs.get(run_id)).value
                return list(found["spans"])

            async def member_works() -> bool:
                return "member" in {span["kind"] for span in await read(there)}

            await wait_until(member_works)
            own = await read(here)
            stored = await read(there)
            assert [span["kind"] for span in own] == ["model", "tool", "member"]
            assert [span["kind"] for span in stored] == ["tool", "member"]
            for call, member in (own[1:], stored):
                assert call["finished_at"] is member["finished_at"] is call["status"] is None
                assert member["parent"] == call["id"]
                assert call["member_run_id"] == member["member_run_id"] == member["id"]
                assert (call["name"], member["name"]) == ("delegate_task_to_member", "hang")
            in_session: Any = (await here.sessions.list_runs("s1")).value
            assert in_session[0]["spans"] == await read(here)
            of_session: Any = (await there.sessions.get_run("s1", run_id)).value
            assert of_session["spans"] == stored


async def test_spans_of_a_lost_run_are_those_of_its_events(deployment: Deployment) -> None:
    calls = [{"tool_call_id": name, "tool_name": name, "tool_args": {}} for name in ("one", "two")]
    unknown = {"tool_call_error": None, "result": None}
    started = [ToolCallStarted({**call, **unknown}) for call in calls]
    ended = ToolCallCompleted({**calls[0], "tool_call_error": False, "result": "x"})
    async with open_service(deployment) as service:
        database = service.hosting.databases["main"]
        run = await create_live_run(database, "dead", component_id="echo")
        await store_events(database, run, "text", *started, ended)
        operations = user(service, run.user_id)

        async def outlines() -> list[tuple[str, str, str]]:
            found: Any = (await operations.runs.get("r1")).value
            return outline(found["spans"])

        assert await outlines() == [("tool", "one", "completed"), ("tool", "two", None)]
        assert await recover_runs(database, "dead") == ["r1"]
        assert await outlines() == [("tool", "one", "completed"), ("tool", "two", "failed")]
