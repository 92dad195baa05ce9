"""`agents`, `teams` and `workflows`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.kit.tables import every_row

IDS = {
    "agents": ["echo", "slow", "greet", "count", "clerk", "notes"],
    "teams": ["duo"],
    "workflows": ["relay"],
}


@every_row("group", IDS)
def test_name_format_is_the_ids_in_order(on_demo: Agentctl, group: str) -> None:
    assert on_demo(group, "list", "-o", "name").lines == IDS[group]


def test_tsv_has_a_heading_and_readable_cells(on_demo: Agentctl) -> None:
    heading, row = (line.split("\t") for line in on_demo("teams", "list").lines)
    assert heading == ["team_id", "name", "mode", "model", "members", "description"]
    assert row[:5] == ["duo", "Duo", "coordinate", "leader", "echo, slow"]


def test_one_component_as_a_table_has_one_field_per_line(on_demo: Agentctl) -> None:
    lines = on_demo("workflows", "get", "relay", "-o", "table").lines
    assert lines[0].split() == ["workflow", "id", "relay"]
    assert any(line.split() == ["steps", "repeat", ">", "discuss"] for line in lines)


def test_jsonl_is_one_record_per_line(on_demo: Agentctl) -> None:
    records = [json.loads(line) for line in on_demo("agents", "list", "-o", "jsonl").lines]
    assert [record["agent_id"] for record in records] == IDS["agents"]


def test_only_the_server_knows_the_tools_of_an_mcp_server(agentctl: Agentctl, demo: Demo) -> None:
    """Everything else in the lists is the same (docs/mcp.md)."""
    here = agentctl("agents", "list", "-o", "json", "--config", str(demo.config))
    there = agentctl(
        *("agents", "list", "-o", "json", "--url", demo.url), env={"AGENTCTL_TOKEN": demo.token}
    )
    assert (here.stderr, there.stderr) == ("", "")
    assert here.raw.endswith(b"]\n")

    local_agents = json.loads(here.raw)
    remote_agents = json.loads(there.raw)
    assert local_agents[-1].pop("tools") == []
    assert remote_agents[-1].pop("tools") != []
    assert local_agents == remote_agents


def test_a_missing_component_is_reported_with_the_target(through: Agentctl) -> None:
    ended = through("agents", "get", "nobody")
    assert (ended.code, ended.stdout) == (5, "")
    error, cause, empty, hint = ended.stderr.splitlines()
    assert (error, empty) == ("error: agent not found: nobody", "")
    assert cause.startswith("  cause: not found ")
    assert hint.startswith("hint: list them with: agentctl agents list --")


def test_a_similar_component_is_suggested(on_demo: Agentctl) -> None:
    for wrong in (["agents", "get", "ecko"], ["runs", "start", "--agent", "ecko", "-m", "hi"]):
        ended = on_demo(*wrong)
        assert ended.code == 5
        assert "\nhint: did you mean echo? list them with: agentctl agents list" in ended.stderr


def test_components_are_listed_without_a_database(agentctl: Agentctl, tmp_path: Path) -> None:
    folder = tmp_path / "fresh"
    folder.mkdir()
    assert agentctl("init", str(folder)).code == 0
    listed = agentctl("agents", "list", "-o", "name", "--config", str(folder / "agentctl.toml"))
    assert listed.code == 0
    assert listed.lines
    assert not (folder / "agentctl.db").exists()
