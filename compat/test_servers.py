"""The real servers themselves: the facts that the other tests of this folder rely on."""

from __future__ import annotations

import httpx2

from compat.servers import Peer
from compat.tokens import find_differences
from tests.kit.deployment import ADMIN, Deployment


def test_open_server_describes_itself(open_peer: Peer) -> None:
    info = httpx2.get(f"{open_peer.url}/info").json()
    assert (info["agno_version"], info["auth_mode"]) == (open_peer.release, "none")
    config = httpx2.get(f"{open_peer.url}/config").json()
    assert [team["id"] for team in config["teams"]] == ["crew", "office"]
    assert [workflow["id"] for workflow in config["workflows"]] == ["line", "stuck", "form"]


def test_locked_server_takes_the_tokens_of_the_key(locked_peer: Peer, keys: Deployment) -> None:
    assert httpx2.get(f"{locked_peer.url}/agents").status_code == 401
    token = keys.bearer("u1", ADMIN)
    agents = httpx2.get(f"{locked_peer.url}/agents", headers=token).json()
    assert "echo" in [agent["id"] for agent in agents]
    form = {"message": "hello", "stream": "false"}
    url = f"{locked_peer.url}/agents/echo/runs"
    run = httpx2.post(url, data=form, headers=token, timeout=30).json()
    assert (run["status"], run["content"]) == ("COMPLETED", "hello")


def test_tokens_have_the_known_answers(locked_peer: Peer, keys: Deployment) -> None:
    key = (keys.folder / "keys" / "signing.pem").read_text()
    assert find_differences(locked_peer.url, key, int(locked_peer.release[0])) == {}
