"""`approve`, `external_tools` and `agentctl.tool`: refused values, and gated calls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import agentctl
from agentctl.config.settings import Agent, Approvals, Authorization, Memory, Settings
from agentctl.config.tables import settings_from_text, settings_to_text
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.tools.call_rules import may_match
from tests.config.conftest import AGENT, Reads, Refuses, file, reads, refuses
from tests.kit.command import Result, run_command
from tests.kit.fake_context import settings
from tests.kit.process import base_environment

__all__ = ["file", "reads", "refuses"]

TOOLS = '''
import agentctl

@agentctl.tool(approve="user")
def refund(amount: int) -> str:
    """Pay money back."""
    return ""

@agentctl.tool(approve="other")
def wire(amount: int) -> str:
    """Send money."""
    return ""

@agentctl.tool
def note(text: str) -> str:
    """Write a note."""
    return ""
'''

OPEN = {"name": "open_file", "description": "Open", "parameters": {"type": "object"}}


def build(tmp_path: Path, **keys: Any) -> tuple[Catalog, Component]:
    (tmp_path / "gated_tools.py").write_text(TOOLS)
    tools = keys.pop("tools", ("gated_tools:refund", "gated_tools:wire", "gated_tools:note"))
    base = replace(
        settings(agents=(Agent("a", "m", tools=tools, **keys),)), path=tmp_path / "agentctl.toml"
    )
    return catalog_of(base)


def catalog_of(configured: Settings) -> tuple[Catalog, Component]:
    catalog = Catalog.from_settings(configured)
    component = catalog.get("agent", "a")
    assert component is not None
    return catalog, component


def policies(catalog: Catalog, component: Component) -> dict[str, str]:
    return {name: rule.policy for name, rule in catalog.runner(component).rules.items()}


def test_configuration_tightens_and_never_loosens(tmp_path: Path) -> None:
    assert policies(*build(tmp_path)) == {"refund": "user", "wire": "other"}
    tightened = build(tmp_path, approve={"*": "user", "re*d": "other"})
    assert policies(*tightened) == {"refund": "other", "wire": "other", "note": "user"}


def test_memory_tools_are_gated_and_delegations_are_not(tmp_path: Path) -> None:
    remembering = build(tmp_path, memory=Memory("tool"), tools=(), approve={"forget": "user"})
    assert policies(*remembering) == {"forget": "user"}


@pytest.mark.parametrize("pattern", ["refunds", "desk_*", "delegate_*"])
def test_pattern_without_a_tool_is_an_error(tmp_path: Path, pattern: str) -> None:
    catalog, component = build(tmp_path, approve={pattern: "user"})
    with pytest.raises(InvalidConfiguration) as caught:
        catalog.load_code()
    assert caught.value.detail == (
        f'The agent a has the pattern "{pattern}" in approve, which matches none of its tools'
    )
    assert "refund, wire, note" in str(caught.value.hint)
    assert catalog.has_tool(component, "refund") is None


@pytest.mark.parametrize(
    ("tools", "pattern", "allowed"),
    [
        (("mcp:my-desk",), "my_desk_*", True),
        (("mcp:my-desk",), "*delete", True),
        (("mcp:my-desk",), "my_des?_x", True),
        (("mcp:my-desk",), "desk_*", False),
        (("mcp:my-desk.look",), "my_desk_look", True),
        (("mcp:my-desk.look",), "my_desk_delete", False),
    ],
)
def test_pattern_may_name_a_tool_of_an_mcp_server(
    tmp_path: Path, tools: tuple[str, ...], pattern: str, allowed: bool
) -> None:
    catalog, _ = build(tmp_path, tools=tools, approve={pattern: "user"})
    if allowed:
        catalog.load_code()
        return
    with pytest.raises(InvalidConfiguration, match="matches none of its tools"):
        catalog.load_code()


@pytest.mark.parametrize(
    ("pattern", "prefix", "expected"),
    [
        ("*", "a_", True),
        ("a*", "a_", True),
        ("a_", "a_", True),
        ("a", "a_", False),
        ("?_*", "a_", True),
        ("b*", "a_", False),
        ("*z", "a_", True),
        ("a?", "a_", True),
        ("*_*x", "a_", True),
        ("", "a_", False),
    ],
)
def test_patterns_are_compared_with_prefixes(pattern: str, prefix: str, expected: bool) -> None:
    assert may_match(pattern, prefix) is expected


def test_second_person_needs_authorization(tmp_path: Path, reads: Reads, refuses: Refuses) -> None:
    off = "[authorization]\nenabled = false\n"
    key = 'approve = { "*" = "other" }\n'
    assert refuses(off + AGENT + key) == (
        'agents.writer.approve."*": must not be "other" while authorization is off: no one is'
        " another user"
    )
    assert reads(off + "[approvals]\nown = true\n" + AGENT + key).agents[0].approve == {
        "*": "other"
    }
    configured = build(tmp_path)[0].settings
    closed = replace(configured, authorization=Authorization(enabled=False))
    with pytest.raises(InvalidConfiguration, match="the tool wire, whose calls another user"):
        Catalog.from_settings(closed).load_code()
    Catalog.from_settings(replace(closed, approvals=Approvals(own=True))).load_code()


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ('approve = { "a-b" = "user" }', "must be the name of a tool as the model sees it"),
        ("approve = { refund = 'me' }", "must be one of: user, other"),
        ("approve = ['refund']", "must be a table"),
        ("external_tools = [1]", "must be the path of a file"),
    ],
)
def test_wrong_keys_are_refused(refuses: Refuses, keys: str, problem: str) -> None:
    assert problem in refuses(AGENT + keys)


def test_keys_reach_worker_processes(file: Path, reads: Reads) -> None:
    keys = 'external_tools = ["a.json"]\napprove = { "a*" = "other" }\n'
    configured = reads(AGENT + keys)
    assert configured.agents[0].external_tools == (file.parent / "a.json",)
    assert settings_from_text(settings_to_text(configured)) == configured


def test_keys_have_no_effect_on_agents_in_code(refuses: Refuses) -> None:
    text = '[[agents]]\nid = "a"\nobject = "x:y"\nexternal_tools = ["open.json"]\n'
    assert refuses(text) == "agents.a.external_tools: has no effect with object"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "the file cannot be read: no such file or directory"),
        ("{", "the file is not JSON"),
        ("[]", "the file is not a JSON object"),
        (json.dumps({**OPEN, "name": "open file"}), "its name must have at most 64 ASCII"),
        (json.dumps({**OPEN, "kind": "x"}), "it has the unknown member 'kind'"),
        (json.dumps({**OPEN, "description": None}), "its description must be a text"),
        (json.dumps({**OPEN, "parameters": {"type": "array"}}), "its parameters must be a JSON"),
        (
            json.dumps({**OPEN, "parameters": {"type": "object", "required": "x"}}),
            "its parameters are not a valid JSON Schema",
        ),
        (" " * 70_000, "the file has more than 65_536 bytes"),
    ],
)
def test_unusable_external_tool_is_an_error(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    path = tmp_path / "open.json"
    if content is not None:
        path.write_text(content)
    catalog, _ = build(tmp_path, external_tools=(path,))
    with pytest.raises(InvalidConfiguration) as caught:
        catalog.load_code()
    assert caught.value.detail.startswith(f"The agent a cannot use the external tool {path}: ")
    assert problem in caught.value.detail


def test_external_tool_is_in_the_record_and_has_a_unique_name(tmp_path: Path) -> None:
    path = tmp_path / "open.json"
    path.write_text(json.dumps(OPEN))
    catalog, component = build(tmp_path, external_tools=(path,), approve={"open_*": "other"})
    rule = catalog.runner(component).rules["open_file"]
    assert (rule.kind, rule.policy) == ("external", "other")
    assert catalog.has_tool(component, "open_file") is True
    path.write_text(json.dumps({**OPEN, "name": "note"}))
    with pytest.raises(InvalidConfiguration, match="has two tools named note"):
        build(tmp_path, external_tools=(path,))[0].load_code()


def test_has_tool_is_unknown_without_the_list_of_a_server(tmp_path: Path) -> None:
    catalog, component = build(tmp_path, tools=("gated_tools:note", "mcp:desk"))
    assert catalog.has_tool(component, "note") is True
    assert catalog.has_tool(component, "desk_look") is None
    assert catalog.has_tool(component, "refund") is False


def test_options_of_a_tool_are_checked() -> None:
    with pytest.raises(TypeError, match="approve must be one of: user, other"):
        agentctl.tool(approve="anyone")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="idempotent must be True or False"):
        agentctl.tool(idempotent=1)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="a tool must be a function"):
        agentctl.tool("refund")  # type: ignore[type-var]

    @agentctl.tool(approve="user")
    def pay(amount: int) -> int:
        return amount

    assert pay(3) == 3


def test_config_check_and_show_know_the_keys(tmp_path: Path) -> None:
    (tmp_path / "gated_tools.py").write_text(TOOLS)
    config = tmp_path / "agentctl.toml"
    head = "[authorization]\nenabled = false\n" + AGENT
    config.write_text(head + 'tools = ["gated_tools:note"]\napprove = { noted = "user" }\n')

    def execute(*words: str) -> Result:
        words = ("config", *words, "--config", str(config))
        return run_command(*words, environment=base_environment(), folder=tmp_path)

    checked = execute("check")
    assert checked.code != 0
    assert 'the pattern "noted" in approve, which matches none of its tools' in checked.stderr

    config.write_text(head + 'tools = ["gated_tools:note"]\napprove = { "not*" = "user" }\n')
    assert execute("check").code == 0
    shown = execute("show", "-o", "json")
    assert json.loads(shown.stdout)["agents"][0]["approve"] == {"not*": "user"}
