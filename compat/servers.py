"""Real servers of released versions of AgentOS, each in a separate environment.

`make compat` creates the environments in `.peers` from `requirements-RELEASE.txt` and sets
`AGENTCTL_TEST_PEERS`. Without the variable the tests that need a real server are skipped.

    with serve_agentos("3.1.10", tmp_path, model_endpoint.base_url) as peer:
        ... peer.url
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.kit.ports import find_free_port
from tests.kit.process import base_environment

__all__ = ["PEERS", "RELEASES", "Peer", "find_python", "serve_agentos"]

RELEASES = ("2.7.2", "3.1.10")
"""The releases of AgentOS that the tests know."""

PEERS = os.environ.get("AGENTCTL_TEST_PEERS") == "1"
"""True if the environments of the releases exist and their servers are to be started."""

MODELS = ("echo", "hang", "trickle", "http-500", "delegate", "tool:add", "tool:wait")
"""Behaviours of the stub endpoint. The agent for each has the same name with `-` for `:`."""

ROOT = Path(__file__).parents[1]
START_SECONDS = 300.0
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class Peer:
    """A real AgentOS that listens.

    Attributes:
        release: its release of `agno`.
        url: its address.
    """

    release: str
    url: str


def find_python(release: str) -> Path:
    """Return the interpreter of the environment of a release."""
    return ROOT / ".peers" / f"agentos-{release}" / "bin" / "python"


@contextmanager
def serve_agentos(
    release: str,
    folder: Path,
    model_url: str,
    *,
    models: Sequence[str] = MODELS,
    public_key: str | None = None,
    remote: str | None = None,
) -> Iterator[Peer]:
    """Run an AgentOS with one agent for each model, the team `crew` and the workflow `line`.

    Args:
        release: one of `RELEASES`.
        folder: an existing folder for its files.
        model_url: base URL of the stub endpoint.
        models: the behaviours of its agents; `echo`, `hang` and `delegate` are required.
        public_key: PEM text of the key of its tokens (RS256); None: it is open.
        remote: URL of a server whose components it serves, as a gateway.
    """
    python = find_python(release)
    port = find_free_port()
    url = f"http://127.0.0.1:{port}"
    system = {
        "port": port,
        "database": str(folder / "agentos.db"),
        "model_url": model_url,
        "models": list(models),
        "public_key": public_key,
        "remote": remote,
    }
    description = folder / "system.json"
    log = folder / "agentos.log"
    description.write_text(json.dumps(system))
    program = Path(__file__).with_name("agentos_server.py")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(python), str(program), str(description)],
            cwd=folder,
            env=base_environment(),
            stdout=output,
            stderr=output,
        )
    try:
        _wait_for_health(url, process, log)
        yield Peer(release, url)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert process.poll() is None, f"AgentOS did not start: {log.read_text()}"
            time.sleep(0.05)
    raise AssertionError(f"AgentOS did not start in time: {log.read_text()}")
