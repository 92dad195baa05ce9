"""Two servers for tests that only read. Other tests start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.deployment import Deploy, Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.observed_server import LOG, TOOL_FILES, describe_tools
from tests.server.seeds import seed
from tests.server.worker_server import WorkerServer, serve_with_two_workers


@pytest.fixture(scope="session")
def server(deploy: Deploy) -> Iterator[ThreadedServer]:
    """A running server with sessions and runs, in each process of pytest."""
    with serve_in_thread(deploy()) as host:
        seed(host)
        yield host


SECRET = "correct horse battery staple, 32 bytes"

LONG_INSTRUCTIONS = "Write plainly. " * 10_000

PAIR = f"""
[mcp_endpoint]
enabled = true

[[agents]]
id = "long"
model = "echo"
instructions = "{LONG_INSTRUCTIONS}"
"""


@pytest.fixture(scope="session")
def pair(deploy: Deploy) -> Iterator[WorkerServer]:
    """A process with two workers, a secret key, long settings, a readable log and metrics.

    For tests of the layer `process`: one process of pytest has them all, and starts it once.
    """
    log = LOG.format(form="readable", level="info")
    deployment = deploy(PAIR + describe_tools(deploy.url) + log, files=TOOL_FILES)
    keys = f'algorithm = "HS256"\nverification_keys = ["{SECRET}"]'
    text = deployment.path.read_text()
    text = text.replace('verification_key_files = ["keys/signing.pub.pem"]', keys)
    deployment.path.write_text(text)
    (deployment.folder / "keys" / "signing.pem").write_text(SECRET)
    with serve_with_two_workers(deployment) as started:
        yield started


@pytest.fixture(scope="session")
def settled(deploy: Deploy) -> Deployment:
    """A configuration that several tests use, one after another."""
    return deploy()
