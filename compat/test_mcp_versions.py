"""Older versions of the package mcp, each in a separate environment (docs/mcp.md)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.process import base_environment

ROOT = Path(__file__).parents[1]
VERSIONS = sorted(path.name for path in (ROOT / ".peers").glob("mcp-[0-9]*"))

pytestmark = pytest.mark.skipif(not VERSIONS, reason="needs older versions of mcp: make compat")

# Version 1.24 does not close all of its streams, which is a warning when they are collected.
LINE = (
    *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-W", "ignore::ResourceWarning", "-W", "ignore::pytest.PytestUnraisableExceptionWarning"),
)


def run(version: str, *line: str, **options: str | Path) -> str:
    """Run Python in an environment and return its output."""
    python = ROOT / ".peers" / version / "bin" / "python"
    path = f"{python.parent}:{base_environment()['PATH']}"
    ended = subprocess.run(
        [python, *line],
        cwd=options.get("cwd", ROOT),
        env={**base_environment(), "PATH": path},
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("tests", ["tests/mcp", "tests/server/test_mcp_face.py"])
def test_client_and_endpoint_run_with_older_versions(version: str, tests: str) -> None:
    assert " passed" in run(version, *LINE, tests)


@pytest.mark.parametrize("version", VERSIONS)
def test_adapters_of_langchain_fit_into_the_environment(version: str, tmp_path: Path) -> None:
    configuration = (
        '[[agents]]\nid = "lang"\nobject = "mcp_adapter:agent"\n'
        '[[mcp_servers]]\nid = "clock"\ncommand = "mcp-server-time"\n'
    )
    (tmp_path / "agentctl.toml").write_text(configuration)
    module = Path(__file__).with_name("mcp_adapter.py").read_text()
    server = str(ROOT / "tests" / "mcp" / "stdio_server.py")
    module = module.replace(
        'Path(__file__).parents[1] / "tests" / "mcp" / "stdio_server.py"', f"Path({server!r})"
    )
    (tmp_path / "mcp_adapter.py").write_text(module)
    command = ("-m", "agentctl", "runs", "start", "--agent", "lang", "-m", "hello adapters")
    assert "hello adapters" in run(version, *command, cwd=tmp_path)
    assert "clock" in run(version, "-m", "agentctl", "mcp", "check", "clock", cwd=tmp_path)
