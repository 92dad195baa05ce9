"""Clients that three generators make from the OpenAPI document: their types, and what they read."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.kit.documents import ROOT
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

FOLDER = ROOT / ".peers" / "generators"
PROGRAMS = Path(__file__).with_name("generated_clients")
"""A program for each generator, which uses its client and is checked with it."""

pytestmark = [
    pytest.mark.skipif(
        not (FOLDER / ".installed").exists(),
        reason="needs generators: install Node 20 and npm, then make .peers/generators/.installed",
    )
]

PYTHON = FOLDER / "python" / "bin" / "python"
NODE_PROGRAMS = FOLDER / "node_modules" / ".bin"

GENERATORS = (
    (PYTHON.with_name("openapi-python-client"), "generate", "--path", "openapi.json",
     "--output-path", "agents_client", "--meta", "none"),
    (NODE_PROGRAMS / "openapi-ts", "--input", "openapi.json", "--output", "hey-api"),
    (NODE_PROGRAMS / "openapi-typescript", "openapi.json", "--output", "openapi.d.ts"),
)  # fmt: skip

CHECKS = (
    (sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--python-executable", PYTHON,
     "use_python.py"),
    (NODE_PROGRAMS / "tsc", "--project", "."),
)  # fmt: skip


def run(folder: Path, *command: str | Path) -> str:
    """Run a program; return its output."""
    path = f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def clients(server: ThreadedServer) -> Path:
    """Generate and check the clients; return their folder, which is kept for the same document."""
    document = server.client.get("/openapi.json").content
    files = sorted(PROGRAMS.iterdir())
    digest = hashlib.sha256(document)
    for file in files:
        digest.update(file.read_bytes())
    kept = FOLDER / "clients" / digest.hexdigest()
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as work:
            folder = Path(work, "clients")
            shutil.copytree(PROGRAMS, folder)
            (folder / "openapi.json").write_bytes(document)
            for command in (*GENERATORS, *CHECKS):
                run(folder, *command)
            shutil.rmtree(kept.parent, ignore_errors=True)
            kept.parent.mkdir()
            folder.rename(kept)
    return kept


@pytest.mark.parametrize(
    "program",
    [(PYTHON, "use_python.py"), ("node", "js/use_hey_api.js"), ("node", "js/use_openapi_fetch.js")],
    ids=["openapi-python-client", "hey-api", "openapi-typescript"],
)
def test_generated_client_reads_runs_sessions_and_events(
    server: ThreadedServer, clients: Path, program: tuple[str | Path, str]
) -> None:
    token = as_caller(server, "me")["Authorization"].removeprefix("Bearer ")
    assert json.loads(run(clients, *program, server.url, token)) == {
        "input": "hello",
        "text": "hello (9 counters)",
        "agent": "agent echo",
        "team": "team desk",
        "workflow": "workflow line",
        "head": "head desk",
    }
