"""The messages that a library has written, for the agents that an asynchronous factory makes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread
from tests.server.agents_in_code import run_agent

LIBRARIES = {"openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai"}
"""The libraries whose own messages are kept, and the kinds for which they are."""

MODULE = """
from agents import Agent as OpenAIAgent
from pydantic_ai import Agent as PydanticAgent

from agentctl import openai_agents, pydantic_ai


def openai_agents_now():
    return OpenAIAgent(name="helper", model=openai_agents.Model("history"))


def pydantic_ai_now():
    return PydanticAgent(pydantic_ai.Model("history"))


async def openai_agents_later():
    return openai_agents_now()


async def pydantic_ai_later():
    return pydantic_ai_now()


async def openai_agents_failing():
    raise ConnectionError("no such place")
"""

AGENT = '\n[[agents]]\nid = "late"\nobject = "late_agents:{name}"\n'

WRITTEN = "hello, as the library wrote it"
"""A text that the neutral messages do not have: it shows which ones are used."""


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    (tmp_path / "late_agents.py").write_text(MODULE)
    model_endpoint.forget()
    return create_deployment(tmp_path, model_endpoint.base_url)


@contextmanager
def serve(deployment: Deployment, name: str) -> Iterator[httpx2.Client]:
    """Run a new server whose agent `late` is the object `name`."""
    config = deployment.path.read_text().partition("\n# late")[0]
    deployment.path.write_text(f"{config}\n# late{AGENT.format(name=name)}")
    with serve_in_thread(deployment) as host, deployment.client(host.url) as client:
        yield client


def begin_session(deployment: Deployment, name: str) -> str:
    with serve(deployment, name) as client:
        record = run_agent(client, "late", "hello")
    assert record["status"] == "COMPLETED", record
    return str(record["session_id"])


def change_runs(deployment: Deployment, assignment: str) -> None:
    """Change the stored runs while no server uses the database."""
    with closing(sqlite3.connect(deployment.folder / "main.db")) as database, database:
        database.execute(f"UPDATE runs SET {assignment}")


def continue_session(
    deployment: Deployment, endpoint: ModelEndpoint, name: str, session_id: str
) -> list[str]:
    """Run the agent again; return the messages of the user that its model gets."""
    with serve(deployment, name) as client:
        record = run_agent(client, "late", "again", session_id=session_id)
    assert record["status"] == "COMPLETED", record
    messages: list[dict[str, Any]] = endpoint.requests("history")[-1]["messages"]
    return [read_text(each) for each in messages if each["role"] == "user"]


def read_text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("library", LIBRARIES)
def test_messages_of_a_factory_have_the_kind_of_their_library(
    deployment: Deployment, model_endpoint: ModelEndpoint, library: str
) -> None:
    session_id = begin_session(deployment, f"{library}_later")
    change_runs(deployment, f"native_history = replace(native_history, 'hello', '{WRITTEN}')")

    # The object itself, without a factory, goes on with them.
    texts = continue_session(deployment, model_endpoint, f"{library}_now", session_id)
    assert texts == [WRITTEN, "again"]

    # So does the factory of a new server, which has not made its object yet.
    later = continue_session(deployment, model_endpoint, f"{library}_later", session_id)
    assert later == [WRITTEN, "again", "again"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_messages_that_were_kept_for_factories_are_read(
    deployment: Deployment, model_endpoint: ModelEndpoint, library: str
) -> None:
    session_id = begin_session(deployment, f"{library}_later")
    change_runs(
        deployment,
        f"native_kind = 'factory', native_history = replace(native_history, 'hello', '{WRITTEN}')",
    )
    texts = continue_session(deployment, model_endpoint, f"{library}_later", session_id)
    assert texts == [WRITTEN, "again"]


def test_messages_of_another_library_are_not_taken(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    session_id = begin_session(deployment, "openai_agents_later")
    change_runs(deployment, f"native_history = replace(native_history, 'hello', '{WRITTEN}')")
    with serve(deployment, "pydantic_ai_later") as client:
        record = run_agent(client, "late", "again", session_id=session_id)
    assert record["status"] == "COMPLETED", record
    assert "damaged_native" not in json.dumps(record)

    sent = json.dumps(model_endpoint.requests("history")[-1]["messages"])
    assert "hello" in sent
    assert WRITTEN not in sent


def test_factory_that_fails_keeps_the_message_in_the_session(deployment: Deployment) -> None:
    session_id = begin_session(deployment, "openai_agents_later")
    with serve(deployment, "openai_agents_failing") as client:
        record = run_agent(client, "late", "again", session_id=session_id)
        history = client.get(f"/sessions/{session_id}").json()["chat_history"]
    assert record["error"]["detail"] == "The factory of the agent failed"
    assert [each["content"] for each in history if each["role"] == "user"] == ["hello", "again"]
