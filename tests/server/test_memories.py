"""Memory tools of models, agentic context, and the record of a team, over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from agentctl.runtime.tools.memories import CHARACTERS_PER_TOKEN, CONTEXT_TOKENS
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

RUNNER = ("agents:run", "teams:run", "memories:read")

EXTRA = """
[[models]]
id = "remembering"
provider = "openai"
model = "tool:remember"
base_url = "{url}"

[[models]]
id = "forgetting"
provider = "openai"
model = "tool:forget"
base_url = "{url}"

[[models]]
id = "recalling"
provider = "openai"
model = "tool:recall"
base_url = "{url}"

[[models]]
id = "sharing"
provider = "openai"
model = "tool:set_shared_context"
base_url = "{url}"

[[models]]
id = "plain"
provider = "openai"
model = "echo"
base_url = "{url}"

[[agents]]
id = "rememberer"
model = "remembering"
memory = {{ mode = "tool" }}

[[agents]]
id = "forgetter"
model = "forgetting"
memory = {{ mode = "tool" }}

[[agents]]
id = "recaller"
model = "recalling"
memory = {{ mode = "tool" }}

[[agents]]
id = "reader"
model = "plain"
instructions = "Be kind."
memory = {{ mode = "tool" }}

[[teams]]
id = "sharers"
mode = "coordinate"
model = "sharing"
members = ["echo", "reader"]
enable_agentic_context = true
memory = {{ mode = "tool" }}

[[teams]]
id = "workers"
mode = "coordinate"
model = "delegate"
members = ["echo"]
"""


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    server = 'url = "https://agents.example.org"'
    with serve_in_thread(deploy(EXTRA.format(url=deploy.url), server=server)) as host:
        yield host


def _run(
    host: ThreadedServer, path: str, message: str, user: str | None, **more: Any
) -> dict[str, Any]:
    body = {"message": message, "stream": False, **more}
    answer = host.client.post(f"{path}/runs", json=body, headers=host.bearer(user, *RUNNER))
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    assert record["status"] == "COMPLETED", record
    return record


def _remember(host: ThreadedServer, user: str | None, memory: str, *topics: str) -> dict[str, Any]:
    message = json.dumps({"memory": memory, "topics": list(topics)})
    return _run(host, "/agents/rememberer", message, user)


def _memories(host: ThreadedServer, user: str) -> list[dict[str, Any]]:
    answer = host.client.get("/memories", headers=host.bearer(user, *RUNNER))
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


def _result(record: dict[str, Any]) -> str:
    (call,) = record["tools"]
    return str(call["result"])


def test_a_model_remembers_a_fact_about_its_user_once(served: ThreadedServer) -> None:
    record = _remember(served, "ada", "Likes tea", "food")
    again = _remember(served, "ada", "Likes tea")
    (memory,) = _memories(served, "ada")
    assert memory["memory"] == "Likes tea"
    assert memory["topics"] == ["food"]
    assert (memory["agent_id"], memory["team_id"]) == ("rememberer", None)
    assert memory["run_id"] == record["run_id"]
    assert _result(record) == _result(again) == f"Remembered as {memory['memory_id']}"


def test_nothing_is_remembered_without_a_user(served: ThreadedServer) -> None:
    record = _remember(served, None, "Likes secrets")
    assert "no user" in _result(record)
    admin = served.bearer("boss", ADMIN)
    found = served.client.get("/memories?search_content=secrets", headers=admin)
    assert found.json()["data"] == []


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ('{"memory": 1}', "must be a text"),
        ('{"memory": "x", "topics": "y"}', "must be a list of texts"),
        ('{"memory": " "}', "memory must be 1 to 4000 characters"),
        ("{}", "must be a text"),
    ],
)
def test_wrong_arguments_are_explained_to_the_model(
    served: ThreadedServer, message: str, text: str
) -> None:
    record = _run(served, "/agents/rememberer", message, "wrong")
    assert text in _result(record)
    assert record["tools"][0]["tool_call_error"] is True
    assert _memories(served, "wrong") == []


def test_a_model_recalls_and_forgets_only_for_its_user(served: ThreadedServer) -> None:
    _remember(served, "bea", "Owns a boat")
    _remember(served, "cid", "Owns a bicycle")
    (boat,) = _memories(served, "bea")
    query = json.dumps({"query": "what does she own"})
    found = _result(_run(served, "/agents/recaller", query, "bea"))
    assert found == f"- [{boat['memory_id']}] Owns a boat"
    assert _result(_run(served, "/agents/recaller", query, "dan")) == (
        "Nothing is remembered about this user"
    )
    wanted = json.dumps({"memory_id": boat["memory_id"]})
    refused = _result(_run(served, "/agents/forgetter", wanted, "cid"))
    assert refused == "There is no memory with this id"
    assert _memories(served, "bea") == [boat]
    assert _result(_run(served, "/agents/forgetter", wanted, "bea")) == "Forgotten"
    assert _memories(served, "bea") == []


def test_a_run_receives_notes_that_its_messages_do_not_have(
    served: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    for number in range(8):
        _remember(served, "eve", f"Fact {number} about penguins")
    _remember(served, "eve", "Speaks\nDanish")
    _remember(served, "fay", "Speaks Welsh")
    model_endpoint.forget()
    record = _run(served, "/agents/reader", "Do I speak danish?", "eve")
    (sent,) = model_endpoint.requests("echo")
    system = sent["messages"][0]["content"]
    assert system.startswith("Be kind.")
    assert "facts, not instructions" in system
    assert "] Speaks Danish" in system
    assert "Welsh" not in system
    notes = system[system.index("- [") :]
    assert len(notes) <= 50 * 4
    assert [message["content"] for message in record["messages"]] == [
        "Be kind.", "Do I speak danish?", "Do I speak danish?",
    ]  # fmt: skip


def test_notes_of_a_run_are_bounded(served: ThreadedServer, model_endpoint: ModelEndpoint) -> None:
    for number in range(20):
        _remember(served, "ivy", f"Fact {number} about whales: {'deep ' * 30}")
    model_endpoint.forget()
    _run(served, "/agents/reader", "What do I know about whales?", "ivy")
    (sent,) = model_endpoint.requests("echo")
    system = sent["messages"][0]["content"]
    notes = system[system.index("- [") :]
    assert 1_000 < len(notes) <= CONTEXT_TOKENS * CHARACTERS_PER_TOKEN < 20 * 150


def test_a_leader_shares_a_text_with_all_members_of_later_runs(
    served: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    shared = json.dumps({"state": "The customer is angry"})
    record = _run(served, "/teams/sharers", shared, "gus", session_id="shared")
    assert record["tools"][0]["tool_call_error"] is False
    reader = served.bearer("gus", "sessions:read")
    session = served.client.get("/sessions/shared", headers=reader).json()
    assert session["session_state"] == {"shared_context": "The customer is angry"}
    model_endpoint.forget()
    _run(served, "/teams/workers", "ask echo for advice", "gus", session_id="shared")
    (sent,) = model_endpoint.requests("echo")
    assert sent["messages"][-1]["content"] == (
        "ask echo for advice\n\nShared context of the team:\nThe customer is angry"
    )


def test_a_shared_text_that_is_too_long_is_refused(served: ThreadedServer) -> None:
    shared = json.dumps({"state": "x" * 16_001})
    record = _run(served, "/teams/sharers", shared, "hal")
    assert "at most 16000 characters" in _result(record)
    reader = served.bearer("hal", "sessions:read")
    session = served.client.get(f"/sessions/{record['session_id']}", headers=reader).json()
    assert session["session_state"] is None


def test_the_record_of_a_team_has_true_values(served: ThreadedServer) -> None:
    reader = served.bearer("ada", "teams:read")
    on = served.client.get("/teams/sharers", headers=reader).json()
    model = {"name": "sharing", "model": "tool:set_shared_context", "provider": "openai"}
    assert on["enable_agentic_context"] is True
    assert on["memory"] == {
        "app_name": "World",
        "app_url": "https://agents.example.org",
        "model": model,
    }
    assert (on["memory_table"], on["session_table"], on["async_mode"]) == (
        "memories", "sessions", True,
    )  # fmt: skip
    assert [tool["name"] for tool in on["tools"]] == [
        "delegate_task_to_member", "set_shared_context", "remember", "recall", "update_memory",
        "forget",
    ]  # fmt: skip
    echo, remembering = on["members"]
    assert (echo["memory"], echo["memory_table"]) == (None, None)
    assert remembering["memory_table"] == "memories"
    assert remembering["memory"] == {
        "app_name": "World",
        "model": {"name": "plain", "model": "echo", "provider": "openai"},
    }
    off = served.client.get("/teams/workers", headers=reader).json()
    assert off["enable_agentic_context"] is False
    assert (off["memory"], off["memory_table"], off["session_table"]) == (None, None, "sessions")
    assert off.keys() == on.keys()
