"""Fixtures of the tests with AgentOS: its releases, its servers and its clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.servers import INSTALLED, PEERS, RELEASES, Peer, serve_agentos
from tests.cli.conftest import environment, home, terminal
from tests.commands import Result, run_command
from tests.deployment import ADMIN, Deployment, create_deployment
from tests.endpoint import ModelEndpoint
from tests.process import base_environment

__all__ = ["Agentctl", "environment", "home", "keys", "locked_peer", "open_peer", "terminal"]

_Factory = pytest.TempPathFactory


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that start a server of AgentOS, unless its environments exist."""
    reason = "needs the environments of AgentOS: make compat"
    for item in items:
        names = getattr(item, "fixturenames", ())
        if not PEERS and {"open_peer", "locked_peer", "release"} & set(names):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest) -> str:
    """A release of AgentOS."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def keys(tmp_path_factory: _Factory, model_endpoint: ModelEndpoint) -> Deployment:
    """A folder of agentctl, whose key signs the tokens of `locked_peer`."""
    return create_deployment(tmp_path_factory.mktemp("keys"), model_endpoint.base_url)


@pytest.fixture(scope="module")
def open_peer(
    release: str, tmp_path_factory: _Factory, model_endpoint: ModelEndpoint
) -> Iterator[Peer]:
    """A real AgentOS without authorization."""
    folder = tmp_path_factory.mktemp(f"open-{release}")
    with serve_agentos(release, folder, model_endpoint.base_url) as peer:
        yield peer


@pytest.fixture(scope="module")
def locked_peer(
    release: str, tmp_path_factory: _Factory, model_endpoint: ModelEndpoint, keys: Deployment
) -> Iterator[Peer]:
    """A real AgentOS that verifies tokens, which `keys.token` mints."""
    folder: Path = tmp_path_factory.mktemp(f"locked-{release}")
    public_key = (keys.folder / "keys" / "signing.pub.pem").read_text()
    url = model_endpoint.base_url
    with serve_agentos(release, folder, url, public_key=public_key) as peer:
        yield peer


@pytest.fixture(scope="module", params=RELEASES if PEERS else [INSTALLED])
def served(
    request: pytest.FixtureRequest,
    tmp_path_factory: _Factory,
    model_endpoint: ModelEndpoint,
    keys: Deployment,
) -> Iterator[Peer]:
    """A real AgentOS that verifies tokens: each release, or the one of this environment."""
    folder = tmp_path_factory.mktemp("served")
    public_key = (keys.folder / "keys" / "signing.pub.pem").read_text()
    url = model_endpoint.base_url
    with serve_agentos(request.param, folder, url, public_key=public_key) as peer:
        yield peer


class Agentctl:
    """Commands of this project on a server, with a token of an administrator."""

    def __init__(self, url: str, token: str, folder: Path) -> None:
        self.url = url
        self.token = token
        self.folder = folder

    def __call__(self, *words: str, remote: bool = True) -> Result:
        """Run a command to its end."""
        environment = base_environment() | {"HOME": str(self.folder), "NO_COLOR": "1"}
        place = ("--url", self.url) if remote else ()
        environment |= {"AGENTCTL_TOKEN": self.token} if remote else {}
        return run_command(*words, *place, environment=environment, folder=self.folder)

    def record(self, *words: str) -> Any:
        """Return the document of a command that succeeds."""
        ended = self(*words, "-o", "json")
        assert ended.code == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def agentctl(served: Peer, keys: Deployment, tmp_path_factory: _Factory) -> Agentctl:
    """Commands on the served AgentOS."""
    return Agentctl(served.url, keys.token("root", ADMIN), tmp_path_factory.mktemp("home"))
