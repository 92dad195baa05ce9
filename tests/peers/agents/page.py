"""The tables of docs/agents-tried.md: public agents by what the tests show for each.

`python -m tests.peers.agents.page` writes them into the page.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from tests.peers.agents.table import AGENTS, PENDING, PublicAgent

PAGE = Path(__file__).parents[3] / "docs" / "agents-tried.md"

BEGIN, END = "<!-- agents: begin -->", "<!-- agents: end -->"

TITLES = {
    "langgraph": "LangGraph",
    "langchain": "langchain",
    "pydantic_ai": "pydantic-ai",
    "agno": "agno",
    "openai_agents": "openai-agents",
    "functions": "Functions with the SDKs of providers",
    "packages": "Agents of packages, unchanged",
}
"""Headings by library."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "answer": ("waiting", "background"),
    "stream": ("streamed", "stream"),
    "tokens": ("tokens",),
    "next turn": ("history",),
    "after a restart": ("history", "restart"),
    "cancel in a model call": ("cancel-model", "cancel"),
    "cancel in a tool": ("cancel-tool",),
    "failure of a model call": ("failure",),
}
"""Columns with the cases of the tests that they show."""

NO_CONVERSATION = "its models get no message of the user, only what its code writes for them"

_TOOL = re.compile(r"^@recorded\n(?:async )?def (\w+)", re.MULTILINE)


def format_tables() -> str:
    """Return the agents of all libraries and the reasons as Markdown.

    An agent with "yes" for every part that it has is in a list, the others are in a table.
    """
    lines, reasons = [], list[str]()
    for library, agents in AGENTS.items():
        whole, rows = list[str](), list[str]()
        tools = set(_TOOL.findall((Path(__file__).parent / f"{library}_agents.py").read_text()))
        for name, public in agents.items():
            cells = [_format_cell(name, public, cases, reasons) for cases in COLUMNS.values()]
            if not _list_calls(public) & tools:
                cells[list(COLUMNS).index("cancel in a tool")] = "-"
            if set(cells) <= {"yes", "-"}:
                whole.append(public.shape)
            else:
                rows.append(f"| {public.shape} | {' | '.join(cells)} |")
        lines += [f"### {TITLES[library]}", "", *_wrap(f"Yes: {'; '.join(whole)}."), ""]
        if rows:
            heads = f"| agent | {' | '.join(COLUMNS)} |", f"| --- |{' --- |' * len(COLUMNS)}"
            lines += [*heads, *rows, ""]
    lines += [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines).rstrip()


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 100, break_long_words=False, break_on_hyphens=False)


def _format_cell(name: str, public: PublicAgent, cases: tuple[str, ...], reasons: list[str]) -> str:
    pending = [PENDING[name, case] for case in (*cases, "*") if (name, case) in PENDING]
    limits = [public.limits[case] for case in cases if case in public.limits]
    if found := [*pending, *limits]:
        verdict, reason = "no", found[0]
    elif "history" in cases and not public.conversation:
        verdict, reason = "not judged", NO_CONVERSATION
    else:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"{verdict} ({reasons.index(reason) + 1})"


def _list_calls(public: PublicAgent) -> set[str]:
    """Return the names of all tools that the script calls."""
    found = set[str]()
    for answers in public.script.values():
        rows = answers.values() if isinstance(answers, Mapping) else [answers]
        for answer in (each for row in rows for each in row):
            found |= set() if isinstance(answer, str) else {call[0] for call in answer}
    return found


def replace_tables(page: str) -> str:
    """Return a page with the current tables between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{format_tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text()))
