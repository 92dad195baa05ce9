"""Quotas of a user, over every interface that adds data, on both engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.kit.command import run_command
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.engines import Engine
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

SCOPES = (
    "agents:run", "sessions:read", "sessions:write", "sessions:delete",
    "memories:read", "memories:write", "memories:delete",
)  # fmt: skip

EXTRA = """
[quotas]
sessions_per_user = 3
memories_per_user = 3
bytes_per_user = 60_000

[openai]
enabled = true

[[models]]
id = "remembering"
provider = "openai"
model = "tool:remember"
base_url = "{url}"

[[agents]]
id = "rememberer"
model = "remembering"
memory = {{ mode = "tool" }}

[[agents]]
id = "saver"
object = "saving:save_four"
"""

SAVING = """
async def save_four(message, context):
    saved = 0
    try:
        while saved < 4:
            await context.save_file(f"{saved}.txt", b"x" * 25_000)
            saved += 1
    except Exception as error:
        return f"{saved} saved: {error}"
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def limited(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
) -> Iterator[ThreadedServer]:
    named = request.param == "postgres"
    engine = Engine(request.getfixturevalue("postgres_url") if named else None)
    url = model_endpoint.base_url
    with engine.databases() as databases:
        folder = tmp_path_factory.mktemp("quotas")
        (folder / "saving.py").write_text(SAVING)
        deployment = create_deployment(
            folder,
            url,
            extra=EXTRA.format(url=url),
            server='compatibility = "agentos"',
            databases=databases,
        )
        with serve_in_thread(deployment) as host:
            yield host


def create_session(limited: ThreadedServer, user: str, **fields: Any) -> Any:
    headers = limited.bearer(user, *SCOPES)
    return limited.client.post("/sessions?type=agent", json=fields, headers=headers)


def start_run(limited: ThreadedServer, user: str, **fields: Any) -> Any:
    body = {"message": "hello", "stream": False, **fields}
    headers = limited.bearer(user, *SCOPES)
    return limited.client.post("/agents/echo/runs", json=body, headers=headers)


def assert_refused(answered: Any, key: str) -> None:
    assert answered.status_code == 429, answered.text
    assert answered.json()["error_code"] == "QUOTA_EXCEEDED"
    assert f"quotas.{key}" in answered.json()["detail"]
    assert "retry-after" not in answered.headers


def list_ids(limited: ThreadedServer, user: str) -> list[str]:
    listed = limited.client.get("/sessions", headers=limited.bearer(user, *SCOPES))
    return [each["session_id"] for each in listed.json()["data"]]


def test_number_of_sessions_is_bounded_for_each_user(limited: ThreadedServer) -> None:
    assert create_session(limited, "ann").status_code == 201
    for session in ("ann-1", "ann-2"):
        assert start_run(limited, "ann", session_id=session).status_code == 200
    assert_refused(create_session(limited, "ann"), "sessions_per_user")
    assert_refused(start_run(limited, "ann"), "sessions_per_user")
    assert_refused(start_run(limited, "ann", session_id="ann-3"), "sessions_per_user")
    assert len(list_ids(limited, "ann")) == 3
    assert start_run(limited, "ann", session_id="ann-1").status_code == 200
    assert create_session(limited, "ben").status_code == 201
    headers = limited.bearer("ann", *SCOPES)
    assert limited.client.delete("/sessions/ann-2", headers=headers).status_code == 204
    assert start_run(limited, "ann", session_id="ann-3").status_code == 200


def test_quota_is_that_of_the_owner_and_not_of_the_caller(limited: ThreadedServer) -> None:
    root = limited.bearer("root", ADMIN)
    for _ in range(3):
        body = {"user_id": "cleo"}
        answered = limited.client.post("/sessions?type=agent", json=body, headers=root)
        assert answered.status_code == 201
    answered = limited.client.post("/sessions?type=agent", json={"user_id": "cleo"}, headers=root)
    assert_refused(answered, "sessions_per_user")
    assert limited.client.post("/sessions?type=agent", json={}, headers=root).status_code == 201
    account = {"name": "bot", "scopes": [{"scope": f"sessions:{it}"} for it in ("read", "write")]}
    account["allow_privileged_scopes"] = True
    made = limited.client.post("/service-accounts", json=account, headers=root)
    bot = {"Authorization": f"Bearer {made.json()['token']}"}
    statuses = [
        limited.client.post("/sessions?type=agent", json={}, headers=bot).status_code
        for _ in range(4)
    ]
    assert statuses == [201, 201, 201, 429]


def test_data_without_an_owner_has_one_quota(limited: ThreadedServer) -> None:
    headers = limited.bearer(None, *SCOPES)
    statuses = [
        limited.client.post("/sessions?type=agent", json={}, headers=headers).status_code
        for _ in range(4)
    ]
    assert statuses == [201, 201, 201, 429]


def test_requests_at_the_same_time_do_not_exceed_the_quota(limited: ThreadedServer) -> None:
    def act(number: int) -> int:
        if number % 2:
            return int(create_session(limited, "dora").status_code)
        return int(start_run(limited, "dora").status_code)

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(act, range(16)))
    assert set(statuses) <= {200, 201, 429}
    assert len(list_ids(limited, "dora")) == 16 - statuses.count(429) == 3


def test_number_of_memories_is_bounded(limited: ThreadedServer) -> None:
    headers = limited.bearer("eli", *SCOPES)
    for number in range(3):
        body = {"memory": f"Fact number {number}"}
        assert limited.client.post("/memories", json=body, headers=headers).status_code == 201
    refused = limited.client.post("/memories", json={"memory": "One more"}, headers=headers)
    assert_refused(refused, "memories_per_user")
    body = {"message": json.dumps({"memory": "Likes tea"}), "stream": False}
    ran = limited.client.post("/agents/rememberer/runs", json=body, headers=headers)
    assert ran.status_code == 200
    (tool,) = ran.json()["tools"]
    assert "quotas.memories_per_user" in tool["result"]
    listed = limited.client.get("/memories", headers=headers).json()
    assert len(listed["data"]) == 3


def test_bytes_of_a_user_are_bounded(limited: ThreadedServer) -> None:
    state = {"a": "x" * 50_000}
    assert (
        create_session(limited, "fay", session_id="fay-1", session_state=state).status_code == 201
    )
    assert_refused(create_session(limited, "fay", session_state=state), "bytes_per_user")
    assert_refused(start_run(limited, "fay", message="é" * 8_000), "bytes_per_user")
    headers = limited.bearer("fay", *SCOPES)
    larger = {"metadata": {"a": "x" * 20_000}}
    assert_refused(
        limited.client.patch("/sessions/fay-1", json=larger, headers=headers), "bytes_per_user"
    )
    assert start_run(limited, "fay", message="small").status_code == 200
    smaller = {"session_state": {}}
    changed = limited.client.patch("/sessions/fay-1", json=smaller, headers=headers)
    assert changed.status_code == 200
    assert start_run(limited, "fay", message="é" * 2_000).status_code == 200


def test_file_that_a_run_saves_is_bounded(limited: ThreadedServer) -> None:
    headers = limited.bearer("ida", *SCOPES)
    body = {"message": "save", "stream": False}
    ran = limited.client.post("/agents/saver/runs", json=body, headers=headers).json()
    assert ran["content"].startswith("2 saved: "), ran
    assert "quotas.bytes_per_user" in ran["content"]
    listed = limited.client.get("/files", headers=headers).json()
    assert sorted(each["name"] for each in listed["data"]) == ["0.txt", "1.txt"]


def test_command_names_the_quota(limited: ThreadedServer, tmp_path: Path) -> None:
    token = limited.deployment.token("hal", *SCOPES)
    environment = base_environment() | {"HOME": str(tmp_path), "AGENTCTL_TOKEN": token}
    ended = [
        run_command(
            "memories",
            "add",
            f"Fact {number}",
            "--url",
            limited.url,
            environment=environment,
            folder=tmp_path,
        )
        for number in range(4)
    ]
    assert [each.code for each in ended] == [0, 0, 0, 6]
    assert "quotas.memories_per_user" in ended[-1].stderr


def test_client_of_openai_does_not_repeat_at_a_quota(limited: ThreadedServer) -> None:
    key = limited.deployment.token("gus", *SCOPES)
    with openai.OpenAI(api_key=key, base_url=f"{limited.url}/v1", max_retries=3) as client:
        messages: Any = [{"role": "user", "content": "hello"}]
        for _ in range(3):
            client.chat.completions.create(model="echo", messages=messages)
        with pytest.raises(openai.RateLimitError) as refused:
            client.chat.completions.create(model="echo", messages=messages)
    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
