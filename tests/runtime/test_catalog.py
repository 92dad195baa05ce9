"""The catalog and its records, field by field (docs/contract.md "Component records")."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from agentctl.config.settings import Agent, Model, Settings, Step, Team, Workflow
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import prepare_components
from agentctl.runtime.components.records import build_record, build_session_data
from tests.kit.fake_context import settings
from tests.runtime import sample_tools

MODEL = {"name": "m", "model": "echo", "provider": "demo"}


def catalog(configured: Settings | None = None) -> Catalog:
    """Build a catalog with components of every kind."""
    return Catalog.from_settings(configured or everything())


def everything() -> Settings:
    return settings(
        tools=(f"{sample_tools.TOOLS}:shout",),
        agents=(
            Agent("editor", "m", name="Editor", description="Corrects texts", database="other"),
        ),
        teams=(
            Team("news", "m", ("editor", "writer"), name="Newsroom", description="Writes"),
            Team(
                "desk", "m", ("news", "writer"), mode="route", tools=(f"{sample_tools.TOOLS}:add",)
            ),
            Team("crowd", "m", ("writer",), mode="broadcast", database="other"),
        ),
        workflows=(
            Workflow(
                "publish",
                (Step("draft", agent="writer"), Step("review", team="news")),
                name="Publish",
                description="Makes it public",
            ),
        ),
    )


def record(kind: str, component_id: str) -> dict[str, object]:
    listed = catalog()
    component = listed.get(kind, component_id)  # type: ignore[arg-type]
    assert component is not None
    return dict(build_record(listed, component))


def test_components_keep_the_order_of_the_configuration() -> None:
    listed = catalog()

    assert list(listed.components("agent")) == ["writer", "editor"]
    assert list(listed.components("team")) == ["news", "desk", "crowd"]
    assert list(listed.components("workflow")) == ["publish"]
    assert listed.get("agent", "news") is None


def test_missing_settings_of_a_component_have_defaults() -> None:
    writer = catalog().components("agent")["writer"]

    assert (writer.name, writer.description, writer.database) == ("writer", "", "main")
    assert (writer.on_busy, writer.history_runs) == ("allow", 5)


def test_agent_record() -> None:
    assert record("agent", "writer") == {
        "agent_id": "writer",
        "id": "writer",
        "name": "writer",
        "description": "",
        "model": MODEL,
        "tools": [
            {
                "name": "shout",
                "description": "",
                "parameters": {
                    "type": "object",
                    "properties": {"text": {"type": "string"}},
                    "required": ["text"],
                    "additionalProperties": False,
                },
            }
        ],
        "session_table": "sessions",
        "db_id": "main",
    }


def test_team_record_has_every_field() -> None:
    news = record("team", "news")

    assert set(news) == {
        *("team_id", "name", "mode", "model", "tools", "members", "enable_agentic_context"),
        *("memory", "knowledge", "async_mode", "session_table", "memory_table"),
        *("id", "description", "db_id"),
    }
    assert (news["team_id"], news["id"], news["name"]) == ("news", "news", "Newsroom")
    assert (news["description"], news["mode"], news["model"]) == ("Writes", "coordinate", MODEL)
    assert news["enable_agentic_context"] is False
    assert news["async_mode"] is True
    assert (news["memory"], news["memory_table"], news["knowledge"]) == (None, None, None)
    assert (news["session_table"], news["db_id"]) == ("sessions", "main")


def test_member_records() -> None:
    assert record("team", "news")["members"] == [
        {
            "agent_id": member,
            "name": name,
            "model": MODEL,
            "memory": None,
            "session_table": "sessions",
            "memory_table": None,
        }
        for member, name in (("editor", "Editor"), ("writer", "writer"))
    ]


def test_team_as_a_member_has_a_team_record() -> None:
    members = record("team", "desk")["members"]

    assert isinstance(members, list)
    assert members[0] == record("team", "news")
    assert members[1]["agent_id"] == "writer"


@pytest.mark.parametrize(
    ("team", "names"),
    [("news", ["delegate_task_to_member"]), ("desk", ["route_to_member", "add"]), ("crowd", [])],
)
def test_team_tools_are_delegation_and_configured_tools(team: str, names: list[str]) -> None:
    tools = record("team", team)["tools"]

    assert isinstance(tools, list)
    assert [tool["name"] for tool in tools] == names
    for tool in tools:
        assert set(tool) == {"name", "description", "parameters"}
        assert set(tool["parameters"]) == {
            *("type", "properties", "required", "additionalProperties")
        }


def test_delegation_tool_lists_the_members() -> None:
    tools = record("team", "news")["tools"]

    assert isinstance(tools, list)
    properties = tools[0]["parameters"]["properties"]
    assert list(properties) == tools[0]["parameters"]["required"] == ["member_id", "task"]
    assert properties["member_id"]["enum"] == ["editor", "writer"]


def test_workflow_record() -> None:
    assert record("workflow", "publish") == {
        "workflow_id": "publish",
        "id": "publish",
        "name": "Publish",
        "description": "Makes it public",
        "steps": [{"name": "draft", "agent_id": "writer"}, {"name": "review", "team_id": "news"}],
        "db_id": "main",
    }


def test_component_data_of_sessions() -> None:
    listed = catalog()
    kept = {
        kind: build_session_data(listed, next(iter(listed.components(kind).values())))
        for kind in ("agent", "team", "workflow")
    }

    assert kept == {
        "agent": {"name": "writer", "agent_id": "writer", "model": MODEL},
        "team": {"name": "Newsroom", "team_id": "news", "model": MODEL},
        "workflow": {
            "name": "Publish",
            "workflow_id": "publish",
            "steps": [
                {"name": "draft", "agent_id": "writer"},
                {"name": "review", "team_id": "news"},
            ],
        },
    }


@pytest.mark.parametrize(
    ("configured", "kind", "component", "told"),
    [
        (
            Settings(agents=(Agent("a", "none"),)),
            "agent",
            "a",
            "The agent a names an unknown model 'none'",
        ),
        (
            settings(teams=(Team("t", "m", ("none",)),)),
            "team",
            "t",
            "The team t names an unknown member 'none'",
        ),
        (
            settings(workflows=(Workflow("w", (Step("s", agent="none"),)),)),
            "workflow",
            "w",
            "The workflow w names an unknown agent 'none'",
        ),
    ],
)
def test_unknown_reference_is_refused(
    configured: Settings, kind: str, component: str, told: str
) -> None:
    listed = catalog(configured)
    found = listed.get(kind, component)  # type: ignore[arg-type]
    assert found is not None

    with pytest.raises(InvalidConfiguration) as refused:
        build_record(listed, found)

    assert refused.value.detail == told


def test_prepare_finds_unusable_components() -> None:
    def prepared(configured: Settings) -> None:
        listed = catalog(configured)
        prepare_components(listed)
        asyncio.run(listed.close())

    prepared(everything())
    prepared(Settings(models=(Model("m", "openai", "gpt"),), agents=(Agent("a", "m"),)))
    with pytest.raises(InvalidConfiguration, match="agent writer cannot use the tool"):
        prepared(settings(tools=("not.there:tool",)))
    with pytest.raises(InvalidConfiguration, match="has no model"):
        prepared(settings(model="gpt"))


def test_records_do_not_import_the_model_library() -> None:
    program = """
import sys
from agentctl.config.settings import Agent, Database, Model, Settings, Team
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import prepare_components
from agentctl.runtime.components.records import build_record, build_session_data
configured = Settings(
    databases=(Database("main", "x"),), models=(Model("m", "demo", "echo"),),
    agents=(Agent("a", "m", tools=("tests.runtime.sample_tools:shout",)),),
    teams=(Team("t", "m", ("a",)),),
)
listed = Catalog.from_settings(configured)
for kind in ("agent", "team"):
    for component in listed.components(kind).values():
        build_record(listed, component), build_session_data(listed, component)
print([name for name in ("pydantic", "pydantic_ai", "openai") if name in sys.modules])
"""

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    # The settings load pydantic.
    assert done.stdout.strip() == "['pydantic']"
