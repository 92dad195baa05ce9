"""The page of the Python interface: its names exist, and its examples work."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import agentctl
from agentctl.config import SAMPLE_CONFIG, load_settings
from agentctl.config.settings import Agent
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.context import RunHost, build_run_context
from tests.docs.test_examples import load_example
from tests.kit.documents import page
from tests.kit.fake_context import FakeContext, settings

PAGE = page("docs/python.md")


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Execute the Python blocks of the page, as one module, and return its names."""
    text = "from __future__ import annotations\n" + "\n".join(
        block.text for block in PAGE.blocks("python")
    )
    (tmp_path / "my_agents.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    names: dict[str, Any] = {"__name__": "my_agents"}
    exec(compile(text, "docs/python.md", "exec"), names)
    return names


def test_page_names_every_public_name() -> None:
    for name in agentctl.__all__:
        if name != "INTERFACE_VERSION":
            assert re.search(rf"`(agentctl\.)?{name}`", PAGE.text), name
            assert getattr(agentctl, name) is not None
    with pytest.raises(AttributeError):
        agentctl.absent  # type: ignore[attr-defined]  # noqa: B018


def test_page_names_every_attribute_of_the_context() -> None:
    public = {name for name in dir(agentctl.RunContext) if not name.startswith("_")}
    for name in public:
        assert re.search(rf"`{name}[`(]", PAGE.text), name


def test_tool_of_the_page_hides_the_context(examples: dict[str, Any]) -> None:
    from agentctl.runtime.tools.functions import load_tools

    listed, indexed = load_tools("x", ("my_agents:list_orders", "my_agents:index_files"), None)
    assert [*listed.parameters["properties"]] == ["limit"]
    assert [*indexed.parameters["properties"]] == ["paths"]
    assert (listed.contexts, indexed.contexts) == (("context",), ("context",))


def test_tools_of_the_page_return_their_results(examples: dict[str, Any]) -> None:
    context = agentctl.RunContext(claims={"tenant": "globex"}, state={"listed": 4})
    assert examples["list_orders"](context, limit=5) == ["G-1"]
    assert context.state == {"listed": 5}
    assert examples["list_orders"](agentctl.RunContext()) == []
    assert examples["index_files"](context, ["a.txt", "b.txt"]) == 2
    paid = examples["transfer"]("A-1", 250, context)
    assert paid == f"transferred 250 to A-1 with the key {context.call_id}"


def test_waiting_function_of_the_page_takes_replies(examples: dict[str, Any]) -> None:
    examples["test_clerk"]()


def test_agents_of_the_page_answer(examples: dict[str, Any], tmp_path: Path) -> None:
    [block] = [each for each in PAGE.blocks("toml") if "object = " in each.text]
    [agent] = load_example(block, tmp_path).agents
    assert agent.object == "my_agents:support"
    configured = settings(agents=(agent, Agent("research", object="my_agents:research")))

    async def main() -> list[FakeContext]:
        catalog = Catalog.from_settings(configured)
        runs = []
        for name in ("support", "research"):
            runs.append(FakeContext(catalog))
            await runs[-1].execute("agent", name, "printer", [])
        assert build_run_context(runs[0], RunHost(runs[0])).component_id == "support"
        await catalog.close()
        return runs

    support, research = asyncio.run(main())
    assert support.transcript.output == {"title": "printer", "priority": 2}
    assert research.transcript.content == "Two results."
    assert len(research.transcript.tools) == 1


def test_agent_in_code_of_the_sample_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SAMPLE_CONFIG.index("# An agent can be Python code")
    lines = SAMPLE_CONFIG[start : SAMPLE_CONFIG.index("\n\n", start)].splitlines()
    code = [line.removeprefix("#     ") for line in lines if line.startswith("#     ")]
    entry = [line.removeprefix("# ") for line in lines[lines.index("# [[agents]]") :]]
    (tmp_path / "my_agents.py").write_text("\n".join(code))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_agents", raising=False)
    (tmp_path / "agentctl.toml").write_text("\n".join(entry))
    configured = load_settings(tmp_path / "agentctl.toml", {})

    async def main() -> str:
        catalog = Catalog.from_settings(configured)
        run = FakeContext(catalog)
        await run.execute("agent", "greeter", "hi", [])
        await catalog.close()
        return run.transcript.content

    assert asyncio.run(main()) == "Hello None, your message was: hi"
