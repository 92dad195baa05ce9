"""Streams whose token stops being valid: its key is removed, its account revoked, or it expires."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from agentctl.auth.keys.files import write_private_key
from agentctl.auth.keys.signing import build_public_pem, generate_key
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import Event, parse_events

SCOPES = ("agents:read", "agents:run", "sessions:read", "approvals:read", "approvals:write")

AGENT = '\n[[agents]]\nid = "gated"\nobject = "gated_agent:answer"\n'

MODULE = """
import asyncio
from pathlib import Path

GATE = Path(__file__).with_name("gate")


async def answer(message, context):
    yield "one "
    while not GATE.exists():
        await asyncio.sleep(0.01)
    yield "two"
"""

ENDS = ("key", "account", "expiry")


@pytest.fixture
def host(tmp_path: Path, model_endpoint: ModelEndpoint) -> Iterator[ThreadedServer]:
    (tmp_path / "gated_agent.py").write_text(MODULE)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=AGENT)
    with serve_in_thread(deployment) as host:
        yield host


def create_account(host: ThreadedServer) -> tuple[str, str]:
    """Return the id and the token of a new service account."""
    body = {
        "name": "ci",
        "scopes": [{"scope": scope, "effect": "allow"} for scope in SCOPES],
        "allow_privileged_scopes": True,
    }
    made = host.client.post(
        "/service-accounts", json=body, headers=host.bearer("boss", "agent_os:admin")
    )
    assert made.status_code == 201, made.text
    return made.json()["id"], made.json()["token"]


def replace_key(deployment: Deployment) -> None:
    """Sign with a new key, and remove the old one from the keys of the server."""
    private = generate_key("RS256")
    keys = deployment.folder / "keys"
    (keys / "signing.pem").unlink()
    write_private_key(keys / "signing.pem", private)
    (keys / "signing.pub.pem").write_bytes(build_public_pem(private, "RS256"))


def end_token(host: ThreadedServer, kind: str, account_id: str) -> None:
    if kind == "key":
        replace_key(host.deployment)
    elif kind == "account":
        answer = host.client.delete(
            f"/service-accounts/{account_id}", headers=host.bearer("boss", "agent_os:admin")
        )
        assert answer.status_code == 204


def read_until_content(events: Iterator[Event]) -> str:
    """Read a stream until its first text; return the id of the run."""
    for name, data, _ in events:
        if name == "RunContent":
            return str(data["run_id"])
    raise AssertionError


@pytest.mark.parametrize("kind", ENDS)
def test_stream_outlasts_its_token_and_further_requests_are_refused(
    host: ThreadedServer, kind: str
) -> None:
    account_id = ""
    if kind == "account":
        account_id, token = create_account(host)
    else:
        seconds = 4 if kind == "expiry" else 600
        token = host.deployment.token("me", *SCOPES, seconds=seconds)
    headers = {"Authorization": f"Bearer {token}"}
    body = {"message": "x", "session_id": "s", "stream": True}
    with (
        host.client.stream("POST", "/agents/gated/runs", json=body, headers=headers) as answer,
        httpx2.Client(base_url=host.url, headers=headers, timeout=PATIENCE) as further,
    ):
        events = parse_events(answer.iter_lines())
        run_id = read_until_content(events)
        assert further.get("/agents").status_code == 200

        end_token(host, kind, account_id)
        wait_for(lambda: further.get("/agents").status_code == 401)
        path = f"/agents/gated/runs/{run_id}"
        for request in ("cancel", "resume", "continue"):
            assert further.post(f"{path}/{request}?session_id=s").status_code == 401
        assert further.get("/approvals").status_code == 401

        (host.deployment.folder / "gate").touch()
        name, last, _ = list(events)[-1]
    assert (name, last["content"]) == ("RunCompleted", "one two")


def test_operator_ends_the_streams_of_a_removed_key(host: ThreadedServer) -> None:
    body = {"message": "x", "session_id": "s", "stream": True}
    headers = host.bearer("me", *SCOPES)
    with host.client.stream("POST", "/agents/gated/runs", json=body, headers=headers) as answer:
        events = parse_events(answer.iter_lines())
        read_until_content(events)
        replace_key(host.deployment)
        operator = host.deployment.token("boss", "agent_os:admin")
        wait_for(lambda: _is_accepted(host, operator))
        command = ["runs", "cancel", "--all", "--user", "me", "--yes", "--url", host.url]
        environment = {"AGENTCTL_TOKEN": operator}
        folder = host.deployment.folder
        ended = run_command(*command, environment=environment, folder=folder)
        assert ended.code == 0, ended.stderr
        name, _, _ = list(events)[-1]
    assert name == "RunCancelled"


def _is_accepted(host: ThreadedServer, token: str) -> bool:
    answer = host.client.get("/agents", headers={"Authorization": f"Bearer {token}"})
    return answer.status_code == 200
