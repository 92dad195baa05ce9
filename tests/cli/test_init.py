"""`agentctl init`: something to begin with, and nothing lost."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.config import SAMPLE_CONFIG
from tests.cli.conftest import Agentctl
from tests.process import serve_config

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "agentctl" / "cli" / "templates"


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_new_project_works(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (0, "")
    assert set(_files(home)) == {"agentctl.toml", "keys/signing.pem", "keys/signing.pub.pem"}
    assert (home / "agentctl.toml").read_text() == SAMPLE_CONFIG
    assert stat.S_IMODE((home / "keys/signing.pem").stat().st_mode) == 0o600
    for said in ("agentctl serve", "agentctl token mint", "agentctl teams list"):
        assert said in ended.stderr
    assert "cd " not in ended.stderr
    assert agentctl("config", "check").code == 0
    token = agentctl("token", "mint", "--sub", "me", "--scope", "teams:read").stdout
    assert agentctl("token", "verify", "-", input=token).code == 0


def test_init_creates_a_given_directory(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init", "a b/c")
    assert ended.code == 0
    assert set(_files(home / "a b/c")) == {
        "agentctl.toml",
        "keys/signing.pem",
        "keys/signing.pub.pem",
    }
    assert "cd 'a b/c'" in ended.stderr


@pytest.mark.parametrize("name", ["agentctl.toml", "keys/signing.pem", "keys/signing.pub.pem"])
def test_init_overwrites_nothing(agentctl: Agentctl, home: Path, name: str) -> None:
    (home / "keys").mkdir()
    (home / name).write_text("precious")
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (6, "")
    assert f"{name} already exists" in ended.stderr
    assert _files(home) == {name: "precious"}


def test_a_failed_init_leaves_no_files(agentctl: Agentctl, home: Path) -> None:
    (home / "keys").write_text("precious")
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (2, "")
    assert _files(home) == {"keys": "precious"}


def test_an_uncreatable_directory_is_reported(agentctl: Agentctl, home: Path) -> None:
    (home / "file").write_text("")
    ended = agentctl("init", "file/inside")
    assert (ended.code, ended.stdout) == (2, "")
    assert "error: " in ended.stderr


KINDS = ["function", "pydantic-ai", "langgraph", "mcp"]
ANSWERS = {
    "function": "me, message 1: hello",
    "pydantic-ai": '{"identify_user":"me"}',
    "langgraph": "me, after 0 messages: hello",
    "mcp": "note 1: hello",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_new_agent_passes_its_test_and_answers(
    agentctl: Agentctl, home: Path, environment: dict[str, str], kind: str
) -> None:
    folder = home / "project"
    made = agentctl("init", "project", "--agent", kind)
    assert (made.code, made.stdout) == (0, ""), made.stderr
    module = "notes_server" if kind == "mcp" else "my_agent"
    made_files = {"agentctl.toml", f"{module}.py", f"test_{module}.py", "README.md"}
    assert made_files <= set(_files(folder))
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tested.returncode == 0, tested.stdout
    assert "1 passed" in tested.stdout
    config = folder / "agentctl.toml"
    assert agentctl("config", "check", "--config", str(config)).code == 0
    with serve_config(config) as server:
        minting = ("token", "mint", "--sub", "me", "--scope", "agents:run")
        token = agentctl(*minting, "--config", str(config)).stdout.strip()
        start = ("runs", "start", "--agent", "assistant", "--message", "hello")
        ended = agentctl(*start, "--url", server.url, env={"AGENTCTL_TOKEN": token})
        assert (ended.code, ended.stdout) == (0, f"{ANSWERS[kind]}\n"), ended.stderr


@pytest.mark.parametrize("name", ["my_agent.py", "test_my_agent.py", "README.md"])
def test_a_new_agent_overwrites_nothing(agentctl: Agentctl, home: Path, name: str) -> None:
    (home / name).write_text("precious")
    ended = agentctl("init", "--agent", "function")
    assert (ended.code, ended.stdout) == (6, "")
    assert _files(home) == {name: "precious"}


def test_an_unknown_kind_of_agent_is_rejected(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init", "--agent", "crew")
    assert (ended.code, ended.stdout) == (2, "")
    assert "--agent must be function, pydantic-ai" in ended.stderr
    assert _files(home) == {}


@pytest.mark.parametrize("kind", [*KINDS, "demo"])
def test_templates_are_formatted(kind: str, tmp_path: Path) -> None:
    for source in (TEMPLATES / kind.replace("-", "_")).glob("*.py.txt"):
        (tmp_path / source.name.removesuffix(".txt")).write_text(source.read_text())
    for command in (["format", "--check"], ["check"]):
        line = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml")]
        ended = subprocess.run([*line, str(tmp_path)], capture_output=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
