"""The requests in the log of the model endpoint, compared with those that the records say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx2

from agentctl.interface.operations import Operations
from agentctl.interface.requests import MAXIMUM_LIMIT, SUMMARY_VIEW, Page, RunFilter
from tests.kit.model import ModelEndpoint


def describe_sent(model: str, messages: list[dict[str, Any]]) -> str:
    """Return a request of the log as text."""
    return json.dumps([model, [_normalize(message) for message in messages]])


def _normalize(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = [
        [call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])]
        for call in message.get("tool_calls") or ()
    ]
    return _build(message, calls)


def _build(message: Mapping[str, Any], calls: list[list[Any]]) -> dict[str, Any]:
    return {
        "role": message["role"],
        "content": message["content"] or "",
        "tool_calls": calls,
        "tool_call_id": message.get("tool_call_id"),
    }


def describe_record(call: Mapping[str, Any]) -> str:
    """Return the request of a record as text."""
    messages = [
        _build(
            message,
            [
                [made["id"], made["name"], made["arguments"]]
                for made in message.get("tool_calls", ())
            ],
        )
        for message in call["messages"]
    ]
    return json.dumps([call["requested_model"], messages])


async def read_calls(operations: Operations, run_id: str) -> list[dict[str, Any]]:
    """Return the model calls of a run with their messages."""
    ids = list[str]()
    after = None
    while page := (await operations.runs.list_model_calls(run_id, after=after)).value[
        "model_calls"
    ]:
        ids += [call["id"] for call in page]
        after = ids[-1]
    return [dict((await operations.runs.get_model_call(run_id, each)).value) for each in ids]


async def read_runs(operations: Operations) -> list[dict[str, Any]]:
    """Return all runs, those of members included."""
    runs = list[dict[str, Any]]()
    page = Page(MAXIMUM_LIMIT)
    while True:
        found = (await operations.runs.list(RunFilter(page=page, form=SUMMARY_VIEW))).value
        runs += found["data"]
        if (cursor := found["meta"]["next_cursor"]) is None:
            return runs
        page = Page(MAXIMUM_LIMIT, cursor=cursor)


def compare_over_http(
    client: httpx2.Client, run_id: str, endpoint: ModelEndpoint
) -> tuple[Counter[str], Counter[str]]:
    """Return the requests in the records of a run and of those below it, and those of the log."""
    said = Counter[str]()
    runs = [run_id]
    for each in runs:
        for call in client.get(f"/runs/{each}/model-calls").json()["model_calls"]:
            found = client.get(f"/runs/{each}/model-calls/{call['id']}").json()
            assert found["state"] == "complete", found
            said[describe_record(found)] += 1
        runs += client.get(f"/runs/{each}").json()["member_runs"]
    return said, count_sent(endpoint)


def count_sent(endpoint: ModelEndpoint) -> Counter[str]:
    return Counter(describe_sent(body["model"], body["messages"]) for body in endpoint.requests())


async def compare(operations: Operations, endpoint: ModelEndpoint) -> Counter[str]:
    """Compare all records with the log; return the number of calls by their status.

    Each request of the log is that of one recorded call, word for word, and each call was sent.
    """
    statuses = Counter[str]()
    said = Counter[str]()
    for run in await read_runs(operations):
        for call in await read_calls(operations, run["run_id"]):
            assert call["state"] == "complete", (run["run_id"], call)
            assert call["message_count"] == len(call["messages"])
            statuses[call["status"]] += 1
            said[describe_record(call)] += 1
    sent = count_sent(endpoint)
    assert not said - sent, f"the records say what was not sent: {said - sent}"
    assert not sent - said, f"the records lack what was sent: {sent - said}"
    return statuses
