"""The forms of runs in responses: summaries, cut texts, and parts of a session."""

from __future__ import annotations

from typing import Any

from agentctl.interface.requests import RunFilter, RunRequest, RunView, SessionRunsQuery
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import Service
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user

SUMMARY = RunView("summary")


async def run(
    service: Service, kind: ComponentKind, component_id: str, message: str, session_id: str
) -> dict[str, Any]:
    """Execute a run and return its record."""
    request = RunRequest(message, session_id=session_id)
    return dict((await user(service).runs.create(kind, component_id, request)).value)


async def test_summary_has_counts_instead_of_texts(deployment: Deployment) -> None:
    long_message = f"one two {'x' * 300}"
    async with open_service(deployment) as service:
        record = await run(service, "team", "desk", long_message, "t1")
        listed: Any = (await user(service).runs.list(RunFilter(form=SUMMARY))).value["data"]
        single = (await user(service).runs.get(record["run_id"], form=SUMMARY)).value

    summaries = {summary["run_id"]: summary for summary in listed}
    team = summaries[record["run_id"]]
    assert single == team
    assert not {"content", "messages", "tools", "spans"} & team.keys()
    assert team["input"] == f"{long_message[:199]}…"
    assert (team["member_count"], team["tool_calls"]) == (1, 1)

    first_tokens = [span["first_token_at"] for span in record["spans"] if span["kind"] == "model"]
    assert team["first_token_at"] == min(first_tokens)

    # The tokens of a team are its own and those of its members.
    own_tokens = record["metrics"]["total_tokens"]
    member = summaries[record["member_runs"][0]]
    assert team["total_tokens"] == own_tokens + member["total_tokens"] > own_tokens


async def test_runs_of_a_session_are_listed_in_parts(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        older, newer = [
            (await run(service, "team", "desk", message, "t1"))["run_id"]
            for message in ("first", "again")
        ]

        async def list_ids(**query: Any) -> list[str]:
            document = await user(service).sessions.list_runs("t1", SessionRunsQuery(**query))
            return [row["run_id"] for row in document.value]

        # Two runs of the team, and one of its member in each.
        assert len(await list_ids()) == 4
        assert await list_ids(parent="none", order="desc") == [newer, older]
        assert await list_ids(parent="none", order="desc", before=newer) == [older]
        assert await list_ids(parent="none", order="desc", limit=1) == [newer]


async def test_runs_are_found_by_the_beginning_of_their_id(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        for message in ("first", "again"):
            record = await run(service, "team", "desk", message, "t1")
        whole: Any = (await user(service).runs.list(RunFilter(form=SUMMARY))).value["data"]
        prefix = record["run_id"][:23]
        filtered: Any = (await user(service).runs.list(RunFilter(id_prefix=prefix))).value["data"]

    # The ids of runs of one moment may begin alike.
    run_ids = {row["run_id"] for row in whole}
    assert len(run_ids) == 4
    expected = {run_id for run_id in run_ids if run_id.startswith(prefix)}
    assert {row["run_id"] for row in filtered} == expected


async def test_cut_run_has_short_messages_and_whole_tool_calls(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        port = user(service)
        whole = await run(service, "agent", "tool-add", '{"a": 1, "b": 2}', "a1")
        cut: Any = (await port.runs.get(whole["run_id"], form=RunView(cut=5))).value
        (call,) = whole["tools"]
        single_call = await port.runs.get_tool_call(
            "agent", "tool-add", whole["run_id"], call["tool_call_id"]
        )

    (question,) = [message for message in cut["messages"] if message["role"] == "user"]
    assert question["content"] == '{"a":'
    assert question["truncated"] == {"characters": 16}

    assert cut["tools"] == whole["tools"]
    assert single_call.value == call
