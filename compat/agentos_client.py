"""Every operation that clients of AgentOS have on agents, teams, workflows, sessions and runs.

    python agentos_client.py WORK.json    print as the last line a JSON object: the failure of each
                                          operation, or null

Run in an environment with a release of `agno`, against a server with the components of
`compat.servers`. WORK.json has `url`, `token` (or null) and `parts`: the beginnings of the
names of the operations, such as `client` and `remote`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
from agno.agent import RemoteAgent
from agno.client import AgentOSClient
from agno.db.base import SessionType
from agno.team import RemoteTeam
from agno.workflow import RemoteWorkflow

RELEASE_3 = hasattr(AgentOSClient, "aget_session_run_previews")

AGENT = SessionType.AGENT
TEAM = SessionType.TEAM
WORKFLOW = SessionType.WORKFLOW

Check = Callable[[], Awaitable[Any]]

UNKNOWN = "00000000-0000-7000-8000-000000000000"


class Checks:
    """The operations of one client, in the order of their execution."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = AgentOSClient(base_url=url)
        self.results: dict[str, str | None] = {}
        self.kept: dict[str, Any] = {}

    async def check(self, name: str, operation: Check) -> None:
        """Execute an operation; keep its failure."""
        try:
            async with asyncio.timeout(30):
                await operation()
        except Exception as error:
            self.results[name] = f"{type(error).__name__}: {str(error)[:300]}"
        else:
            self.results[name] = None

    async def run_all(self, *parts: str) -> None:
        """Execute every method whose name begins with one of the parts."""
        for part in parts:
            for name in type(self).__dict__:
                if name.startswith(f"{part}_"):
                    await self.check(name, getattr(self, name))

    # Configuration and components

    async def client_get_config(self) -> None:
        config = await asyncio.to_thread(self.client.get_config, headers=self.headers)
        assert {each.id for each in config.agents or []} >= {"echo", "hang"}, config
        assert config.databases, config

    async def client_aget_config(self) -> None:
        config = await self.client.aget_config(headers=self.headers)
        assert config.interfaces == [], config
        assert config.session is not None, config

    async def client_get_models(self) -> None:
        if not RELEASE_3 and hasattr(self.client, "get_models"):
            await self.client.get_models(headers=self.headers)

    async def client_list_agents(self) -> None:
        agents = await self.client.list_agents(headers=self.headers)
        assert "tool-add" in [agent.id for agent in agents], agents
        assert all(agent.db_id for agent in agents), agents

    async def client_get_agent(self) -> None:
        agent = await asyncio.to_thread(self.client.get_agent, "tool-add", headers=self.headers)
        assert agent.tools["tools"][0]["name"] == "add", agent
        assert agent.model.model == "tool:add", agent

    async def client_aget_agent(self) -> None:
        agent = await self.client.aget_agent("echo", headers=self.headers)
        assert (agent.id, agent.name, agent.description) == ("echo", "Echo", "Answers as echo")

    async def client_list_teams(self) -> None:
        teams = await self.client.list_teams(headers=self.headers)
        assert "crew" in [team.id for team in teams], teams

    async def client_get_team(self) -> None:
        team = await asyncio.to_thread(self.client.get_team, "crew", headers=self.headers)
        assert [member.id for member in team.members] == ["echo", "hang"], team
        assert all(member.description and member.db_id for member in team.members), team

    async def client_aget_team(self) -> None:
        team = await self.client.aget_team("crew", headers=self.headers)
        assert team.mode == "coordinate", team
        assert team.tools["tools"][0]["name"] == "delegate_task_to_member", team

    async def client_list_workflows(self) -> None:
        workflows = await self.client.list_workflows(headers=self.headers)
        assert {"line", "stuck"} <= {each.id for each in workflows}, workflows

    async def client_get_workflow(self) -> None:
        found = await asyncio.to_thread(self.client.get_workflow, "line", headers=self.headers)
        assert [step["name"] for step in found.steps] == ["first", "second"], found

    async def client_aget_workflow(self) -> None:
        found = await self.client.aget_workflow("line", headers=self.headers)
        assert found.steps[0]["agent"]["id"] == "echo", found
        assert found.steps[1]["team"]["id"] == "crew", found

    async def client_get_unknown_agent(self) -> None:
        await self.expect(404, self.client.aget_agent("nothing", headers=self.headers))

    async def expect(self, status: int, operation: Awaitable[Any]) -> None:
        """Require that an operation fails with a status."""
        found = None
        try:
            await operation
        except httpx.HTTPStatusError as error:
            found = error.response.status_code
        assert found == status, found

    # Runs

    async def client_run_agent(self) -> None:
        run = await self.client.run_agent("echo", "hello", session_id="a1", headers=self.headers)
        assert (run.status, run.content, run.agent_id) == ("COMPLETED", "hello", "echo"), run
        assert run.input.input_content == "hello", run
        assert run.metrics.total_tokens > 0, run
        assert run.metrics.duration > 0, run
        assert (run.model, run.agent_name) == ("echo", "Echo"), run
        assert [message.role for message in run.messages][-2:] == ["user", "assistant"], run
        assert isinstance(run.created_at, int), run
        self.kept["agent run"] = run.run_id

    async def client_run_agent_with_tool(self) -> None:
        message = '{"a": 2, "b": 3}'
        run = await self.client.run_agent("tool-add", message, headers=self.headers)
        assert (run.tools[0].tool_name, run.tools[0].result) == ("add", "5"), run
        calls = [each.tool_calls for each in run.messages if each.tool_calls]
        assert json.loads(calls[0][0]["function"]["arguments"]) == {"a": 2, "b": 3}, run

    async def client_run_agent_that_fails(self) -> None:
        run = await self.client.run_agent("http-500", "x", headers=self.headers)
        assert (run.status, bool(run.content)) == ("ERROR", True), run

    async def client_run_agent_in_background(self) -> None:
        run = await self.client.run_agent(
            "echo", "later", session_id="b1", headers=self.headers, background=True
        )
        assert run.run_id, run
        assert run.status in ("PENDING", "RUNNING"), run

    async def client_run_agent_with_state(self) -> None:
        await self.client.run_agent(
            "echo",
            "hello",
            session_id="st1",
            session_state={"color": "blue"},
            metadata={"trace": "t1"},
            headers=self.headers,
        )
        session = await self.client.get_session("st1", headers=self.headers)
        assert session.session_state["color"] == "blue", session

    async def client_run_agent_with_dependencies(self) -> None:
        await self.client.run_agent(
            "echo", "hello", dependencies={"city": "Bern"}, headers=self.headers
        )

    async def collect(self, stream: Any) -> list[Any]:
        """Return the events of a stream."""
        return [event async for event in stream]

    async def client_run_agent_stream(self) -> None:
        stream = self.client.run_agent_stream(
            "tool-add", '{"a": 1, "b": 2}', session_id="a2", headers=self.headers
        )
        events = await self.collect(stream)
        names = [event.event for event in events]
        assert (names[0], names[-1]) == ("RunStarted", "RunCompleted"), names
        assert {"ToolCallStarted", "ToolCallCompleted", "RunContentCompleted"} <= {*names}, names
        assert {"ModelRequestStarted", "ModelRequestCompleted"} <= {*names}, names
        assert (events[0].model, events[-1].content) == ("tool:add", "3"), events
        assert events[-1].metrics.total_tokens > 0, events
        assert events[-1].metrics.duration > 0, events

    async def client_run_agent_stream_that_fails(self) -> None:
        events = await self.collect(
            self.client.run_agent_stream("http-500", "x", headers=self.headers)
        )
        assert (events[-1].event, bool(events[-1].content)) == ("RunError", True), events

    async def client_run_team(self) -> None:
        run = await self.client.run_team("crew", "use echo", session_id="t1", headers=self.headers)
        assert (run.status, run.team_id) == ("COMPLETED", "crew"), run
        assert [each.agent_id for each in run.member_responses] == ["echo"], run
        assert run.member_responses[0].parent_run_id == run.run_id, run

    async def client_run_team_stream(self) -> None:
        events = await self.collect(
            self.client.run_team_stream("crew", "use echo", session_id="t2", headers=self.headers)
        )
        names = [event.event for event in events]
        assert (names[0], names[-1]) == ("TeamRunStarted", "TeamRunCompleted"), names
        assert {"RunStarted", "RunCompleted", "TeamToolCallStarted"} <= {*names}, names

    async def client_run_workflow(self) -> None:
        run = await self.client.run_workflow(
            "line", "use echo", session_id="w1", headers=self.headers
        )
        assert (run.status, run.workflow_id) == ("COMPLETED", "line"), run
        assert [each.step_name for each in run.step_results] == ["first", "second"], run
        assert [type(each).__name__ for each in run.step_executor_runs] == [
            "RunOutput",
            "TeamRunOutput",
        ], run
        assert {*run.metrics.steps} == {"first", "second"}, run

    async def client_run_workflow_stream(self) -> None:
        events = await self.collect(
            self.client.run_workflow_stream(
                "line", "use echo", session_id="w2", headers=self.headers
            )
        )
        names = [event.event for event in events]
        assert (names[0], names[-1]) == ("WorkflowStarted", "WorkflowCompleted"), names
        steps = [event.step_name for event in events if event.event == "StepCompleted"]
        assert steps == ["first", "second"], names
        started = next(event for event in events if event.event == "RunStarted")
        assert (started.step_name, started.workflow_run_id) == ("first", events[0].run_id), started

    # Paused runs

    async def pause(self, kind: str, component: str, *, stream: bool = False) -> Any:
        """Start a run that waits for a confirmation; return it, or the event of its pause."""
        message = '{"a": 2, "b": 3}'
        if not stream:
            start = getattr(self.client, f"run_{kind}")
            run = await start(component, message, headers=self.headers)
            assert run.status == "PAUSED", run
            return run
        start = getattr(self.client, f"run_{kind}_stream")
        events = await self.collect(start(component, message, headers=self.headers))
        assert events[-1].event.endswith("Paused"), [event.event for event in events]
        return events[-1]

    def find_call(self, paused: Any) -> Any:
        """Return the step that waits, and its call, as dictionaries."""
        step = paused.step_requirements[-1]
        if not isinstance(step, dict):
            step = step.to_dict()
        (requirement,) = step["executor_requirements"]
        return step, requirement["tool_execution"]

    def given(self, paused: Any) -> dict[str, Any]:
        return {"session_id": paused.session_id, "headers": self.headers}

    async def client_continue_agent_run(self) -> None:
        run = await self.pause("agent", "clerk")
        (tool,) = run.tools
        assert (tool.tool_name, tool.tool_args) == ("add", {"a": 2, "b": 3}), tool
        assert tool.requires_confirmation, tool
        assert len(run.active_requirements) == 1, run
        tool.confirmed = True
        given = {"tools": [tool], **self.given(run)}
        run = await self.client.continue_agent_run("clerk", run.run_id, **given)
        assert (run.status, run.content) == ("COMPLETED", "5"), run

    async def client_continue_agent_run_stream(self) -> None:
        paused = await self.pause("agent", "clerk", stream=True)
        (tool,) = paused.tools
        tool.confirmed = True
        given = {"tools": [tool], **self.given(paused)}
        stream = self.client.continue_agent_run_stream("clerk", paused.run_id, **given)
        events = await self.collect(stream)
        names = [event.event for event in events]
        assert (names[0], names[-1]) == ("RunContinued", "RunCompleted"), names
        assert {"ToolCallStarted", "ToolCallCompleted"} <= {*names}, names
        assert events[-1].content == "5", events

    async def client_continue_rejected_agent_run(self) -> None:
        run = await self.pause("agent", "clerk")
        (requirement,) = run.requirements
        requirement.reject("too much")
        given = {"tools": [requirement.tool_execution], **self.given(run)}
        run = await self.client.continue_agent_run("clerk", run.run_id, **given)
        assert run.status == "COMPLETED", run
        assert "5" not in run.content, run

    async def client_continue_team_run(self) -> None:
        run = await self.pause("team", "office")
        (requirement,) = run.requirements
        assert requirement.member_agent_id == "clerk", requirement
        requirement.confirm()
        given = {"requirements": [requirement], **self.given(run)}
        run = await self.client.continue_team_run("office", run.run_id, **given)
        assert run.status == "COMPLETED", run
        assert "5" in run.content, run  # AgentOS adds the name of the member.

    async def client_continue_team_run_stream(self) -> None:
        paused = await self.pause("team", "office", stream=True)
        (requirement,) = paused.requirements
        requirement.confirm()
        given = {"requirements": [requirement], **self.given(paused)}
        stream = self.client.continue_team_run_stream("office", paused.run_id, **given)
        events = await self.collect(stream)
        names = [event.event for event in events]
        assert "TeamRunContinued" in names, names
        assert names[-1] == "TeamRunCompleted", names
        assert "5" in events[-1].content, events

    async def client_continue_workflow_run(self) -> None:
        run = await self.pause("workflow", "form")
        assert run.paused_step_name == "sum", run
        step, call = self.find_call(run)
        call["confirmed"] = True
        given = {"requirements": [step], **self.given(run)}
        run = await self.client.continue_workflow_run("form", run.run_id, **given)
        assert (run.status, run.content) == ("COMPLETED", "5"), run

    async def client_continue_workflow_run_stream(self) -> None:
        paused = await self.pause("workflow", "form", stream=True)
        step, call = self.find_call(paused)
        call["confirmed"] = True
        given = {"requirements": [step], **self.given(paused)}
        stream = self.client.continue_workflow_run_stream("form", paused.run_id, **given)
        events = await self.collect(stream)
        names = [event.event for event in events]
        assert names[-1] == "WorkflowCompleted", names
        assert events[-1].content == "5", events

    async def client_cancel_paused_agent_run(self) -> None:
        run = await self.pause("agent", "clerk")
        await self.client.cancel_agent_run("clerk", run.run_id, headers=self.headers)

    # Cancels

    async def cancel(self, stream: Any, cancel: Callable[[str], Awaitable[Any]]) -> list[str]:
        """Cancel a run as soon as its id is known; return the names of its events."""
        names = list[str]()
        cancelled = False
        async for event in stream:
            names.append(event.event)
            run_id = getattr(event, "run_id", None)
            waits = names[-1] in ("RunContent", "ModelRequestStarted", "TeamModelRequestStarted")
            if run_id and waits and not cancelled:
                cancelled = True
                await cancel(self.root or run_id)
            elif not self.root:
                self.root = run_id
        return names

    root: str | None = None

    async def client_cancel_agent_run(self) -> None:
        self.root = None
        names = await self.cancel(
            self.client.run_agent_stream("trickle", "x", headers=self.headers),
            lambda run_id: self.client.cancel_agent_run("trickle", run_id, headers=self.headers),
        )
        assert "RunCancelled" in names, names

    async def client_cancel_team_run(self) -> None:
        self.root = None
        names = await self.cancel(
            self.client.run_team_stream("crew", "use hang", headers=self.headers),
            lambda run_id: self.client.cancel_team_run("crew", run_id, headers=self.headers),
        )
        assert "TeamRunCancelled" in names, names

    async def client_cancel_workflow_run(self) -> None:
        self.root = None
        names = await self.cancel(
            self.client.run_workflow_stream("stuck", "x", headers=self.headers),
            lambda run_id: self.client.cancel_workflow_run("stuck", run_id, headers=self.headers),
        )
        assert "WorkflowCancelled" in names, names

    async def client_cancel_finished_run(self) -> None:
        run_id = self.kept["agent run"]
        await self.client.cancel_agent_run("echo", run_id, headers=self.headers)

    # Sessions

    async def create(self, session_id: str, kind: SessionType, **given: Any) -> Any:
        """Create a session of a kind."""
        return await self.client.create_session(
            kind, session_id=session_id, session_name=session_id, headers=self.headers, **given
        )

    async def client_create_agent_session(self) -> None:
        session = await self.create(
            "ca", AGENT, agent_id="echo", session_state={"k": 1}, metadata={"m": 2}
        )
        assert (session.session_id, session.session_name) == ("ca", "ca"), session

    async def client_create_team_session(self) -> None:
        assert (await self.create("ct", TEAM, team_id="crew")).session_id == "ct"

    async def client_create_workflow_session(self) -> None:
        assert (await self.create("cw", WORKFLOW, workflow_id="line")).session_id == "cw"

    async def client_get_sessions(self) -> None:
        page = await self.client.get_sessions(headers=self.headers)
        assert {"ca", "ct", "cw"} <= {each.session_id for each in page.data}, page
        assert page.meta.total_count >= 3, page

    async def client_get_sessions_of_a_kind(self) -> None:
        page = await self.client.get_sessions(
            TEAM, component_id="crew", sort_by="updated_at", headers=self.headers
        )
        assert {"ct", "t1"} <= {each.session_id for each in page.data}, page
        assert "ca" not in {each.session_id for each in page.data}, page

    async def client_get_many_sessions(self) -> None:
        page = await self.client.get_sessions(limit=500, headers=self.headers)
        assert "ca" in {each.session_id for each in page.data}, page

    async def client_get_agent_session(self) -> None:
        session = await self.client.get_session("a1", AGENT, headers=self.headers)
        assert [each["role"] for each in session.chat_history] == ["user", "assistant"], session
        assert session.total_tokens > 0, session

    async def client_get_team_session(self) -> None:
        session = await self.client.get_session("t1", headers=self.headers)
        assert session.team_id == "crew", session

    async def client_get_workflow_session(self) -> None:
        session = await self.client.get_session("w1", headers=self.headers)
        assert session.workflow_id == "line", session

    async def client_get_unknown_session(self) -> None:
        await self.expect(404, self.client.get_session("nothing", headers=self.headers))

    async def client_rename_session(self) -> None:
        session = await self.client.rename_session("ca", "renamed", AGENT, headers=self.headers)
        assert session.session_name == "renamed", session

    async def client_update_session_name(self) -> None:
        session = await self.client.update_session(
            "ca", AGENT, session_name="again", headers=self.headers
        )
        assert session.session_name == "again", session

    async def client_update_session_state(self) -> None:
        session = await self.client.update_session(
            "ca", AGENT, session_state={"k": 2}, headers=self.headers
        )
        assert session.session_state == {"k": 2}, session

    async def client_update_session_metadata(self) -> None:
        session = await self.client.update_session(
            "ca", AGENT, metadata={"m": 3}, headers=self.headers
        )
        assert session.metadata == {"m": 3}, session

    async def client_get_agent_session_runs(self) -> None:
        (run,) = await self.client.get_session_runs("a1", headers=self.headers)
        assert (run.run_input, run.content, run.status) == ("hello", "hello", "COMPLETED"), run

    async def client_get_team_session_runs(self) -> None:
        member, team = await self.client.get_session_runs("t1", headers=self.headers)
        assert (member.agent_id, team.team_id) == ("echo", "crew"), team
        assert (member.parent_run_id, team.parent_run_id) == (team.run_id, ""), team

    async def client_get_workflow_session_runs(self) -> None:
        (run,) = await self.client.get_session_runs("w1", headers=self.headers)
        assert [each["step_name"] for each in run.step_results] == ["first", "second"], run
        assert len(run.step_executor_runs) == 2, run

    async def client_get_recent_session_runs(self) -> None:
        later = int(time.time()) + 1_000
        runs = await self.client.get_session_runs("a1", created_after=later, headers=self.headers)
        assert runs == [], runs
        runs = await self.client.get_session_runs("a1", created_before=later, headers=self.headers)
        assert len(runs) == 1, runs

    async def client_get_session_runs_with_status(self) -> None:
        if RELEASE_3:
            get = self.client.get_session_runs
            assert await get("a1", status=["ERROR"], headers=self.headers) == []
            assert len(await get("a1", status=["ERROR", "COMPLETED"], headers=self.headers)) == 1

    async def client_get_session_run_previews(self) -> None:
        if RELEASE_3:
            previews = await self.client.aget_session_run_previews("a1", headers=self.headers)
            assert [each.content_preview for each in previews] == ["hello"], previews
            assert previews[0].run_input == "hello", previews

    async def client_get_session_run(self) -> None:
        run_id = self.kept["agent run"]
        run = await self.client.get_session_run("a1", run_id, headers=self.headers)
        assert (run.run_id, run.run_input) == (run_id, "hello"), run

    async def client_delete_session(self) -> None:
        await self.client.delete_session("ca", headers=self.headers)
        await self.expect(404, self.client.get_session("ca", headers=self.headers))

    async def client_delete_unknown_session(self) -> None:
        await self.client.delete_session("nothing", headers=self.headers)

    async def client_delete_sessions(self) -> None:
        await self.client.delete_sessions(["ct", "cw"], [TEAM, WORKFLOW], headers=self.headers)
        await self.expect(404, self.client.get_session("ct", headers=self.headers))

    # Memories

    async def create_memory(self, memory: str) -> str:
        """Create a memory of the user; return its id."""
        given = {"topics": ["drinks"], "headers": self.headers}
        created = await self.client.create_memory(memory, "user", **given)
        assert (created.memory, created.user_id) == (memory, "user"), created
        memory_id: str = created.memory_id
        return memory_id

    async def memory_create(self) -> None:
        self.kept["memory"] = await self.create_memory("Likes tea")

    async def memory_list(self) -> None:
        page = await self.client.list_memories(user_id="user", headers=self.headers)
        assert self.kept["memory"] in [each.memory_id for each in page.data], page

    async def memory_search(self) -> None:
        page = await self.client.list_memories(
            user_id="user", topics=["drinks"], search_content="tea", headers=self.headers
        )
        assert [each.memory for each in page.data] == ["Likes tea"], page

    async def memory_get(self) -> None:
        memory_id = self.kept["memory"]
        found = await self.client.get_memory(memory_id, user_id="user", headers=self.headers)
        assert (found.memory, found.topics) == ("Likes tea", ["drinks"]), found

    async def memory_update(self) -> None:
        memory_id = self.kept["memory"]
        text = "Likes coffee"
        changed = await self.client.update_memory(
            memory_id, text, "user", topics=["drinks"], headers=self.headers
        )
        assert (changed.memory, changed.topics) == (text, ["drinks"]), changed

    async def memory_topics(self) -> None:
        assert await self.client.get_memory_topics(headers=self.headers) == ["drinks"]

    async def memory_delete(self) -> None:
        memory_id = self.kept["memory"]
        await self.client.delete_memory(memory_id, user_id="user", headers=self.headers)
        await self.expect(404, self.client.get_memory(memory_id, headers=self.headers))

    async def memory_delete_unknown(self) -> None:
        await self.client.delete_memory(UNKNOWN, user_id="user", headers=self.headers)

    async def memory_delete_several(self) -> None:
        ids = [await self.create_memory(text) for text in ("One", "Two")]
        await self.client.delete_memories(ids, user_id="user", headers=self.headers)
        await self.expect(404, self.client.get_memory(ids[0], headers=self.headers))

    # What this server refuses

    async def refused_cancel_of_an_unknown_run(self) -> None:
        await self.client.cancel_agent_run("echo", UNKNOWN, headers=self.headers)

    async def refused_summary_of_a_session(self) -> None:
        summary = {"summary": "s", "topics": []}
        await self.client.update_session("a1", AGENT, summary=summary, headers=self.headers)

    async def refused_continue_of_a_run(self) -> None:
        await self.client.continue_agent_run(
            "echo", self.kept["agent run"], tools=[], session_id="a1", headers=self.headers
        )

    async def refused_changed_arguments(self) -> None:
        run = await self.pause("agent", "clerk")
        (tool,) = run.tools
        tool.confirmed = True
        tool.tool_args = {"a": 99, "b": 99}
        given = {"tools": [tool], **self.given(run)}
        await self.client.continue_agent_run("clerk", run.run_id, **given)

    async def refused_second_continue(self) -> None:
        run = await self.pause("agent", "clerk")
        (tool,) = run.tools
        tool.confirmed = True
        given = {"tools": [tool], **self.given(run)}
        await self.client.continue_agent_run("clerk", run.run_id, **given)
        await self.client.continue_agent_run("clerk", run.run_id, **given)

    async def refused_image(self) -> None:
        from agno.media import Image

        images = [Image(url="http://127.0.0.1/x.png")]
        await self.client.run_agent("echo", "x", images=images, headers=self.headers)

    async def refused_knowledge_filters(self) -> None:
        given = {"topic": "x"}
        await self.client.run_agent("echo", "x", knowledge_filters=given, headers=self.headers)

    async def refused_memory_stats(self) -> None:
        await self.client.get_user_memory_stats(headers=self.headers)

    # What this server does not have, and a server of AgentOS only with models or databases

    async def absent_optimize_memories(self) -> None:
        await self.client.optimize_memories("user", headers=self.headers)

    async def absent_migrate_database(self) -> None:
        await self.client.migrate_database("main", headers=self.headers)

    async def absent_eval_runs(self) -> None:
        await self.client.list_eval_runs(headers=self.headers)

    async def absent_knowledge(self) -> None:
        await self.client.list_knowledge_content(headers=self.headers)

    async def absent_traces(self) -> None:
        await self.client.get_traces(headers=self.headers)

    async def absent_metrics(self) -> None:
        await self.client.get_metrics(headers=self.headers)

    # Remote objects: they read their configuration without a token

    def agent(self, name: str = "echo") -> RemoteAgent:
        return RemoteAgent(base_url=self.url, agent_id=name)

    def team(self) -> RemoteTeam:
        return RemoteTeam(base_url=self.url, team_id="crew")

    def workflow(self, name: str = "line") -> RemoteWorkflow:
        return RemoteWorkflow(base_url=self.url, workflow_id=name)

    async def read(self, thing: Any, name: str) -> Any:
        """Read a property in a thread, because it makes a request."""
        return await asyncio.to_thread(getattr, thing, name)

    async def remote_agent_name(self) -> None:
        assert await self.read(self.agent(), "name") == "Echo"

    async def remote_agent_description(self) -> None:
        assert await self.read(self.agent(), "description") == "Answers as echo"

    async def remote_agent_tools(self) -> None:
        await self.read(self.agent("tool-add"), "tools")  # None on servers of AgentOS, too.

    async def remote_agent_database(self) -> None:
        database = await self.read(self.agent(), "db")
        assert (database.id, bool(database.session_table_name)) == ("main", True), database

    async def remote_agent_refresh(self) -> None:
        assert (await self.agent().refresh_config()).id == "echo"

    async def remote_agent_run(self) -> None:
        run = await self.agent().arun("hi", session_id="ra1")
        assert (run.status, run.content) == ("COMPLETED", "hi"), run

    async def remote_agent_stream(self) -> None:
        events = await self.collect(self.agent().arun("hi", stream=True, stream_events=True))
        assert events[-1].content == "hi", events

    async def remote_agent_cancel(self) -> None:
        self.root = None
        agent = self.agent("trickle")
        stream = agent.arun("x", stream=True, stream_events=True)
        names = await self.cancel(stream, agent.acancel_run)
        assert "RunCancelled" in names, names

    async def remote_agent_continue(self) -> None:
        agent = self.agent("clerk")
        run = await agent.arun('{"a": 2, "b": 3}', session_id="ra2")
        (requirement,) = run.requirements
        requirement.confirm()
        # Releases before 3.0 take the calls.
        takes_tools = "updated_tools" in inspect.signature(agent.acontinue_run).parameters
        name = "updated_tools" if takes_tools else "requirements"
        given = {name: [requirement.tool_execution if takes_tools else requirement]}
        run = await agent.acontinue_run(run.run_id, session_id="ra2", **given)
        assert (run.status, run.content) == ("COMPLETED", "5"), run

    async def remote_team_name(self) -> None:
        assert await self.read(self.team(), "name") == "Crew"

    async def remote_team_tools(self) -> None:
        await self.read(self.team(), "tools")

    async def remote_team_database(self) -> None:
        assert (await self.read(self.team(), "db")).id == "main"

    async def remote_team_refresh(self) -> None:
        assert (await self.team().refresh_config()).id == "crew"

    async def remote_team_run(self) -> None:
        run = await self.team().arun("use echo", session_id="rt1")
        assert (run.status, len(run.member_responses)) == ("COMPLETED", 1), run

    async def remote_team_stream(self) -> None:
        stream = self.team().arun("use echo", stream=True, stream_events=True)
        events = await self.collect(stream)
        assert events[-1].event == "TeamRunCompleted", events

    async def remote_team_cancel(self) -> None:
        self.root = None
        team = self.team()
        stream = team.arun("use hang", stream=True, stream_events=True)
        names = await self.cancel(stream, team.acancel_run)
        assert "TeamRunCancelled" in names, names

    async def remote_workflow_name(self) -> None:
        assert await self.read(self.workflow(), "name") == "Line"

    async def remote_workflow_database(self) -> None:
        assert (await self.read(self.workflow(), "db")).id == "main"

    async def remote_workflow_refresh(self) -> None:
        assert (await self.workflow().refresh_config()).id == "line"

    async def remote_workflow_run(self) -> None:
        run = await self.workflow().arun("use echo", session_id="rw1")
        assert (run.status, len(run.step_results)) == ("COMPLETED", 2), run

    async def remote_workflow_stream(self) -> None:
        events = await self.collect(self.workflow().arun("use echo", stream=True))
        assert events[-1].event == "WorkflowCompleted", events

    async def remote_workflow_cancel(self) -> None:
        self.root = None
        workflow = self.workflow("stuck")
        stream = workflow.arun("x", stream=True, stream_events=True)
        names = await self.cancel(stream, workflow.acancel_run)
        assert "WorkflowCancelled" in names, names


async def check_server(work: dict[str, Any]) -> dict[str, str | None]:
    """Execute the parts of the work; return the failure of each operation, or None."""
    checks = Checks(work["url"], work["token"])
    await checks.run_all(*work["parts"])
    return checks.results


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = asyncio.run(check_server(json.loads(Path(sys.argv[1]).read_text())))
    print(json.dumps(found))
