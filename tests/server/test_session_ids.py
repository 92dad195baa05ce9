"""Session ids that no path can contain are refused wherever a session is created (F16)."""

from __future__ import annotations

import jwt
import pytest

from agentctl.records.text import is_session_id
from agentctl.server import create_app, running
from tests.kit.command import run_command
from tests.kit.deployment import ADMIN, Deployment
from tests.server.test_mounting import bearer, client

DOTS = [".", ".."]
NEAR = ["...", ".a", "a.", "..a", "a..", "-", "~", "_", "@", ".-", "..-", "." * 128, "a" * 128]
"""Ids that look alike and can be used."""


@pytest.mark.parametrize("session_id", DOTS)
async def test_requests_cannot_create_sessions_of_dots(
    deployment: Deployment, session_id: str
) -> None:
    app = create_app(deployment.settings)
    headers = bearer(deployment, ADMIN)
    async with running(app), client(app) as http:
        run = {"message": "x", "session_id": session_id, "stream": "false"}
        for answer in (
            await http.post("/sessions", json={"session_id": session_id}, headers=headers),
            await http.post("/agents/echo/runs", json={**run, "stream": False}, headers=headers),
            await http.post("/agents/echo/runs", data=run, headers=headers),
        ):
            assert answer.status_code == 422
            assert "but not . or .." in answer.json()["detail"]
        signing = (deployment.folder / "keys" / "signing.pem").read_text()
        claimed = {"sub": "me", "scopes": [ADMIN], "session_id": session_id}
        stranger = {"Authorization": f"Bearer {jwt.encode(claimed, signing, 'RS256')}"}
        assert (await http.get("/sessions", headers=stranger)).status_code == 401
        assert (await http.get("/runs", headers=headers)).json()["data"] == []


async def test_ids_that_only_look_like_dots_can_be_used(deployment: Deployment) -> None:
    app = create_app(deployment.settings)
    headers = bearer(deployment, ADMIN)
    async with running(app), client(app) as http:
        for session_id in NEAR:
            made = await http.post("/sessions", json={"session_id": session_id}, headers=headers)
            assert made.status_code == 201, session_id
            path = f"/sessions/{session_id}"
            assert (await http.get(path, headers=headers)).json()["session_id"] == session_id
            assert (await http.delete(path, headers=headers)).status_code == 204
    assert not any(is_session_id("a" * 129 if text == "a" else text + "!") for text in NEAR)
    assert not is_session_id("." * 129)


@pytest.mark.parametrize("session_id", DOTS)
def test_commands_cannot_create_sessions_of_dots(deployment: Deployment, session_id: str) -> None:
    for arguments in (
        ("runs", "start", "--agent", "echo", "-m", "x", "--session", session_id),
        ("token", "mint", "--sub", "me", "--session-id", session_id),
    ):
        ended = run_command(
            *arguments,
            *("--config", str(deployment.path)),
            environment={},
            folder=deployment.folder,
        )
        assert (ended.code, ended.stdout) == (2, "")
