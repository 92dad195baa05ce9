"""Programs that speak OpenAI's API, unchanged, on the default configuration (docs/openai.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from compat.openai_suite import PROGRAMS, Host, read_results, serve
from compat.openai_table import DECIDED, NAMED, SHOWN
from tests.kit.model import ModelEndpoint

EVERY = os.environ.get("AGENTCTL_TEST_PEERS") == "1"

FEW = ["open-webui"]
"""The programs that need no packages; `make compat` runs all."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Host]:
    with serve(tmp_path_factory.mktemp("openai-programs"), model_endpoint.base_url) as served:
        yield served


@pytest.mark.parametrize("program", PROGRAMS if EVERY else FEW)
def test_program_has_the_stored_results(host: Host, program: str) -> None:
    if not PROGRAMS[program].is_installed:
        pytest.skip(f"needs the packages of {program}: make compat")
    found = host.run(program)
    stored = read_results()[program]
    different = {
        operation: (outcome, stored.get(operation, "not stored"))
        for operation, outcome in found.items()
        if outcome.outcome != stored.get(operation)
    }
    assert not different, "if this is intended, run: python -m compat.openai_suite"
    assert list(found) == list(stored)


@pytest.fixture(scope="module")
def client(host: Host) -> Iterator[openai.OpenAI]:
    key = host.deployment.token("ada", "agents:run")
    with openai.OpenAI(base_url=f"{host.url}/v1", api_key=key, max_retries=0) as client:
        yield client


def hand_off(call_id: str) -> list[Any]:
    """Return the messages with which a library gives a conversation to another agent."""
    function = {"name": "transfer_to_echo", "arguments": "{}"}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "over to you"},
    ]


def test_results_for_another_agent_are_its_history(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "function": {"name": "transfer_to_echo"}}
    messages = hand_off("call_of_another_provider")
    asked = client.chat.completions.create(
        model="triage", messages=messages[:1], tools=[tool]
    ).choices[0]
    assert asked.message.tool_calls is not None
    for call_id in (asked.message.tool_calls[0].id, "call_of_another_provider"):
        answer = client.chat.completions.create(model="history", messages=hand_off(call_id))
        seen = json.loads(answer.choices[0].message.content or "")
        assert [role for role, _ in seen if role != "system"] == [
            "user", "assistant", "tool", "user",
        ]  # fmt: skip
        assert ["tool", "over to you"] in seen
    with pytest.raises(openai.BadRequestError, match="no call with this id"):
        client.chat.completions.create(model="history", messages=messages[2:])


def test_answers_are_sent_back_with_members_of_libraries(client: openai.OpenAI) -> None:
    answer: Any = {"role": "assistant", "content": "hi", "provider_specific_fields": {"a": None}}
    question: Any = {"role": "user", "content": "hello"}
    sent = client.chat.completions.create(model="echo", messages=[question, answer, question])
    assert sent.choices[0].message.content == "hello"
    with pytest.raises(openai.BadRequestError, match="leave it out"):
        client.chat.completions.create(model="echo", messages=[{**question, "colour": "red"}])


def test_no_program_is_refused_at_its_first_message() -> None:
    results = read_results()
    assert len(results) >= 40
    for name, found in results.items():
        first = NAMED.get(name, SHOWN)[0]
        assert found[first] == "right", name


def test_every_refusal_is_decided() -> None:
    results = read_results()
    assert results.keys() == PROGRAMS.keys()
    refused = {
        name: {operation for operation, outcome in found.items() if outcome == "refused"}
        for name, found in results.items()
    }
    assert {name: found for name, found in refused.items() if found} == {
        name: set(reasons) for name, reasons in DECIDED.items()
    }
    assert {outcome for found in results.values() for outcome in found.values()} <= {
        "right", "due", "refused",
    }  # fmt: skip
