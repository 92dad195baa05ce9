"""Clients of AgentOS on this server, with `server.compatibility = "agentos"` (docs/agentos.md)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from compat.clients import INSTALLED, REFUSED, check_operations
from compat.servers import PEERS, Peer, find_python, serve_agentos
from compat.tokens import find_differences
from tests.kit.command import run_command
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment, serve_config

SCOPES = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete", "config:read",
    "memories:read", "memories:write", "memories:delete",
)  # fmt: skip
"""Everything that a user of an AgentOS may do, without administration."""

WAITING = """
[[agents]]
id = "clerk"
name = "Clerk"
model = "tool-add"
tools = ["world_tools:add"]
approve = { "add" = "user" }

[[teams]]
id = "office"
name = "Office"
mode = "coordinate"
model = "delegate"
members = ["clerk"]

[[workflows]]
id = "form"
name = "Form"
steps = [{ name = "sum", agent = "clerk" }, { name = "say", agent = "echo" }]
"""
"""Components that wait for their user, as those of `compat.agentos_server`."""

UNKNOWN = "00000000-0000-7000-8000-000000000000"


class Ours:
    """This server with the interface of AgentOS."""

    def __init__(self, deployment: Deployment, url: str, client: httpx2.Client) -> None:
        self.deployment = deployment
        self.url = url
        self.client = client

    def call(self, method: str, path: str, *scopes: str, **options: Any) -> httpx2.Response:
        """Send a request as the user `ann`, by default with `SCOPES`."""
        token = options.pop("token", None) or self.deployment.token("ann", *(scopes or SCOPES))
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})}
        return self.client.request(method, self.url + path, headers=headers, **options)

    def run(self, path: str, **form: str) -> Any:
        """Start a run without a stream; return its record."""
        answer = self.call("POST", f"/{path}/runs", data={"stream": "false", **form})
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def serve_ours(
    folder: Path, model_url: str, *, locked: bool = True, extra: str = "", workers: int = 1
) -> Iterator[Ours]:
    """Serve the deployment of the tests with the interface of AgentOS."""
    settings = f'compatibility = "agentos"\nworkers = {workers}'
    deployment = create_deployment(folder, model_url, server=settings, extra=WAITING + extra)
    if not locked:
        text = deployment.path.read_text()
        off = "[authorization]\nenabled = false\n"
        keys = '[authorization]\nverification_key_files = ["keys/signing.pub.pem"]\n'
        assert keys in text
        deployment.path.write_text(text.replace(keys, off))
    with serve_config(deployment.path) as server, httpx2.Client(timeout=30) as client:
        yield Ours(deployment, server.url, client)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Ours]:
    with serve_ours(tmp_path_factory.mktemp("ours"), model_endpoint.base_url) as server:
        yield server


def test_every_operation_of_the_client_works(ours: Ours, tmp_path: Path) -> None:
    require_all_operations(ours, INSTALLED, tmp_path)


def test_every_operation_of_other_releases_works(
    release: str, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    with serve_ours(tmp_path, model_endpoint.base_url) as server:
        require_all_operations(server, release, tmp_path)


def require_all_operations(server: Ours, release: str, folder: Path) -> None:
    """Require every operation of a client, except those that this server refuses."""
    token = server.deployment.token("user", *SCOPES)
    parts = ("client", "memory", "refused", "absent")
    found = check_operations(release, folder, server.url, token, *parts)
    failed = {name: failure for name, failure in found.items() if failure}
    assert failed.keys() == REFUSED.keys(), failed
    assert all(status in str(failed[name]) for name, status in REFUSED.items()), failed
    assert len(found) == 84


def test_events_after_a_cancel_end_with_the_cancel(ours: Ours) -> None:
    names = []
    cancelled = False
    form = {"message": "x", "stream": "true"}
    headers = ours.deployment.bearer("ann", *SCOPES)
    url = f"{ours.url}/agents/trickle/runs"
    with httpx2.stream("POST", url, data=form, headers=headers, timeout=30) as answer:
        for line in answer.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            names.append(event["event"])
            if event["event"] == "RunContent" and not cancelled:
                cancelled = True
                path = f"/agents/trickle/runs/{event['run_id']}/cancel"
                assert ours.call("POST", path).json()["cancel"] == "stopped"
    assert names[-1] == "RunCancelled"
    assert "RunCompleted" not in names
    assert "ModelRequestCompleted" not in names


def test_cancel_without_a_session_reaches_own_runs_only(ours: Ours) -> None:
    run = ours.run("agents/echo", message="x")
    other = ours.deployment.token("bob", *SCOPES)
    path = f"/agents/echo/runs/{run['run_id']}/cancel"
    headers = {"Authorization": f"Bearer {other}"}
    refused = httpx2.post(ours.url + path, headers=headers)
    unknown = ours.call("POST", f"/agents/echo/runs/{UNKNOWN}/cancel")
    assert (refused.status_code, refused.content) == (404, unknown.content)
    assert ours.call("POST", path).json()["cancel"] == "already_final"
    assert httpx2.post(ours.url + path).status_code == 401


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"data": {"stream": "false"}}, ["body", "message"]),
        ({"files": {"message": (None, "x"), "videos": ("a", b"text")}}, ["body", "videos"]),
        ({"data": {"message": "x", "images": '[{"url": "u"}]'}}, ["body", "images"]),
        ({"data": {"message": "x", "input_files": '[{"a": "f"}]'}}, ["body", "input_files"]),
        ({"data": {"message": "x", "factory_input": '{"a": 1}'}}, ["body", "factory_input"]),
        ({"data": {"message": "x", "session_state": "[1]"}}, ["body", "session_state"]),
        ({"data": {"message": "x", "dependencies": "no"}}, ["body", "dependencies"]),
    ],
)
def test_wrong_fields_are_refused_in_a_list(
    ours: Ours, given: dict[str, Any], place: list[str]
) -> None:
    answer = ours.call("POST", "/agents/echo/runs", **given)
    (detail,) = answer.json()["detail"]
    assert (answer.status_code, detail["loc"]) == (422, place), detail
    assert {"type", "msg", "input"} <= detail.keys()


def test_multipart_forms_and_words_for_truth(ours: Ours) -> None:
    fields = {"message": "grüße\r\n--x", "stream": "False", "session_id": "", "files": ""}
    parts = {name: (None, value.encode()) for name, value in fields.items()}
    answer = ours.call("POST", "/agents/echo/runs", files=parts).json()
    assert (answer["content"], answer["status"]) == ("grüße\r\n--x", "COMPLETED")
    broken = ours.call(
        "POST",
        "/agents/echo/runs",
        content=b"nonsense",
        headers={"Content-Type": "multipart/form-data; boundary=a"},
    )
    assert (broken.status_code, broken.json()["error_code"]) == (400, "BAD_REQUEST")
    other = ours.call("POST", "/agents/echo/runs", content=b"x", headers={"Content-Type": "a/b"})
    assert other.status_code == 415


def test_content_only_stream(ours: Ours) -> None:
    form = {"message": "one two", "stream_events": "false"}
    lines = ours.call("POST", "/agents/echo/runs", data=form).text.splitlines()
    assert {line for line in lines if line.startswith("event:")} == {"event: RunContent"}


def test_plain_stream_can_be_resumed_after_every_event(ours: Ours) -> None:
    form = {"message": "one two", "session_id": "plain"}
    answer = ours.call("POST", "/agents/echo/runs", data=form)
    ids = [int(line[4:]) for line in answer.text.splitlines() if line.startswith("id: ")]
    events = _events(answer)
    assert len(ids) == len(events)
    assert ids == sorted(ids)
    path = f"/agents/echo/runs/{events[0]['run_id']}/resume"
    for number, last in enumerate(ids):
        form = {"last_event_index": str(last), "session_id": "plain"}
        rest = _events(ours.call("POST", path, data=form))
        assert _join_text(rest) == _join_text(events[number + 1 :])


def test_resumed_stream_numbers_its_events(ours: Ours) -> None:
    form = {"message": "one two", "background": "true", "session_id": "resumed"}
    first = _events(ours.call("POST", "/agents/echo/runs", data=form))
    assert [event["event_index"] for event in first] == sorted(e["event_index"] for e in first)
    path = f"/agents/echo/runs/{first[0]['run_id']}/resume"
    form = {"last_event_index": str(first[-2]["event_index"]), "session_id": "resumed"}
    (last,) = [
        e for e in _events(ours.call("POST", path, data=form)) if "Content" not in e["event"]
    ]
    assert (last["event"], last["event_index"]) == ("RunCompleted", first[-1]["event_index"])


def _events(answer: httpx2.Response) -> list[Any]:
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def _join_text(events: list[Any]) -> str:
    return "".join(event["content"] for event in events if event["event"] == "RunContent")


def test_empty_database_and_unbounded_limit(ours: Ours) -> None:
    ours.run("agents/echo", message="x", session_id="listed")
    page = ours.call("GET", "/sessions?db_id=&limit=5000&sort_by=anything&page=0").json()
    assert "listed" in [each["session_id"] for each in page["data"]]
    assert page["meta"]["limit"] == 1_000
    assert ours.call("GET", "/sessions?db_id=unknown").status_code == 404
    (run,) = ours.call("GET", "/agents/echo/runs?session_id=listed&status=COMPLETED").json()
    assert (run["run_input"], run["content"]) == ("x", "x")


def test_accounts_have_default_scopes_and_times_as_numbers(ours: Ours) -> None:
    created = ours.call("POST", "/service-accounts", ADMIN, json={"name": "bot"}).json()
    assert {scope["raw"] for scope in created["scopes"]} >= {"agents:run", "config:read"}
    (listed,) = ours.call("GET", "/service-accounts", ADMIN).json()["data"]
    assert listed["created_at"] == created["created_at"] > 1_700_000_000
    assert "token" not in listed


def test_tokens_have_the_known_answers(ours: Ours) -> None:
    key = (ours.deployment.folder / "keys" / "signing.pem").read_text()
    assert find_differences(ours.url, key, None) == {}


def test_explanation_knows_the_additional_routes(ours: Ours) -> None:
    for path, method, operation in (
        ("/sessions/explained/run-previews", "GET", "get_session_runs"),
        (f"/agents/echo/runs/{UNKNOWN}/continue", "POST", "continue_agent_run"),
    ):
        asked = {"method": method, "path": path, "token": ours.deployment.token("ann", *SCOPES)}
        found = ours.call("POST", "/auth/explain", ADMIN, json=asked).json()
        assert (found["operation"], found["decided_by"]) == (operation, "data"), found


def test_the_contract_is_served_on_request(ours: Ours) -> None:
    asked = {"headers": {"Agentctl-Interface": "contract"}}
    agent = ours.call("GET", "/agents/tool-add", **asked).json()
    assert isinstance(agent["tools"], list)
    error = ours.call("GET", "/sessions?limit=0", **asked).json()
    assert isinstance(error["detail"], str)
    refused = ours.call("POST", "/agents/echo/runs", files={"message": "x"}, **asked)
    assert (refused.status_code, type(refused.json()["detail"])) == (422, str)


def test_the_command_line_works_on_it(ours: Ours, tmp_path: Path) -> None:
    environment = {**os.environ, "AGENTCTL_TOKEN": ours.deployment.token("cli", ADMIN)}

    def agentctl(*arguments: str) -> str:
        done = run_command(*arguments, "--url", ours.url, environment=environment, folder=tmp_path)
        assert done.code == 0, done.stderr
        return done.stdout

    assert "tool-add" in agentctl("agents", "list")
    assert (
        json.loads(agentctl("runs", "start", "--agent", "echo", "-m", "hi", "-o", "json"))[
            "content"
        ]
        == "hi"
    )
    assert "hi" in agentctl("sessions", "list")


@pytest.mark.skipif(not PEERS, reason="needs the environments of AgentOS: make compat")
def test_agnoctl_works(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    project = tmp_path / "project"
    project.mkdir()
    extra = "[mcp_endpoint]\nenabled = true\n"
    with serve_ours(tmp_path, model_endpoint.base_url, extra=extra) as server:
        token = server.deployment.token("root", ADMIN)
        environment = base_environment() | {"HOME": str(project), "AGNO_ADMIN_TOKEN": token}

        program = find_python(INSTALLED).with_name("agnoctl")

        def agnoctl(*words: str) -> Any:
            done = subprocess.run(
                [program, *words, "--url", server.url, "--json"],
                env=environment,
                cwd=project,
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return json.loads(done.stdout)

        status = agnoctl("status")["os"]
        assert (status["auth_mode"], status["mcp"]["path"]) == ("jwt", "/mcp")
        created = agnoctl("tokens", "create", "ci")
        assert "agents:run" in created["scopes"]
        assert server.call("GET", "/agents", token=created["token"]).status_code == 403
        form = {"message": "x", "stream": "false"}
        ran = server.call("POST", "/agents/echo/runs", token=created["token"], data=form)
        assert (ran.status_code, ran.json()["content"]) == (200, "x")
        (listed,) = agnoctl("tokens", "list")["service_accounts"]
        assert (listed["name"], listed["revoked_at"]) == ("ci", None)
        agnoctl("tokens", "revoke", "ci")
        (listed,) = agnoctl("tokens", "list")["service_accounts"]
        assert listed["revoked_at"] is not None
        (connected,) = agnoctl("connect", "--clients", "cursor", "--project", "--yes")["results"]
        written = json.loads((project / ".cursor" / "mcp.json").read_text())
        (entry,) = written["mcpServers"].values()
        assert (connected["status"], entry["url"]) == ("connected", f"{server.url}/mcp")


def test_remote_objects_work(release: str, tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    with serve_ours(tmp_path, model_endpoint.base_url, locked=False) as server:
        found = check_operations(release, tmp_path, server.url, None, "remote")
    assert (len(found), {name: failure for name, failure in found.items() if failure}) == (22, {})


def test_an_agentos_is_a_gateway_to_this_server(
    release: str, tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> None:
    folder = tmp_path_factory.mktemp(f"gateway-{release}")
    (folder / "theirs").mkdir()
    (folder / "ours").mkdir()
    model_url = model_endpoint.base_url
    with (
        serve_ours(folder / "ours", model_url, locked=False) as server,
        serve_agentos(release, folder / "theirs", model_url, remote=server.url) as gateway,
    ):
        for path in ("agents/echo", "teams/crew", "workflows/line"):
            url = f"{gateway.url}/{path}/runs"
            plain = httpx2.post(url, data={"message": "use echo", "stream": "false"}, timeout=30)
            assert plain.json()["content"] == "use echo", plain.text
            streamed = httpx2.post(url, data={"message": "use echo"}, timeout=30)
            assert _events(streamed)[-1]["content"] == "use echo", streamed.text


def test_this_server_does_what_theirs_does(open_peer: Peer, tmp_path: Path) -> None:
    parts = ("client", "memory", "refused", "remote")
    found = check_operations(open_peer.release, tmp_path, open_peer.url, None, *parts)
    # A workflow that waits for its model does not end there after a cancel.
    waits = {"client_cancel_workflow_run", "remote_workflow_cancel"}
    assert {name for name, failure in found.items() if failure} <= waits, found
