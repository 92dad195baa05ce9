"""Handoffs and delegations: the record of each call has the result that the model received."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent, serve_module

AGENTS = ("desks", "filtered_desks", "swarm", "team", "delegating")


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("handoffs")
    with serve_module(folder, model_endpoint, "handoff_agents", AGENTS) as client:
        yield client


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def list_records(client: httpx2.Client, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of a run and of all members below it."""
    below = [client.get(f"/runs/{each}").json() for each in run["member_runs"]]
    return [run, *(record for each in below for record in list_records(client, each))]


def find_sent_results(endpoint: ModelEndpoint) -> dict[str, str]:
    """Return the results of calls that the endpoint has received, by the ids of the calls."""
    return {
        message["tool_call_id"]: message["content"]
        for body in endpoint.requests("plan")
        for message in body["messages"]
        if message["role"] == "tool"
    }


def find_results(records: list[dict[str, Any]]) -> dict[str, str]:
    calls = [each for record in records for each in record["tools"]]
    assert not [each for each in calls if each["tool_call_error"]], calls
    return {each["tool_call_id"]: each["result"] for each in calls}


def check_items(client: httpx2.Client, records: list[dict[str, Any]]) -> None:
    """Check that no reader sees a call of a completed run that has not ended."""
    for record in records:
        assert record["status"] == "COMPLETED"
        shown = client.get(f"/runs/{record['run_id']}", params={"view": "items"}).json()
        calls = [item for item in shown["items"] if item["type"] == "tool_call"]
        assert {item["status"] for item in calls} <= {"done"}, calls
        spans = [span for span in record["spans"] if span["kind"] in ("tool", "member")]
        assert {span["status"] for span in spans} <= {"completed"}, spans


def build_round_trip(name: str) -> list[dict[str, Any]]:
    """Return a plan from a first desk to a second one, back, to a third one, and back again."""
    names = ("FAQ Agent", "Triage Agent", "Seat Booking Agent")
    faq, triage, seats = (f"transfer_to_{each.lower().replace(' ', '_')}" for each in names)
    if name == "swarm":
        faq = "to_questions"
        triage = "to_triage"
        seats = "to_seats"
    return [
        {"content": "One moment.", "tool_calls": [call(1, faq)]},
        {"tool_calls": [call(2, "look_up", question="bags")]},
        {"tool_calls": [call(3, triage)]},
        {"tool_calls": [call(4, seats)]},
        {"tool_calls": [call(5, "book", seat="23A")]},
        {"tool_calls": [call(6, triage)]},
        {"content": "Have a good flight."},
    ]


@pytest.mark.parametrize("name", ["desks", "swarm"])
def test_handoffs_there_and_back_have_their_results(
    client: httpx2.Client, model_endpoint: ModelEndpoint, name: str
) -> None:
    model_endpoint.forget()
    plan = build_round_trip(name)
    run = run_agent(client, name, plan)
    records = list_records(client, run)
    assert len(records) == (6 if name == "swarm" else 5)
    sent = find_sent_results(model_endpoint)
    assert find_results(records) == sent
    assert [*sent] == [f"call_{number}" for number in range(1, 7)]
    check_items(client, records)
    if name == "desks":
        assert json.loads(sent["call_3"]) == {"assistant": "Triage Agent"}
        made = [[each["tool_call_id"] for each in record["tools"]] for record in records]
        assert made == [["call_1"], ["call_2", "call_3"], ["call_4"], ["call_5", "call_6"], []]


def test_handoff_has_its_result_although_a_filter_removes_it(client: httpx2.Client) -> None:
    plan = [
        {"content": "One moment.", "tool_calls": [call(1, "transfer_to_faq_agent")]},
        {"content": "Going back.", "tool_calls": [call(2, "transfer_to_triage_agent")]},
    ]
    records = list_records(client, run_agent(client, "filtered_desks", plan))
    assert {call_id: json.loads(text) for call_id, text in find_results(records).items()} == {
        "call_1": {"assistant": "FAQ Agent"},
        "call_2": {"assistant": "Triage Agent"},
    }
    check_items(client, records)


def test_second_handoff_of_an_answer_has_the_refusal_of_the_library(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    seats = "transfer_to_seat_booking_agent"
    back = "transfer_to_triage_agent"
    plan = [
        {"tool_calls": [call(1, "transfer_to_faq_agent"), call(2, seats)]},
        {"tool_calls": [call(3, back), call(4, back)]},
        {"content": "Good bye."},
    ]
    records = list_records(client, run_agent(client, "desks", plan))
    sent = find_sent_results(model_endpoint)
    assert find_results(records) == sent
    assert "ignoring" in sent["call_2"]
    assert "ignoring" in sent["call_4"]


@pytest.mark.parametrize("name", ["team", "delegating"])
def test_delegations_have_their_results(
    client: httpx2.Client, model_endpoint: ModelEndpoint, name: str
) -> None:
    model_endpoint.forget()
    task = json.dumps([{"tool_calls": [call(2, "book", seat="7C")]}, {"content": "7C it is"}])
    ask = call(1, "ask_seats", task=task)
    if name == "team":
        ask = call(1, "delegate_task_to_member", member_id="seats", task=task)
    plan = [{"tool_calls": [ask]}, {"content": "Done."}]
    records = list_records(client, run_agent(client, name, plan))
    sent = find_sent_results(model_endpoint)
    results = find_results(records)
    assert results == {call_id: sent[call_id] for call_id in results}
    assert "7C it is" in results["call_1"]
    check_items(client, records)
