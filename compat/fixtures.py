"""Fixtures of the tests with AgentOS: its releases, its servers and its clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.servers import PEERS, RELEASES, Peer, serve_agentos
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint

__all__ = ["keys", "locked_peer", "open_peer"]

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
