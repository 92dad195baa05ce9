"""Subgraphs of LangGraph as members: supervisors, agents as tools, and branches of other states."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest, RunView
from agentctl.records.events import parse_event
from agentctl.records.run_reader import RunReader
from tests.conformance.server import SCOPES, ConformanceServer, run_component, stream_component
from tests.kit.command import Result, run_command
from tests.kit.conditions import wait_until


def call(name: str, call_id: str, **arguments: Any) -> dict[str, Any]:
    """Build an answer of a model that calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": call_id, "type": "function", "function": function}]}


RESEARCH = json.dumps(
    [
        call("transfer_to_researcher", "c1"),
        call("search", "c2", query="cats"),
        {"content": "cats are fine"},
        {"content": "I say: cats are fine"},
    ]
)


async def members_of(operations: Operations, run: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict((await operations.runs.get(each)).value) for each in run["member_runs"]]


async def test_agents_of_a_supervisor_are_members(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "supervisor", RESEARCH)
        run = dict((await operations.runs.get(events[0]["run_id"])).value)
        members = await members_of(operations, run)
    assert run["status"] == "COMPLETED"
    assert [(each["agent_id"], each["status"]) for each in members] == [
        ("supervisor", "COMPLETED"), ("researcher", "COMPLETED"), ("supervisor", "COMPLETED"),
    ]  # fmt: skip
    researcher = members[1]
    assert researcher["input"] == RESEARCH
    assert researcher["content"] == "cats are fine"
    assert [tool["tool_name"] for tool in researcher["tools"]] == ["search"]
    assert researcher["tools"][0]["result"] == "results for cats"
    # The state of the root graph is its record; messages of a member name its run.
    assert run["content"] == "cats are fine\n\nI say: cats are fine"
    texts = [
        (each["role"], each["content"], each.get("member_run_id")) for each in run["messages"][1:]
    ]
    boss = members[0]["run_id"]
    again = members[2]["run_id"]
    assert members[0]["tools"][0]["result"] == "Transferred to researcher"
    assert [entry[0] for entry in texts] == [
        "assistant",
        "tool",
        "assistant",
        "tool",
        "assistant",
        "assistant",
    ]
    assert [entry[2] for entry in texts[2:]] == [researcher["run_id"]] * 3 + [again]
    assert texts[0][2] in (None, boss)
    assert run["tools"] in ([], None)


async def test_calls_of_an_inner_supervisor_are_recorded(graphs: ConformanceServer) -> None:
    plan = json.dumps([call("search", "c1", query="cats"), {"content": "cats are fine"}])
    async with graphs.connect() as operations:
        run = await run_component(operations, "agent", "deep_research", plan)
        (member,) = await members_of(operations, run)
    assert (run["status"], run["content"], run["tools"] or []) == ("COMPLETED", "about cats", [])
    assert (member["agent_id"], member["input"]) == ("research_supervisor", plan)
    assert member["content"] == "cats are fine"
    assert [(tool["tool_name"], tool["result"]) for tool in member["tools"]] == [
        ("search", "found")
    ]
    roles = [message["role"] for message in member["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]


async def test_tokens_of_members_count_once(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "supervisor", RESEARCH)
        run = dict((await operations.runs.get(events[0]["run_id"])).value)
        members = await members_of(operations, run)
    counted = [each["metrics"]["total_tokens"] for each in members]
    assert all(counted)
    assert run["metrics"]["total_tokens"] is None
    assert run["total_tokens"] == sum(counted)
    spans = [span for each in members for span in each["spans"] if span["kind"] == "model"]
    assert sum(span["input_tokens"] + span["output_tokens"] for span in spans) == sum(counted)
    assert len(spans) == 4


async def test_stream_of_each_run_is_its_content(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "supervisor", RESEARCH)
        run = dict((await operations.runs.get(events[0]["run_id"])).value)
        members = await members_of(operations, run)
    for each in [run, *members]:
        own = [event for event in events if event["run_id"] == each["run_id"]]
        pieces = [event for event in own if event["event"] == "RunContent"]
        assert "".join(event["content"] for event in pieces) == (each["content"] or "")
        assert [own[0]["event"], own[-1]["event"]] == ["RunStarted", "RunCompleted"]
    pieces = [event for event in events if event["event"] == "RunContent"]
    own = [event for event in pieces if event["run_id"] == run["run_id"]]
    assert {(event["node"], event["member_run_id"]) for event in own} == {
        ("researcher", members[1]["run_id"]),
        ("supervisor", members[2]["run_id"]),
    }
    below = [event for event in pieces if event["run_id"] == members[1]["run_id"]]
    assert {event["node"] for event in below} == {"model"}
    assert {event["message_id"] for event in below} < {event["message_id"] for event in own}


async def test_next_turn_has_the_words_of_members(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        first = await run_component(operations, "agent", "supervisor", RESEARCH, session_id="two")
        again = json.dumps([{"content": "as before"}])
        second = await run_component(operations, "agent", "supervisor", again, session_id="two")
    assert (first["status"], second["content"]) == ("COMPLETED", "as before")


async def test_agent_that_a_tool_calls_is_a_member(graphs: ConformanceServer) -> None:
    plan = json.dumps([call("search", "c9", query="dogs"), {"content": "dogs are fine"}])
    message = json.dumps([call("ask_planner", "c1", request=plan), {"content": "done"}])
    async with graphs.connect() as operations:
        run = await run_component(operations, "agent", "subagents", message)
        (member,) = await members_of(operations, run)
    assert (run["status"], run["content"]) == ("COMPLETED", "done")
    assert [(each["tool_name"], each["result"]) for each in run["tools"]] == [
        ("ask_planner", "dogs are fine")
    ]
    assert (member["agent_id"], member["input"]) == ("planner", plan)
    assert member["content"] == "dogs are fine"
    assert [each["tool_name"] for each in member["tools"]] == ["search"]
    (span,) = [span for span in run["spans"] if span["kind"] == "member"]
    assert span["parent"] == "c1"


async def test_synchronous_teams_of_teams_are_members(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        run = await run_component(operations, "agent", "hierarchy", "hello")
        (office,) = await members_of(operations, run)
        (clerk,) = await members_of(operations, office)
    assert run["content"] == office["content"] == "clerk: file it"
    assert (office["agent_id"], clerk["agent_id"]) == ("office", "clerk")
    assert (clerk["input"], clerk["content"]) == ("file it", "file it")
    assert run["total_tokens"] == clerk["metrics"]["total_tokens"] == 4
    assert run["messages"][-1]["member_run_id"] == office["run_id"]


async def test_branches_of_another_state_are_members(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        request = RunRequest(input={"subjects": ["cats", "dogs"], "jokes": []})
        run = dict((await operations.runs.create("agent", "jokes", request)).value)
        members = await members_of(operations, run)
    assert run["output"]["jokes"] == ["a joke about cats", "a joke about dogs"]
    assert sorted((each["agent_id"], each["content"]) for each in members) == [
        ("joke", "a joke about cats"), ("joke", "a joke about dogs"),
    ]  # fmt: skip
    assert sorted(each["input"] for each in members) == ['{"subject":"cats"}', '{"subject":"dogs"}']


async def test_failed_tool_fails_its_member(graphs: ConformanceServer) -> None:
    message = json.dumps([call("transfer_to_researcher", "c1"), call("fail", "c2", reason="x")])
    async with graphs.connect() as operations:
        run = await run_component(operations, "agent", "supervisor", message)
        boss, researcher = await members_of(operations, run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "TOOL_FAILED")
    assert (boss["status"], researcher["status"]) == ("COMPLETED", "ERROR")
    assert researcher["error"] == run["error"]
    assert "secret" not in json.dumps([run, researcher])


async def start_slow(operations: Operations, session: str) -> tuple[str, list[str]]:
    """Start a run with two members at the same time, and wait for their rows."""
    request = RunRequest("go", session_id=session, background=True)
    run_id = (await operations.runs.create("agent", "slow", request)).value["run_id"]

    async def list_members() -> Any:
        members = (await operations.runs.get(run_id)).value["member_runs"]
        return len(members) == 2 and members

    return run_id, list(await wait_until(list_members))


async def test_cancel_ends_members_and_their_model_calls(
    graphs: ConformanceServer, model_endpoint: Any
) -> None:
    async with graphs.connect() as operations:
        run_id, members = await start_slow(operations, "slow")
        await asyncio.to_thread(model_endpoint.wait_for_open, 2)
        cancel = CancelRequest(session_id="slow", wait=30)
        ended = await operations.runs.cancel("agent", "slow", run_id, cancel)
        assert ended.value["cancel"] == "stopped"

        async def have_stopped() -> bool:
            records = [(await operations.runs.get(each)).value for each in members]
            return all(each["status"] == "CANCELLED" and each["stopped_at"] for each in records)

        await wait_until(have_stopped)
    await asyncio.to_thread(model_endpoint.wait_for_open, 0)


def test_cancel_of_a_member_names_its_run(graphs: ConformanceServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(graphs.deployment.token("ann", *SCOPES))
    token.chmod(0o600)

    def run(*arguments: str) -> Result:
        connection = ("--url", graphs.url, "--token-file", str(token))
        return run_command(*arguments, *connection, environment={}, folder=tmp_path)

    async def start() -> tuple[str, list[str]]:
        async with graphs.connect() as operations:
            return await start_slow(operations, "named")

    run_id, members = asyncio.run(start())
    refused = run("runs", "cancel", members[0])
    assert (refused.code, run_id in refused.stderr) == (5, True)
    assert run("runs", "cancel", run_id).code == 0


async def test_agents_of_a_swarm_are_members_in_each_turn(graphs: ConformanceServer) -> None:
    plan = json.dumps([call("transfer_to_bob", "c1"), {"content": "bob is here"}])
    again = json.dumps([{"content": "bob again"}])
    async with graphs.connect() as operations:
        first = await run_component(operations, "agent", "swarm", plan, session_id="swarm")
        second = await run_component(operations, "agent", "swarm", again, session_id="swarm")
        names = [
            [each["agent_id"] for each in await members_of(operations, run)]
            for run in (first, second)
        ]
    assert (first["content"], second["content"]) == ("bob is here", "bob again")
    assert names == [["alice", "bob"], ["bob"]]
    assert second["member_runs"][0] == second["messages"][-1]["member_run_id"]


async def test_members_have_their_place_among_the_items(graphs: ConformanceServer) -> None:
    async with graphs.connect() as operations:
        events = await stream_component(operations, "supervisor", RESEARCH)
        run_id = events[0]["run_id"]
        run = dict((await operations.runs.get(run_id, form=RunView("items"))).value)
        plan = json.dumps([call("search", "c9", query="dogs"), {"content": "dogs are fine"}])
        message = json.dumps([call("ask_planner", "c1", request=plan), {"content": "done"}])
        asked = await run_component(operations, "agent", "subagents", message)
        below = dict((await operations.runs.get(asked["run_id"], form=RunView("items"))).value)
    placed = [(each["type"], each.get("text") or each["run"]["agent_id"]) for each in run["items"]]
    assert placed == [
        ("member", "supervisor"), ("member", "researcher"), ("text", "cats are fine"),
        ("member", "supervisor"), ("text", "I say: cats are fine"),
    ]  # fmt: skip
    assert [each["type"] for each in below["items"]] == ["tool_call", "member", "text"]
    reader = RunReader()
    for event in events:
        reader.apply(parse_event(event["event"], json.dumps(event)))
    # A text may arrive before the start of its member; then it joins the text before.
    live = reader.runs[run_id].items
    for kind, name in (("member", "run_id"), ("text", "text")):
        shown, stored = (
            "".join("".join(each[name].split()) for each in items if each["type"] == kind)
            for items in (live, run["items"])
        )
        assert shown == stored


def test_transcripts_show_who_has_spoken(graphs: ConformanceServer) -> None:
    async def start() -> None:
        async with graphs.connect() as operations:
            options = {"session_id": "shown"}
            run = await run_component(operations, "agent", "supervisor", RESEARCH, **options)
            ids.append(run["run_id"])

    ids: list[str] = []
    asyncio.run(start())
    folder = graphs.deployment.folder
    path = str(graphs.deployment.path)

    def show(*arguments: str) -> str:
        done = run_command(*arguments, "--config", path, environment={}, folder=folder)
        assert done.code == 0, done.stderr
        return done.stdout

    text = show("runs", "get", ids[0], "--members", "--full", "-o", "text")
    timeline = show("runs", "get", ids[0], "--timeline", "-o", "text")
    markdown = show("sessions", "export", "shown", "--format", "markdown")
    # In the part of the member, and in the answer of the run. The export repeats the plan, which is
    # the message of the user.
    for transcript, repeated in ((text, 0), (markdown, 1)):
        assert transcript.index("Transferred to researcher") < transcript.index("results for cats")
        assert transcript.count("I say: cats are fine") == 2 + repeated
    folded = show("sessions", "get", "shown", "-o", "text")
    assert folded.count("I say: cats are fine") == 1
    assert "→ researcher" in timeline
