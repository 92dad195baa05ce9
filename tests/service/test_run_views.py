"""The forms of runs in responses: summaries, cut texts, and parts of a session."""

from __future__ import annotations

from typing import Any

from agentctl.interface.requests import RunFilter, RunRequest, RunView, SessionRunsQuery
from tests.kit.deployment import Deployment
from tests.service.callers import open_service, user

SUMMARY = RunView("summary")


async def test_summaries_parts_and_cuts(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        port = user(service)

        async def run(kind: Any, component_id: str, message: str, session: str) -> dict[str, Any]:
            request = RunRequest(message, session_id=session)
            return dict((await port.runs.create(kind, component_id, request)).value)

        long = f"one two {'x' * 300}"
        first = await run("team", "desk", long, "t1")
        second = await run("team", "desk", "again", "t1")
        tool = await run("agent", "tool-add", '{"a": 1, "b": 2}', "a1")

        page: Any = (await port.runs.list(RunFilter(form=SUMMARY))).value["data"]
        found = {each["run_id"]: each for each in page}
        assert len(found) == 5
        team = found[first["run_id"]]
        assert team["input"] == f"{long[:199]}…"
        assert (team["member_count"], team["tool_calls"]) == (1, 1)
        calls = [span["first_token_at"] for span in first["spans"] if span["kind"] == "model"]
        assert team["first_token_at"] == min(calls)
        own = first["metrics"]["total_tokens"]
        member = found[first["member_runs"][0]]
        assert team["total_tokens"] == own + member["total_tokens"] > own
        assert {"content", "messages", "tools", "spans"} & team.keys() == set()
        one = (await port.runs.get(first["run_id"], form=SUMMARY)).value
        assert one == team

        async def ids(**query: Any) -> list[str]:
            runs = (await port.sessions.list_runs("t1", SessionRunsQuery(**query))).value
            return [each["run_id"] for each in runs]

        newest = [second["run_id"], first["run_id"]]
        assert await ids(parent="none", order="desc") == newest
        assert await ids(parent="none", order="desc", before=second["run_id"]) == newest[1:]
        assert await ids(parent="none", order="desc", limit=1) == newest[:1]
        assert len(await ids()) == 4

        prefix = first["run_id"][:23]
        filtered = (await port.runs.list(RunFilter(id_prefix=prefix))).value["data"]
        assert {each["run_id"] for each in filtered} == {
            run_id for run_id in found if run_id.startswith(prefix)
        }

        cut: Any = (await port.runs.get(tool["run_id"], form=RunView(cut=5))).value
        question = next(each for each in cut["messages"] if each["role"] == "user")
        assert question["content"] == '{"a":'
        assert question["truncated"] == {"characters": 16}
        assert cut["tools"] == tool["tools"]
        call = tool["tools"][0]
        whole = port.runs.get_tool_call("agent", "tool-add", tool["run_id"], call["tool_call_id"])
        assert (await whole).value == call
