"""The sample and demo configurations load and match the defaults."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from agentctl.config import SAMPLE_CONFIG, load_settings, require_verification_key
from agentctl.config.load import DEMO_CONFIG, DEMO_MCP_CONFIG
from agentctl.config.settings import Agent, Settings, Team, Workflow

TOP = Path(__file__).parents[2]

NOT_DEFAULT = {("authorization", "verification_key_files")}
"""The key that `agentctl init` needs: the public key of the generated pair."""


def test_sample_file_is_a_copy_of_the_packaged_one() -> None:
    assert (TOP / "sample-config.toml").read_text(encoding="utf-8") == SAMPLE_CONFIG


@pytest.mark.parametrize(
    "table",
    ["server", "authorization", "signing", "runs", "limits", "quotas", "approvals", "audit"],
)
def test_sample_has_every_key_with_its_default(table: str) -> None:
    shown = tomllib.loads(SAMPLE_CONFIG)[table]
    defaults = dataclasses.asdict(getattr(Settings(), table))
    assert shown.keys() == defaults.keys()
    for key, value in defaults.items():
        plain = value
        if value is None:
            plain = ""
        elif isinstance(value, tuple):
            plain = list(value)
        elif isinstance(value, Path):
            plain = str(value)

        if (table, key) not in NOT_DEFAULT:
            assert (key, shown[key]) == (key, plain)


@pytest.mark.parametrize(
    ("table", "kind"), [("agents", Agent), ("teams", Team), ("workflows", Workflow)]
)
def test_sample_has_every_key_of_a_component(table: str, kind: type) -> None:
    shown = tomllib.loads(SAMPLE_CONFIG)[table][0]
    names = {field.name for field in dataclasses.fields(kind)}
    # An object takes the place of a model: it is shown in a comment, with its deps.
    assert shown.keys() == names - {"deps", "object", "store", "configurable"}
    assert "# object = " in SAMPLE_CONFIG
    for field in dataclasses.fields(kind):
        if field.name in {"history_runs", "model_calls", "on_busy", "mode"}:
            assert shown[field.name] == field.default


def test_sample_loads_with_the_keys_of_init(tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text(SAMPLE_CONFIG, encoding="utf-8")
    settings = load_settings(file, {})
    require_verification_key(settings)
    assert settings.signing.key_file == tmp_path / "keys/signing.pem"
    assert settings.authorization.verification_key_files == (tmp_path / "keys/signing.pub.pem",)
    assert {model.provider for model in settings.models} == {"demo"}


def test_commented_model_of_the_sample_loads(tmp_path: Path) -> None:
    start = SAMPLE_CONFIG.index("# [[models]]")
    commented = SAMPLE_CONFIG[start : SAMPLE_CONFIG.index("\n\n", start)]
    file = tmp_path / "agentctl.toml"
    file.write_text("\n".join(line.removeprefix("# ") for line in commented.splitlines()))
    (model,) = load_settings(file, {}).models
    assert (model.provider, model.api_key_env) == ("openai", "OPENAI_API_KEY")


def test_demo_has_agents_a_team_and_a_workflow(tmp_path: Path) -> None:
    file = tmp_path / "agentctl.toml"
    file.write_text(DEMO_CONFIG + DEMO_MCP_CONFIG, encoding="utf-8")
    settings = load_settings(file, {})
    require_verification_key(settings)
    assert [agent.id for agent in settings.agents] == [
        "echo",
        "slow",
        "greet",
        "count",
        "clerk",
        "notes",
    ]
    assert [(team.id, team.members) for team in settings.teams] == [("duo", ("echo", "slow"))]
    (relay,) = settings.workflows
    assert [(step.agent, step.team) for step in relay.steps] == [("echo", ""), ("", "duo")]
    assert {model.provider for model in settings.models} == {"demo"}
    assert settings.server.host == "127.0.0.1"
