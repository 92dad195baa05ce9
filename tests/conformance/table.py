"""The conformance table of docs/agents.md: kinds of agents by what the tests show for each.

`python -m tests.conformance.table` writes the table into the page.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

__all__ = [
    "COLUMNS",
    "FORMS",
    "KINDS",
    "PAGE",
    "REASONS",
    "RUNNERS",
    "format_table",
    "replace_table",
]

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"

BEGIN = "<!-- conformance: begin -->"
END = "<!-- conformance: end -->"

KINDS = {
    "configured": "model and tools in the configuration",
    "function": "async function",
    "generator": "async generator",
    "pydantic-ai": "pydantic-ai `Agent`",
    "langgraph": "LangGraph graph",
    "langgraph-checkpointer": "LangGraph graph with a checkpointer",
    "agno-agent": "agno `Agent`",
    "agno-team": "agno `Team`",
    "agno-workflow": "agno `Workflow`",
    "openai-agents": "openai-agents `Agent`",
    "adk": "Google ADK `Agent`",
}
"""The kinds with their names in the table."""

FORMS = ("generator", "langgraph-checkpointer", "agno-team", "agno-workflow")
"""Further forms of kinds: `make test-long` tests them (test_forms.py), `make test` the others."""

RUNNERS = tuple(kind for kind in KINDS if kind not in FORMS)
"""The kinds that have a runner of their own."""

COLUMNS = {
    "answer": "plain answer",
    "stream": "stream",
    "tools": "tool events",
    "no-json": "a result without a JSON form, of a call that was made",
    "history": "history over two runs",
    "cancel-text": "cancel during text",
    "cancel-tool": "cancel during a tool that ignores it",
    "cancel-thread": "cancel during a tool that blocks its thread",
    "cancel-started": "cancel of a started task",
    "cancel-member": "cancel while a member works",
    "failure": "failure",
    "usage": "usage",
    "output": "structured output",
    "context": "run context in a tool",
    "metadata": "metadata",
    "member": "member of a team",
    "step": "step of a workflow",
    "approval": "approval",
    "elsewhere": "continue on another server",
    "rejection": "rejected call",
    "edit": "edited call",
    "calls": "a decision for each of several calls",
    "cancel-paused": "cancel while a call waits for an approval",
    "messages": "a message to a run, for its next model call",
    "retry": "retry after the finished calls",
    "fork": "fork to a new session",
}
"""The columns with their names in the table; `test_COLUMN` of test_kinds.py tests each."""

REASONS = {
    ("function", "stream"): "a function returns its text as one piece; a generator streams",
    ("function", "tools"): "a function returns a result only; a generator reports its tools",
    ("function", "cancel-text"): "there is no text before the function returns; the run is "
    "cancelled in time",
    (
        "agno-workflow",
        "history",
    ): "the steps of a workflow get the earlier runs as text, if it asks for them",
    **dict.fromkeys(
        [(kind, "retry") for kind in KINDS if kind != "configured"],
        "the code of the agent runs again from its beginning, after a confirmation",
    ),
    **dict.fromkeys(
        [
            (kind, "messages")
            for kind in ("agno-agent", "agno-team", "agno-workflow", "openai-agents", "adk")
        ],
        "the library has no place for it between two steps; it becomes the next run",
    ),
    ("agno-workflow", "fork"): "the steps of a workflow get the earlier runs as text, if it asks "
    "for them",
    ("langgraph-checkpointer", "elsewhere"): "a checkpointer in memory is not on the other server; "
    "one with a database is",
}
"""Cells that are not yes, with the reason; the test of the column confirms each."""


def format_table() -> str:
    """Return the list of columns, and the cells that are not yes with their reasons."""
    everything = f"Every kind has, except for the cases below: {'; '.join(COLUMNS.values())}."
    lines = [*textwrap.wrap(everything, 100), ""]
    lines += ["| agent | lacks | reason |", "| --- | --- | --- |"]
    for reason in dict.fromkeys(REASONS.values()):
        cells = [cell for cell, each in REASONS.items() if each == reason]
        kinds = [name for kind, name in KINDS.items() if any(kind == each for each, _ in cells)]
        columns = [COLUMNS[each] for each in dict.fromkeys(column for _, column in cells)]
        assert len(cells) == len(kinds) * len(columns)
        names = "all kinds of code" if len(kinds) == len(KINDS) - 1 else ", ".join(kinds)
        lines.append(f"| {names} | {', '.join(columns)} | {reason} |")
    return "\n".join(lines)


def replace_table(page: str) -> str:
    """Return a page with the current table between its two markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{format_table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(replace_table(PAGE.read_text()))
