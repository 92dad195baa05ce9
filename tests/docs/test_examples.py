"""The TOML, JSON and Python examples of the pages are valid."""

from __future__ import annotations

import ast
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from agentctl.config import load_settings
from agentctl.config.settings import Settings
from agentctl.records.kinds import KINDS
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.records import build_record
from tests.cli.projects import make_project
from tests.kit.documents import Block, Page, page, pages
from tests.kit.tables import every_row


def examples(language: str) -> list[tuple[Page, Block]]:
    return [(tested, block) for tested in pages() for block in tested.blocks(language)]


def with_references(document: dict[str, Any]) -> dict[str, Any]:
    """Add the agents and models that the configuration refers to and does not define."""
    agents = document.setdefault("agents", [])
    teams = document.setdefault("teams", [])
    flows = document.setdefault("workflows", [])
    models = document.setdefault("models", [])
    steps = [step for flow in flows for step in flow["steps"]]
    wanted = [member for team in teams for member in team["members"]]
    wanted += [step["agent"] for step in steps if "agent" in step]
    there = {entry["id"] for entry in (*agents, *teams)}
    agents += [{"id": name, "model": "fast"} for name in dict.fromkeys(wanted) if name not in there]
    named = dict.fromkeys(entry["model"] for entry in (*agents, *teams) if "object" not in entry)
    known = {model["id"] for model in models}
    models += [_demo_model(name) for name in named if name not in known]
    return document


def _demo_model(name: str) -> dict[str, str]:
    return {"id": name, "provider": "demo", "model": "echo"}


def load_example(block: Block, folder: Path) -> Settings:
    file = folder / "agentctl.toml"
    file.write_text(tomli_w.dumps(with_references(tomllib.loads(block.text))))
    return load_settings(file, {})


@every_row("tested, block", examples("toml"))
def test_toml_examples_are_valid_configuration(tested: Page, block: Block, tmp_path: Path) -> None:
    load_example(block, tmp_path)


def test_json_examples_are_valid() -> None:
    for tested in pages():
        for block in tested.blocks("json"):
            assert json.loads(block.text), f"{tested.name}:{block.line}"


@every_row("tested, block", examples("python"))
def test_python_examples_compile(tested: Page, block: Block) -> None:
    ast.parse(block.text)


def test_tool_of_the_quick_start_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tested = page("docs/quickstart.md")
    block = next(each for each in tested.blocks("toml") if "tools = " in each.text)
    settings = load_example(block, tmp_path)
    [agent] = settings.agents
    module, _, function = agent.tools[0].partition(":")
    (tmp_path / f"{module}.py").write_text(tested.blocks("python")[0].text)
    assert f"`{module}.py`" in tested.text
    monkeypatch.syspath_prepend(tmp_path)
    catalog = Catalog.from_settings(settings)
    component = catalog.get(KINDS["agent"].kind, agent.id)
    assert component is not None
    [tool] = build_record(catalog, component)["tools"]
    assert (tool["name"], tool["parameters"]["required"]) == (function, ["article"])
    assert "in euros" in tool["description"]


def test_mounting_example_serves_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.testclient import TestClient

    monkeypatch.setenv("AGENTCTL_CONFIG", str(make_project(tmp_path)))
    [block] = page("docs/api.md").blocks("python")
    names: dict[str, Any] = {}
    exec(compile(block.text, "docs/api.md", "exec"), names)
    with TestClient(names["app"]) as client:
        assert client.get("/agents/health").json() == {"status": "ok"}
        assert client.get("/agents/ready").json()["status"] == "ready"
