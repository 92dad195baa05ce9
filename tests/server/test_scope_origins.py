"""The claim or the role that grants a scope, as the caller sees it."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2

from tests.kit.command import run_command
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import serve_in_thread


def test_caller_sees_the_claim_or_role_of_each_scope(deploy: Deploy, tmp_path: Path) -> None:
    deployment = deploy()
    table = 'roles_claim = "sub"\nroles.writer = ["agents:run"]'
    text = deployment.path.read_text()
    deployment.path.write_text(text.replace("[authorization]", f"[authorization]\n{table}"))
    token = deployment.token("writer", "sessions:read")
    with serve_in_thread(deployment) as server:
        headers = {"Authorization": f"Bearer {token}"}
        me = httpx2.get(f"{server.url}/auth/me", headers=headers).json()
        environment = {"AGENTCTL_TOKEN": token, "HOME": str(tmp_path)}
        answers = []
        for asked in (("POST", "/agents/echo/runs"), ("agents:run",), ("sessions:read",)):
            arguments = ("auth", "can-i", *asked, "--url", server.url, "-o", "json")
            ended = run_command(*arguments, environment=environment, folder=tmp_path)
            answers.append(json.loads(ended.stdout)["by"])
    assert me["scope_origins"] == [
        {"scope": "sessions:read", "claim": "scopes", "role": None},
        {"scope": "agents:run", "claim": "sub", "role": "writer"},
    ]
    role = 'granted by agents:run, by the role "writer" of sub'
    assert answers == [role, role, "granted by sessions:read"]
