"""The lists of docs/agents-tried.md: public agents by what the tests show for each.

`python -m tests.peers.agents.page` writes them into the page.
"""

from __future__ import annotations

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

    An agent with "yes" for every part is named only, the others are items with their other parts.
    """
    lines, reasons = [], list[str]()
    for library, agents in AGENTS.items():
        whole, items = list[str](), list[str]()
        for name, public in agents.items():
            verdicts = _group_parts(name, public, reasons)
            if verdicts:
                items += _wrap(f"- **{public.shape}**: {'; '.join(verdicts)}", "  ")
            else:
                whole.append(public.shape)

        lines += [f"### {TITLES[library]}", "", *_wrap(f"Yes: {'; '.join(whole)}."), ""]
        lines += [*items, ""] if items else []
    lines += [f"{number}. {reason}." for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines).rstrip()


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
        verdict, reason = "no", found[0]
    elif "history" in cases and not public.conversation:
        verdict, reason = "not judged", NO_CONVERSATION
    else:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"{verdict} ({reasons.index(reason) + 1})"


def replace_lists(page: str) -> str:
    """Return a page with the current lists between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{format_lists()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(replace_lists(PAGE.read_text()))
