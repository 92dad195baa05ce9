"""`agentctl config`: values, their sources, and the validation."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from agentctl.config.extras import build_extra_command
from tests.cli.conftest import Agentctl
from tests.cli.projects import make_project

AGENT = """
[server]
port = 8080
[[models]]
id = "fast"
provider = "demo"
model = "echo"
[[agents]]
id = "writer"
model = "fast"
"""


@pytest.fixture
def project(home: Path) -> Path:
    return make_project(home, rest=AGENT)


def test_show_with_sources(agentctl: Agentctl, project: Path) -> None:
    ended = agentctl("config", "show", "--sources", env={"AGENTCTL_SERVER__NAME": "mine"})
    assert (ended.code, ended.stderr) == (0, "")
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in ended.lines}
    assert rows["server.name"] == ["mine", "env AGENTCTL_SERVER__NAME"]
    assert rows["server.port"][0] == "8080"
    assert rows["server.port"][1].startswith(f"{project}:")
    assert rows["server.host"] == ["127.0.0.1", "default"]
    assert rows["agents.writer.model"][0] == "fast"
    assert all(source for _, source in list(rows.values())[1:])


def test_show_as_json(agentctl: Agentctl, project: Path) -> None:
    shown = json.loads(agentctl("config", "show", "-o", "json").stdout)
    assert shown["server"]["port"] == 8080
    assert shown["agents"][0]["id"] == "writer"
    assert "sources" not in shown
    shown = json.loads(agentctl("config", "show", "--sources", "-o", "json").stdout)
    assert shown["sources"]["server.host"] == "default"


def test_secrets_are_masked(agentctl: Agentctl, project: Path) -> None:
    secret = "x7Zq-this-is-a-secret-of-enough-length-0123456789"
    text = project.read_text().replace("ES256", "HS256").replace("verification_key_files", "#")
    project.write_text(text)
    env = {"JWT_VERIFICATION_KEY": secret}
    for form in ("json", "tsv", "table", "jsonl"):
        ended = agentctl("config", "show", "--sources", "-o", form, env=env)
        assert ended.code == 0, ended.stderr
        assert secret not in ended.stdout + ended.stderr
        assert "JWT_VERIFICATION_KEY" in ended.stdout


def test_check_accepts_a_valid_configuration(agentctl: Agentctl, project: Path) -> None:
    ended = agentctl("config", "check")
    assert (ended.code, ended.stdout) == (0, "")
    assert ended.stderr == f"{project} is valid: 1 agent, 0 teams, 0 workflows\n"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("port = 8080", "prot = 8080", "server.prot"),
        ("port = 8080", 'port = "x"', "server.port"),
        ('model = "fast"', 'model = "slow"', "agents.writer.model"),
        ("[server]", "[server", "is not valid TOML"),
        ('algorithm = "ES256"', 'algorithm = "RS256"', "RS256"),
        ("signing.pub.pem", "none.pem", "none.pem does not exist"),
    ],
)
def test_check_reports_an_invalid_configuration(
    agentctl: Agentctl, project: Path, old: str, new: str, told: str
) -> None:
    project.write_text(project.read_text().replace(old, new))
    ended = agentctl("config", "check")
    assert (ended.code, ended.stdout) == (2, "")
    assert told in ended.stderr


def test_check_names_the_models_that_code_can_call(agentctl: Agentctl, project: Path) -> None:
    check_unknown_model(agentctl, project, "pydantic_ai", "Model('slow')")


@pytest.mark.parametrize(
    ("module", "model"),
    [
        ("langchain", "ChatModel(model='slow')"),
        ("agno", "Model(id='slow')"),
        ("openai_agents", "Model('slow')"),
    ],
)
def test_check_names_the_models_for_each_library(
    agentctl: Agentctl, project: Path, module: str, model: str
) -> None:
    check_unknown_model(agentctl, project, module, model)


def check_unknown_model(agentctl: Agentctl, project: Path, module: str, model: str) -> None:
    """Check a project whose code names a model that is not configured."""
    imported = f"from agentctl import {module}\n"
    name = f"naming_{module}"
    (project.parent / f"{name}.py").write_text(
        f"{imported}model = {module}.{model}\nasync def answer(message):\n    return message\n"
    )
    added = f'\n[[agents]]\nid = "code"\nobject = "{name}:answer"\n'
    project.write_text(project.read_text() + added)
    ended = agentctl("config", "check")
    assert (ended.code, ended.stdout) == (2, "")
    assert (
        f"{name}.py, line 2: ValueError: the model slow is not configured; [[models]] has: fast"
    ) in ended.stderr


def test_check_imports_the_code_of_tools_and_agents(agentctl: Agentctl, project: Path) -> None:
    (project.parent / "checked_code.py").write_text(
        'print("loud")\nasync def answer(message):\n    return message\nnumber = 5\n'
    )
    text = project.read_text()
    added = '\n[[agents]]\nid = "code"\nobject = "checked_code:{}"\n'
    project.write_text(text + added.format("answer"))
    ended = agentctl("config", "check")
    assert (ended.code, ended.stdout) == (0, "")
    assert "2 agents" in ended.stderr
    for name, problem in (("number", "it is an object of the type int"), ("no", "has no no")):
        project.write_text(text + added.format(name))
        ended = agentctl("config", "check")
        assert (ended.code, ended.stdout) == (2, "")
        error, hint = ended.stderr.removeprefix("loud\n").strip().split("\n\n")
        assert error.startswith("error: the agent code cannot use the object 'checked_code:")
        assert problem in error
        assert "\n" not in error
        assert hint.startswith("hint: ")
    project.write_text(text + added.format("answer") + 'instructions = "x"\n')
    assert (
        "agents.code.instructions: has no effect with object" in agentctl("config", "check").stderr
    )
    project.write_text(text.replace('id = "writer"', 'id = "writer"\ntools = ["checked_code:no"]'))
    assert "cannot use the tool 'checked_code:no'" in agentctl("config", "check").stderr


def test_check_reports_missing_keys(agentctl: Agentctl, home: Path) -> None:
    (home / "agentctl.toml").write_text("")
    assert agentctl("config", "check").code == 2
    (home / "agentctl.toml").write_text("[authorization]\nenabled = false\n")
    assert agentctl("config", "check").code == 0


def test_path_prints_the_file(agentctl: Agentctl, project: Path, tmp_path: Path) -> None:
    assert agentctl("config", "path").stdout == f"{project}\n"
    assert agentctl("config", "path", "--config", "/x/y.toml").stdout == "/x/y.toml\n"
    assert agentctl("config", "path", env={"AGENTCTL_CONFIG": "/z.toml"}).stdout == "/z.toml\n"
    ended = agentctl("config", "path", cwd=tmp_path)
    assert (ended.code, ended.stdout) == (2, "")
    assert "agentctl init" in ended.stderr


VENDORS = """
[[models]]
id = "claude"
provider = "anthropic"
model = "claude-sonnet-5"
api_key_env = "TEST_ANTHROPIC_KEY"
fallbacks = ["spare"]
[[models]]
id = "spare"
provider = "groq"
model = "llama"
[[models]]
id = "unused"
provider = "mistral"
model = "m"
[[agents]]
id = "other"
model = "claude"
"""


def test_check_names_missing_keys_and_libraries_of_models(
    agentctl: Agentctl, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_text(project.read_text() + VENDORS)

    ended = agentctl("config", "check")

    assert ended.code == 0
    assert ended.stderr.splitlines()[:-1] == [
        "model claude: the variable TEST_ANTHROPIC_KEY with its API key is not set here",
        "model spare: it has no API key; set api_key_env in its entry",
    ]
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "anthropic" else find_spec(name, *rest),
    )
    ended = agentctl("config", "check")
    assert ended.code == 2
    assert ended.stderr.splitlines() == [
        "error: the library of the model claude (provider anthropic) is not installed",
        "",
        f"hint: {build_extra_command('anthropic')}",
    ]
    key = {"TEST_ANTHROPIC_KEY": "k"}
    ended = agentctl("runs", "start", "--agent", "other", "-m", "hi", env=key)
    assert ended.code == 1
    assert f"hint: {build_extra_command('anthropic')}" in ended.stderr
    ended = agentctl("doctor", env=key)
    assert "library of the model claude" in ended.stdout
    assert "model spare" in ended.stdout
    assert "model unused" not in ended.stdout
