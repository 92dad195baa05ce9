"""The lists of docs/internals/agents-tried.md: public agents by what the tests show for each.

`python -m compat.agents.page` writes them into the page.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from compat.agents.table import AGENTS, PENDING, PublicAgent

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "agents-tried.md"

FOLDER = Path(__file__).parent

TITLES = {
    "langgraph": "LangGraph",
    "langgraph_shapes": "LangGraph: states, outputs, functions, stores and files",
    "langchain": "langchain",
    "pydantic_ai": "pydantic-ai",
    "agno": "agno",
    "openai_agents": "openai-agents",
    "adk": "Google ADK",
    "functions": "Functions with the SDKs of providers",
    "packages": "Agents of packages, unchanged",
}
"""Headings by library."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "answer": ("waiting", "background"),
    "stream": ("streamed", "stream"),
    "tokens": ("tokens",),
    "next turn": ("history",),
    "after a restart": ("history", "restart"),
    "cancel in a model call": ("cancel-model", "cancel"),
    "cancel in a tool": ("cancel-tool",),
    "failure of a model call": ("failure",),
}
"""Parts of an agent with the cases of the tests that show them."""

NO_CONVERSATION = "its models get no message of the user, only what its code writes for them"


def format_lists() -> str:
    """Return the agents of all libraries and the reasons as Markdown.

    Agents with "yes" for every part come first, then an item for those with the same other parts.
    """
    lines = []
    reasons = list[str]()
    for library, agents in AGENTS.items():
        groups: dict[str, list[str]] = {"": []}
        for name, public in agents.items():
            verdicts = "; ".join(_group_parts(name, public, reasons))
            groups.setdefault(verdicts, []).append(public.shape)

        whole = groups.pop("")
        lines += [f"### {TITLES[library]}", "", *_wrap(f"Yes: {'; '.join(whole)}."), ""]
        for verdicts, shapes in groups.items():
            lines += _wrap(f"- **{verdicts}**: {'; '.join(shapes)}.", "  ")
        lines += [""] if groups else []
    lines += [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines).rstrip()


def format_numbers() -> str:
    """Return the sentence about the numbers of agents, of changed lines and of differences."""
    listed = [(library, name) for library, agents in AGENTS.items() for name in agents]
    hosted = [each for each in listed if (each[1], "*") not in PENDING]
    needed = [count_lines(*each) for each in hosted]
    changed = sorted(each for each in needed if each)
    different = [
        name
        for library, name in hosted
        if "tokens" in AGENTS[library][name].limits or any(name == each[0] for each in PENDING)
    ]
    return (
        f"**{len(hosted)} of {len(listed)} agents are hosted, {needed.count(0)} unmodified, "
        f"with {len(different)} differences between the record and what models and tools have "
        f"seen.** The other {len(changed)} need {changed[0]} to {changed[-1]} lines: keys of the "
        "configuration, functions for `deps`, and lines of functions that name agentctl."
    )


def count_lines(library: str, name: str) -> int:
    """Return the number of lines that an agent needs next to `id` and `object`."""
    tree = ast.parse(FOLDER.joinpath(f"{library}_agents.py").read_text())
    functions = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    config = AGENTS[library][name].config
    lines = len(config.splitlines())
    for deps in re.findall(r'deps = "\w+:(\w+)"', config):
        lines += (functions[deps].end_lineno or 0) - functions[deps].lineno + 1
    if name not in functions or not functions[name].args.args:
        return lines
    own = {"agentctl", "context"} | {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module == "agentctl"
        for alias in node.names
    }
    nodes = ast.walk(functions[name])
    return lines + len(
        {node.lineno for node in nodes if isinstance(node, ast.Name) and node.id in own}
    )


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _group_parts(name: str, public: PublicAgent, reasons: list[str]) -> list[str]:
    """Return the parts of an agent without "yes", those with the same verdict together."""
    parts: dict[str, list[str]] = {}
    for part, cases in PARTS.items():
        parts.setdefault(_format_verdict(name, public, cases, reasons), []).append(part)

    parts.pop("yes", None)
    return [f"{', '.join(named)}: {verdict}" for verdict, named in parts.items()]


def _format_verdict(
    name: str, public: PublicAgent, cases: tuple[str, ...], reasons: list[str]
) -> str:
    pending = [PENDING[name, case] for case in (*cases, "*") if (name, case) in PENDING]
    limits = [public.limits[case] for case in cases if case in public.limits]
    if found := [*pending, *limits]:
        verdict = "no"
        reason = found[0]
    elif "history" in cases and not public.conversation:
        verdict = "not judged"
        reason = NO_CONVERSATION
    else:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"{verdict} ({reasons.index(reason) + 1})"


def replace_lists(page: str) -> str:
    """Return a page with the current numbers and lists between their markers."""
    numbers = "\n".join(_wrap(format_numbers()))
    for name, text in (("numbers", numbers), ("agents", format_lists())):
        begin = f"<!-- {name}: begin -->"
        end = f"<!-- {name}: end -->"
        before, _, rest = page.partition(begin)
        _, _, after = rest.partition(end)
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


if __name__ == "__main__":
    PAGE.write_text(replace_lists(PAGE.read_text()))
