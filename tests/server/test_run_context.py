"""The run context over HTTP: tools, agents, members and steps know their caller and share state."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deploy
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import parse_events

MODULE = Path(__file__).with_name("context_code.py")
TOOLS = ("who", "who_async", "report", "spoil", "watch")
AGENTS = (
    "describe_agent", "set_state", "set_when_opened", "fail_with_state", "bad_state",
    "hang_with_state", "ignore_cancel", "many_reports",
)  # fmt: skip


def configuration(model_url: str) -> str:
    models = [
        f'[[models]]\nid = "use-{tool}"\nprovider = "openai"\nmodel = "tool:{tool}"\n'
        f'base_url = "{model_url}"\nretries = 0\n'
        f'[[agents]]\nid = "{tool}"\nmodel = "use-{tool}"\ntools = ["context_code:{tool}"]\n'
        for tool in TOOLS
    ]
    agents = [f'[[agents]]\nid = "{name}"\nobject = "context_code:{name}"\n' for name in AGENTS]
    return "\n".join(
        [
            *models,
            *agents,
            '[[teams]]\nid = "group"\nmodel = "delegate"\nmembers = ["describe_agent", "who"]',
            '[[teams]]\nid = "leader"\nmodel = "use-who"\ntools = ["context_code:who"]',
            'members = ["echo"]',
            '[[workflows]]\nid = "flow"\nsteps = [',
            '{ name = "first", agent = "set_state" }, { name = "last", agent = "describe_agent" }]',
        ]
    )


@pytest.fixture(scope="module")
def host(deploy: Deploy) -> Iterator[ThreadedServer]:
    files = {"context_code.py": MODULE.read_text()}
    with serve_in_thread(deploy(configuration(deploy.url), files=files)) as started:
        yield started


@pytest.fixture(scope="module")
def code(host: ThreadedServer) -> Any:
    """The module in the server, which executes in this process."""
    import context_code

    return context_code


def headers(host: ThreadedServer, subject: str, *scopes: str, **claims: Any) -> dict[str, str]:
    """Header fields with a token that has more claims."""
    now = int(time.time())
    everything = ("agents:run", "agents:read", "teams:run", "workflows:run", "sessions:read")
    payload = {
        "sub": subject,
        "iat": now,
        "exp": now + 600,
        "scopes": [*(scopes or everything)],
        **claims,
    }
    key = load_signing_key(host.deployment.folder / "keys" / "signing.pem")
    return {"Authorization": f"Bearer {jwt.encode(payload, key, algorithm='RS256')}"}


@functools.cache
def load_signing_key(path: Path) -> Any:
    """Load a key once: PyJWT would check it for 40 ms with each token."""
    return load_pem_private_key(path.read_bytes(), None)


def run(
    host: ThreadedServer,
    name: str,
    message: str = "{}",
    *,
    kind: str = "agents",
    as_user: str = "ann",
    status: str = "COMPLETED",
    **body: Any,
) -> dict[str, Any]:
    answer = host.client.post(
        f"/{kind}/{name}/runs",
        json={"message": message, "stream": False, **body},
        headers=headers(host, as_user, tenant=f"{as_user}-corp"),
        timeout=PATIENCE,
    )
    assert answer.status_code == 200, answer.text
    record: dict[str, Any] = answer.json()
    assert record["status"] == status, record["error"]
    return record


def session(host: ThreadedServer, session_id: str, as_user: str = "ann") -> dict[str, Any]:
    answer = host.client.get(f"/sessions/{session_id}", headers=headers(host, as_user))
    found: dict[str, Any] = answer.json()
    return found


def seen(record: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(record["content"])
    return found


@pytest.mark.parametrize("name", ["who", "who_async", "describe_agent"])
def test_code_knows_the_user_and_the_verified_claims(host: ThreadedServer, name: str) -> None:
    for user in ("ann", "bob"):
        record = run(host, name, as_user=user, metadata={"ticket": 7})
        found = seen(record)
        assert (found["user"], found["claims"]["tenant"]) == (user, f"{user}-corp")
        assert (found["session"], found["run"]) == (record["session_id"], record["run_id"])
        assert (found["component"], found["metadata"]) == (name, {"ticket": 7})
        # The signature and the token are not among the claims.
        assert "eyJ" not in record["content"]


def test_context_is_hidden_from_model_and_records(
    host: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    record = run(host, "who", '{"detail": "x"}')
    (call,) = record["tools"]
    assert call["tool_args"] == {"detail": "x"}
    (sent,) = model_endpoint.requests("tool:who")[-1]["tools"]
    assert [*sent["function"]["parameters"]["properties"]] == ["detail"]
    agent = host.client.get("/agents/who", headers=headers(host, "ann")).json()
    assert [*agent["tools"][0]["parameters"]["properties"]] == ["detail"]
    refused = run(host, "who", '{"context": {"user_id": "root"}}')
    assert "context is unknown" in refused["content"]


def test_claims_and_metadata_are_read_only(host: ThreadedServer) -> None:
    assert run(host, "spoil")["content"] == "refused refused refused"


def test_history_is_that_of_the_session(host: ThreadedServer) -> None:
    first = run(host, "describe_agent", "one", session_id="with-history")
    second = run(host, "describe_agent", "two", session_id="with-history")
    assert seen(first)["history"] == []
    assert seen(second)["history"] == ["one", first["content"]]


@pytest.mark.parametrize("member", ["describe_agent", "who"])
def test_members_have_the_same_caller_and_their_own_run(host: ThreadedServer, member: str) -> None:
    given = {"metadata": {"m": 1}, "dependencies": {"city": "Bern"}}
    record = run(host, "group", f"{member} {{}}", kind="teams", **given)
    found = json.loads(record["tools"][0]["result"])
    assert (found["user"], found["claims"]["tenant"]) == ("ann", "ann-corp")
    assert (found["component"], found["metadata"]) == (member, {"m": 1})
    assert found["dependencies"] == {"city": "Bern"}
    assert "Bern" not in json.dumps(record["metadata"])
    assert [found["run"]] == record["member_runs"]
    assert found["session"] == record["session_id"]


def test_leader_of_a_team_has_the_context(host: ThreadedServer) -> None:
    record = run(host, "leader", kind="teams")
    found = seen(record)
    assert (found["component"], found["run"], found["user"]) == ("leader", record["run_id"], "ann")


def test_steps_share_the_state(host: ThreadedServer) -> None:
    record = run(host, "flow", "stage=1", kind="workflows", session_state={"given": True})
    found = seen(record)
    assert found["state"] == {"given": True, "stage": 1}
    assert found["claims"]["tenant"] == "ann-corp"
    assert session(host, record["session_id"])["session_state"] == {"given": True, "stage": 1}


def test_state_is_stored_with_the_end_of_the_run(host: ThreadedServer) -> None:
    run(host, "set_state", 'a=1 b={"n":[1]}', session_id="kept", session_state={"c": 0, "d": 0})
    assert session(host, "kept")["session_state"] == {"a": 1, "b": {"n": [1]}, "c": 0, "d": 0}
    record = run(host, "set_state", "-c a=2", session_id="kept", session_state={"d": 5})
    assert record["session_state"] == {"d": 5}
    assert session(host, "kept")["session_state"] == {"a": 2, "b": {"n": [1]}, "d": 5}
    assert seen(run(host, "describe_agent", session_id="kept"))["state"]["d"] == 5
    run(host, "set_state", "-a -b -d", session_id="kept")
    assert session(host, "kept")["session_state"] is None


def test_runs_at_the_same_time_keep_the_keys_of_each_other(host: ThreadedServer, code: Any) -> None:
    names = ["left", "right"]
    with ThreadPoolExecutor(2) as pool:
        runs = [
            pool.submit(run, host, "set_when_opened", name, session_id="both") for name in names
        ]
        wait_for(lambda: all(name in code.events for name in names))
        changed = host.client.patch(
            "/sessions/both",
            json={"session_state": {"patched": True}},
            headers=headers(host, "ann", "sessions:write"),
        )
        assert changed.status_code == 200
        for name, finished in zip(names, runs, strict=True):
            code.events[name].set()
            finished.result(PATIENCE)
    state = session(host, "both")["session_state"]
    assert {key: state[key] for key in ("left", "right", "patched")} == {
        "left": ["left"], "right": ["right"], "patched": True,
    }  # fmt: skip
    # A key that both changed has the value of the run that ended last.
    assert state["shared"] == {"right": 1}


def test_failed_run_keeps_its_state_and_shows_no_exception(host: ThreadedServer) -> None:
    record = run(host, "fail_with_state", session_id="failed", status="ERROR")
    assert record["error"] == {"code": "AGENT_FAILED", "detail": "The code of the agent failed"}
    assert "secret text" not in json.dumps(record)
    assert session(host, "failed")["session_state"] == {"failed": True}


@pytest.mark.parametrize(
    ("message", "detail"),
    [
        ("object", "The session state has a value without a JSON form"),
        ("large", "The session state is larger than 65536 bytes"),
    ],
)
def test_state_that_cannot_be_stored_is_an_error(
    host: ThreadedServer, message: str, detail: str
) -> None:
    record = run(host, "bad_state", message, session_state={"kept": 1}, status="ERROR")
    assert record["error"] == {"code": "STATE_REJECTED", "detail": detail}
    assert record["content"] == "answered"
    assert session(host, record["session_id"])["session_state"] == {"kept": 1}


def test_cancelled_generator_keeps_text_state_and_closes_its_call(host: ThreadedServer) -> None:
    body = {"message": "go", "session_id": "cancelled"}
    caller = headers(host, "ann")
    url = "/agents/hang_with_state/runs"
    with host.client.stream("POST", url, json=body, headers=caller) as answer:
        found = parse_events(answer.iter_lines())
        name, first, _ = next(found)
        while name != "ToolCallStarted":
            name, _, _ = next(found)
        cancelled = host.client.post(
            f"{url}/{first['run_id']}/cancel",
            params={"wait": 30, "session_id": "cancelled"},
            headers=caller,
        ).json()
        rest = list(found)
    assert cancelled["cancel"] == "stopped"
    assert rest[-1][0] == "RunCancelled"
    record = host.client.get(f"{url}/{first['run_id']}", headers=caller).json()
    assert (record["status"], record["content"]) == ("CANCELLED", "partial ")
    assert record["stopped_at"] is not None
    assert record["tools"][0]["result"] == "cancelled"
    assert session(host, "cancelled")["session_state"] == {"begun": True}


def test_agent_that_ignores_its_cancel_is_reported_as_not_stopped(
    host: ThreadedServer, code: Any
) -> None:
    caller = headers(host, "ann")
    url = "/agents/ignore_cancel/runs"
    body = {"message": "stuck", "background": True, "stream": False, "session_id": "stuck"}
    run_id = host.client.post(url, json=body, headers=caller).json()["run_id"]
    wait_for(lambda: "stuck" in code.events)

    def record() -> dict[str, Any]:
        found: dict[str, Any] = host.client.get(f"{url}/{run_id}", headers=caller).json()
        return found

    params: dict[str, Any] = {"wait": 30, "session_id": "stuck"}
    cancelled = host.client.post(f"{url}/{run_id}/cancel", params=params, headers=caller).json()
    assert (cancelled["cancel"], cancelled["status"]) == ("stopped", "CANCELLED")
    assert (record()["stopped_at"], record()["late_result"]) == (None, None)
    code.events["stuck"].set()
    ended = wait_for(lambda: (found := record())["stopped_at"] and found)
    assert (ended["late_result"], ended["content"]) == ("dropped", "")


def test_thread_of_a_tool_sees_the_cancel(host: ThreadedServer, code: Any) -> None:
    caller = headers(host, "ann")
    url = "/agents/watch/runs"
    body = {"message": "{}", "background": True, "stream": False, "session_id": "watched"}
    run_id = host.client.post(url, json=body, headers=caller).json()["run_id"]

    def record() -> dict[str, Any]:
        found: dict[str, Any] = host.client.get(f"{url}/{run_id}", headers=caller).json()
        return found

    wait_for(lambda: record()["status"] == "RUNNING")
    params: dict[str, Any] = {"wait": 30, "session_id": "watched"}
    host.client.post(f"{url}/{run_id}/cancel", params=params, headers=caller)
    wait_for(lambda: record()["stopped_at"])
    assert record()["status"] == "CANCELLED"


def test_progress_and_tokens_of_a_thread_are_reported(host: ThreadedServer) -> None:
    body = {"message": '{"text": "half"}', "session_id": "progress"}
    caller = headers(host, "ann")
    with host.client.stream("POST", "/agents/report/runs", json=body, headers=caller) as answer:
        found = list(parse_events(answer.iter_lines()))
    progress = [data for name, data, _ in found if name == "RunProgress"]
    assert [(data["text"], data["fraction"]) for data in progress] == [("half", 0.5), (None, 1.0)]
    names = [name for name, _, _ in found]
    assert names.index("ToolCallStarted") < names.index("RunProgress")
    assert names.index("RunProgress") < names.index("ToolCallCompleted")
    assert found[-1][1]["metrics"]["input_tokens"] > 1_000


def test_number_and_length_of_progress_events_are_limited(host: ThreadedServer) -> None:
    body = {"message": "go", "session_id": "many"}
    caller = headers(host, "ann")
    url = "/agents/many_reports/runs"
    with host.client.stream("POST", url, json=body, headers=caller) as answer:
        found = list(parse_events(answer.iter_lines()))
    progress = [data for name, data, _ in found if name == "RunProgress"]
    assert len(progress) == 1_000
    assert {len(data["text"]) for data in progress} == {1_000}
    assert found[-1][0] == "RunCompleted"


def test_unknown_tokens_are_null_and_count_as_nothing(host: ThreadedServer) -> None:
    record = run(host, "describe_agent", session_id="tokens")
    assert set(record["metrics"].values()) == {None}
    assert len(record["metrics"]) == 9
    found = session(host, "tokens")
    assert (found["total_tokens"], set(found["metrics"].values())) == (0, {0})
    assert found["agent_data"]["model"] is None


def test_form_takes_the_objects_as_json_text(host: ThreadedServer) -> None:
    form = {
        "message": "x", "stream": "false", "session_id": "form",
        "metadata": '{"a": [1]}', "dependencies": '{"d": 1}', "session_state": '{"s": {"t": null}}',
    }  # fmt: skip
    caller = headers(host, "ann")
    record = host.client.post("/agents/describe_agent/runs", data=form, headers=caller).json()
    assert (record["metadata"], record["session_state"]) == ({"a": [1]}, {"s": {"t": None}})
    assert seen(record)["metadata"] == {"a": [1]}
    assert seen(record)["dependencies"] == {"d": 1}
    empty = host.client.post(
        "/agents/describe_agent/runs", data={**form, "metadata": ""}, headers=caller
    )
    assert empty.json()["metadata"] is None


@pytest.mark.parametrize("field", ["dependencies", "metadata", "session_state"])
@pytest.mark.parametrize(
    ("value", "status"),
    [
        ([1], 422),
        ("text", 422),
        (1, 422),
        ({"a": "x\0"}, 422),
        ({"a": 2**64}, 422),
        ({"a": "x" * 65_536}, 413),
    ],
)
def test_wrong_object_of_a_request_changes_nothing(
    host: ThreadedServer, field: str, value: Any, status: int
) -> None:
    caller = headers(host, "ann")
    body = {"message": "x", "stream": False, "session_id": f"wrong-{status}", field: value}
    answer = host.client.post("/agents/describe_agent/runs", json=body, headers=caller)
    assert answer.status_code == status
    assert answer.json()["detail"].startswith(field)
    form = {**body, "stream": "false", field: json.dumps(value)}
    shown = host.client.post("/agents/describe_agent/runs", data=form, headers=caller)
    assert shown.status_code == status
    assert host.client.get(f"/sessions/wrong-{status}", headers=caller).status_code == 404


def test_state_of_a_session_cannot_grow_beyond_its_limit(host: ThreadedServer) -> None:
    half = "x" * 40_000
    run(host, "describe_agent", session_id="grown", session_state={"a": half})
    body = {"message": "x", "stream": False, "session_id": "grown", "session_state": {"b": half}}
    url = "/agents/describe_agent/runs"
    caller = headers(host, "ann")
    answer = host.client.post(url, json=body, headers=caller)
    assert answer.status_code == 413
    assert session(host, "grown")["session_state"] == {"a": half}
    assert len(session(host, "grown")["chat_history"]) == 2
