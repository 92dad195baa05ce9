"""`agentctl init`: something to begin with, and nothing lost."""

from __future__ import annotations

import importlib.util
import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agentctl.cli.commands.init import AgentKind
from agentctl.cli.files import find_program_folder
from agentctl.config import SAMPLE_CONFIG
from tests.cli.conftest import Agentctl

ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "agentctl" / "cli" / "templates"
WRITTEN = {"agentctl.toml", "agentctl.schema.json", "keys/signing.pem", "keys/signing.pub.pem"}
SCHEMA_LINE = "#:schema ./agentctl.schema.json\n"

WEATHER = """
async def agent(message, context):
    return f"sunny in {message}"
"""


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_new_project_works(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (0, "")
    assert set(_files(home)) == WRITTEN
    assert stat.S_IMODE((home / "keys/signing.pem").stat().st_mode) == 0o600
    for said in ("agentctl serve", "agentctl token mint", "agentctl runs start --agent writer"):
        assert said in ended.stderr
    assert "cd " not in ended.stderr
    assert agentctl("config", "check").code == 0
    token = agentctl("token", "mint", "--sub", "me", "--scope", "teams:read").stdout
    assert agentctl("token", "verify", "-", input=token).code == 0
    assert agentctl("runs", "start", "--agent", "writer", "-m", "hello").stdout == "hello\n"
    findings = json.loads(agentctl("doctor", "-o", "json").raw)
    wrong = {each["check"] for each in findings if each["verdict"] == "wrong"}
    assert wrong - {"versions"} == set()  # of the environment, not of the project


def test_configuration_of_a_newcomer_is_short(agentctl: Agentctl, home: Path) -> None:
    assert agentctl("init").code == 0
    text = (home / "agentctl.toml").read_text()
    assert len(text.splitlines()) <= 40
    assert text.startswith(SCHEMA_LINE)
    for named in ("agentctl init --full", "docs/reference/configuration.md"):
        assert named in text.rpartition("\n\n")[2]
    assert (ROOT / "docs/reference/configuration.md").exists()


@pytest.mark.parametrize("kind", [None, *get_args(AgentKind)])
def test_full_configuration_has_every_key(agentctl: Agentctl, home: Path, kind: str | None) -> None:
    options = () if kind is None else ("--agent", kind)
    assert agentctl("init", "--full", *options).code == 0
    text = (home / "agentctl.toml").read_text().removeprefix(SCHEMA_LINE)
    sample = text[: len(SAMPLE_CONFIG)]
    own = "assistant"
    assert sample == SAMPLE_CONFIG
    named = agentctl("agents", "list", "-o", "name").lines
    assert named == ["writer", "editor", *([own] if kind else [])]


def test_own_object_is_hosted_as_it_is(agentctl: Agentctl, home: Path) -> None:
    (home / "weather.py").write_text(WEATHER)
    ended = agentctl("init", "--object", "weather:agent")
    assert ended.code == 0
    assert "agentctl runs start --agent weather" in ended.stderr
    assert "note: " not in ended.stderr
    assert agentctl("config", "check").code == 0
    assert agentctl("runs", "start", "--agent", "weather", "-m", "Oslo").stdout == "sunny in Oslo\n"


def test_module_that_is_missing_is_noted(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init", "new", "--object", "forecasts.daily:agent")
    assert ended.code == 0
    assert "note: forecasts is neither in new nor installed: put forecasts.py there" in ended.stderr
    text = (home / "new" / "agentctl.toml").read_text()
    assert 'id = "daily"\nobject = "forecasts.daily:agent"\n' in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--object", "weather.py"), "error: --object 'weather.py' is not MODULE:NAME"),
        (("--object", "weather/agent.py:agent"), "in it: --object weather.agent:agent"),
        (("--object", "weather.py:graph"), "in it: --object weather:graph"),
        (("--object", "weather"), "is not MODULE:NAME"),
        (
            ("--object", "a:b", "--agent", "function"),
            "--object and --agent cannot be used together",
        ),
    ],
)
def test_wrong_object_leaves_no_files(
    agentctl: Agentctl, home: Path, options: tuple[str, ...], said: str
) -> None:
    ended = agentctl("init", *options)
    assert ended.code == 2
    assert said in ended.stderr
    assert ("hint: " in ended.stderr) == ("MODULE:NAME" in ended.stderr)
    assert _files(home) == {}


def test_init_creates_a_given_directory(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init", "a b/c")
    assert ended.code == 0
    assert set(_files(home / "a b/c")) == WRITTEN
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


def test_missing_packages_are_installed_first(
    agentctl: Agentctl, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed commands work where only agentctl is installed."""
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> object:
        return None if name in ("pytest", "pydantic_ai") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    said = agentctl("init", "project", "--agent", "pydantic-ai").stderr
    steps = said.partition("next, in one terminal:")[2].splitlines()
    extra, tool, test = (at for at, step in enumerate(steps) if "pytest" in step or "[" in step)
    assert "pip install" in steps[extra]
    assert "pydantic-ai]" in steps[extra]
    assert steps[tool].endswith("-m pip install pytest")
    assert steps[test].strip() == "python -m pytest"


def test_steps_put_the_program_on_the_path_if_it_is_not_there(
    agentctl: Agentctl, tmp_path: Path
) -> None:
    folder = find_program_folder()
    hidden = agentctl("init", "hidden", env={"PATH": str(tmp_path)}).stderr
    assert hidden.count(f'  export PATH={folder}:"$PATH"\n') == 2
    assert "export PATH" not in agentctl("init", "shown", env={"PATH": str(folder)}).stderr


def test_steps_name_the_port_of_the_environment(agentctl: Agentctl) -> None:
    said = agentctl("init", "project", env={"AGENTCTL_SERVER__PORT": "4321"}).stderr
    assert "agentctl console --sub me --url http://127.0.0.1:4321" in said
    assert "7777" not in said


def test_steps_leave_the_configuration_of_another_project(agentctl: Agentctl, home: Path) -> None:
    other = {"AGENTCTL_CONFIG": str(home / "other.toml")}
    own = {"AGENTCTL_CONFIG": str(home / "third" / "agentctl.toml")}
    assert agentctl("init", "first", env=other).stderr.count("  unset AGENTCTL_CONFIG\n") == 2
    assert "unset" not in agentctl("init", "second").stderr
    assert "unset" not in agentctl("init", "third", env=own).stderr


@pytest.mark.parametrize("options", [(), ("--agent", "function")])
def test_mistake_in_the_environment_leaves_no_files(
    agentctl: Agentctl, home: Path, options: tuple[str, ...]
) -> None:
    ended = agentctl("init", *options, env={"AGENTCTL_SERVER__PORT": "many"})
    assert ended.code == 2
    assert "AGENTCTL_SERVER__PORT" in ended.stderr
    assert "wrote" not in ended.stderr
    assert _files(home) == {}


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


def test_templates_are_formatted(tmp_path: Path) -> None:
    for kind in (*get_args(AgentKind), "demo"):
        folder = tmp_path / kind
        folder.mkdir()
        for source in (TEMPLATES / kind.replace("-", "_")).glob("*.py.txt"):
            (folder / source.name.removesuffix(".txt")).write_text(source.read_text())
    for command in (["format", "--check"], ["check"]):
        line = [sys.executable, "-m", "ruff", *command, "--config", str(ROOT / "pyproject.toml")]
        ended = subprocess.run([*line, str(tmp_path)], capture_output=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("kind", ["openai-agents", "agno"])
def test_agent_of_a_new_project_answers_offline(agentctl: Agentctl, home: Path, kind: str) -> None:
    made = agentctl("init", "--agent", kind)
    assert made.code == 0, made.stderr
    ended = agentctl("runs", "start", "--agent", "assistant", "-m", "hello")
    assert (ended.code, ended.stdout) == (0, "hello\n"), ended.stderr
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=home, capture_output=True, check=False
    )
    assert tested.returncode == 0, tested.stdout
