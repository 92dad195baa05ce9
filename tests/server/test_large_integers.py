"""Integers of more than 64 bits in the arguments of tool calls, such as amounts in wei."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.kit.command import run_command
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.agents_in_code import run_agent

LARGEST = 2**64 - 1
"""The largest integer of 64 bits."""

WEI = 115_792_089_237_316_195_423_570_985_008_687_907_853

SENTENCE = "holds an integer of more than 64 bits; send it as a text"

MODULE = '''
from pathlib import Path
from typing import Any

from agents import Agent as OpenAIAgent
from agents import function_tool
from agno.agent import Agent as AgnoAgent
from langchain.agents import create_agent
from pydantic_ai import Agent as PydanticAgent

from agentctl import agno, langchain, openai_agents, pydantic_ai


def pay(amount: int, note: Any = None) -> str:
    """Pay an amount."""
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write(f"{amount!r}\\\\n")
    return f"paid {amount}"


langgraph = create_agent(langchain.ChatModel(model="plan"), [pay])
pydantic_ai_agent = PydanticAgent(pydantic_ai.Model("plan"), tools=[pay])
agno_agent = AgnoAgent(model=agno.Model(id="plan"), tools=[pay], telemetry=False)
openai_agent = OpenAIAgent(
    name="payer", model=openai_agents.Model("plan"), tools=[function_tool(pay)]
)
'''.replace("\\\\", "\\")

LIBRARIES = ("langgraph", "pydantic_ai_agent", "agno_agent", "openai_agent")

CONFIG = """
[openai]
enabled = true

[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[models]]
id = "sent"
provider = "openai"
model = "history"
base_url = "{url}"

[[agents]]
id = "payer"
model = "plan"
tools = ["wallet:pay"]

[[agents]]
id = "asker"
model = "plan"
tools = ["wallet:pay"]
approve = {{ pay = "user" }}

[[agents]]
id = "sent"
model = "sent"
"""


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Deployment:
    folder = tmp_path_factory.mktemp("wallet")
    (folder / "wallet.py").write_text(MODULE)
    extra = CONFIG.format(url=model_endpoint.base_url) + "".join(
        f'\n[[agents]]\nid = "{name}"\nobject = "wallet:{name}"\n' for name in LIBRARIES
    )
    return create_deployment(folder, model_endpoint.base_url, extra=extra)


@pytest.fixture(scope="module")
def host(deployment: Deployment) -> Iterator[ThreadedServer]:
    with serve_in_thread(deployment) as host:
        yield host


@pytest.fixture
def client(host: ThreadedServer, model_endpoint: ModelEndpoint) -> Iterator[httpx2.Client]:
    model_endpoint.forget()
    (host.deployment.folder / "ledger").write_text("")
    with host.deployment.client(host.url) as client:
        yield client


def read_ledger(host: ThreadedServer) -> list[str]:
    return (host.deployment.folder / "ledger").read_text().split()


def call_pay(arguments: str) -> list[dict[str, Any]]:
    """Return the plan of a model that calls `pay` once."""
    function = {"name": "pay", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    return [{"tool_calls": [call]}, {"content": "done"}]


def read_sent_arguments(endpoint: ModelEndpoint) -> str:
    """Return the arguments of the call that the last request of the model repeats."""
    messages = endpoint.requests("plan")[-1]["messages"]
    (answer,) = [each for each in messages if each["role"] == "assistant"]
    return str(answer["tool_calls"][0]["function"]["arguments"])


@pytest.mark.parametrize("agent", ["payer", "asker"])
@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (f'{{"amount": {WEI}}}', "amount"),
        (f'{{"amount": {LARGEST + 1}}}', "amount"),
        (f'{{"amount": 1, "note": [{{"limit": {-WEI}}}]}}', "note"),
    ],
)
def test_call_with_a_larger_integer_is_not_made_and_stays_as_it_was_sent(
    host: ThreadedServer,
    client: httpx2.Client,
    model_endpoint: ModelEndpoint,
    agent: str,
    arguments: str,
    name: str,
) -> None:
    record = run_agent(client, agent, call_pay(arguments))
    assert (record["status"], record["content"]) == ("COMPLETED", "done"), record
    (tool,) = record["tools"]
    assert tool["tool_args"] == {"INVALID_JSON": arguments}
    assert tool["result"] == f'The call was not made: the argument "{name}" {SENTENCE}'
    assert tool["tool_call_error"] is True
    assert read_sent_arguments(model_endpoint) == arguments
    assert read_ledger(host) == []


def test_text_in_place_of_a_larger_integer_is_taken(
    host: ThreadedServer, client: httpx2.Client
) -> None:
    record = run_agent(client, "payer", call_pay(f'{{"amount": "{WEI}"}}'))
    assert record["tools"][0]["result"] == f"paid {WEI}"
    assert read_ledger(host) == [str(WEI)]


def test_largest_integer_is_kept_exactly(
    host: ThreadedServer, client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    record = run_agent(client, "payer", call_pay(f'{{"amount": {LARGEST}}}'))
    (tool,) = record["tools"]
    assert tool["tool_args"] == {"amount": LARGEST}
    assert json.loads(read_sent_arguments(model_endpoint)) == {"amount": LARGEST}
    assert read_ledger(host) == [str(LARGEST)]


def pause(client: httpx2.Client) -> dict[str, Any]:
    """Run the agent until its call waits for a decision; return the approval."""
    record = run_agent(client, "asker", call_pay('{"amount": 1}'))
    assert record["status"] == "PAUSED", record
    approval: dict[str, Any] = record["approvals"][0]
    return approval


def decide(client: httpx2.Client, approval: dict[str, Any], amount: int) -> httpx2.Response:
    body = {
        "decision": "approve",
        "arguments_hash": approval["arguments_hash"],
        "arguments": {"amount": amount},
    }
    path = f"/agents/asker/approvals/{approval['approval_id']}/decide"
    return client.post(path, json=body)


def test_edit_has_the_bound_of_a_call(host: ThreadedServer, client: httpx2.Client) -> None:
    approval = pause(client)
    refused = decide(client, approval, LARGEST + 1)
    assert refused.status_code == 422
    assert SENTENCE in refused.json()["detail"]

    assert decide(client, approval, LARGEST).status_code == 200
    path = f"/runs/{approval['run_id']}"
    wait_for(lambda: client.get(path).json()["status"] == "COMPLETED")
    assert client.get(path).json()["tools"][0]["tool_args"] == {"amount": LARGEST}
    assert read_ledger(host) == [str(LARGEST)]


def test_command_refuses_an_edit_with_the_same_sentence(
    host: ThreadedServer, client: httpx2.Client
) -> None:
    approval = pause(client)
    token = host.deployment.token("me", "agent_os:admin")
    for place in ([], ["--url", host.url]):
        command = ["approvals", "approve", approval["approval_id"], "--yes", *place]
        ended = run_command(
            *command,
            "--arguments",
            json.dumps({"amount": WEI}),
            environment={"AGENTCTL_TOKEN": token, "AGENTCTL_CONFIG": str(host.deployment.path)},
            folder=host.deployment.folder,
        )
        assert ended.code != 0
        assert SENTENCE in ended.stderr
    assert read_ledger(host) == []


@pytest.mark.parametrize("agent", LIBRARIES)
def test_code_gets_the_exact_integer_and_its_record_the_digits(
    host: ThreadedServer, client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str
) -> None:
    record = run_agent(client, agent, call_pay(f'{{"amount": {WEI}}}'))
    assert (record["status"], record["content"]) == ("COMPLETED", "done"), record
    assert read_ledger(host) == [str(WEI)]
    assert record["tools"][0]["tool_args"]["amount"] == str(WEI)
    assert json.loads(read_sent_arguments(model_endpoint)) == {"amount": WEI}


def test_history_of_a_request_is_sent_as_it_came(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    arguments = f'{{"amount": {WEI}}}'
    function = {"name": "pay", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function}
    messages = [
        {"role": "user", "content": "pay"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "paid"},
        {"role": "user", "content": "thanks"},
    ]
    answer = client.post("/v1/chat/completions", json={"model": "sent", "messages": messages})
    assert answer.status_code == 200, answer.text
    sent = model_endpoint.requests("history")[-1]["messages"]
    (repeated,) = [each for each in sent if each["role"] == "assistant"]
    assert repeated["tool_calls"][0]["function"]["arguments"] == arguments
