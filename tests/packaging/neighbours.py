"""Resolve libraries alone and together with agentctl, and write docs/internals/neighbours.md.

    make neighbours [ONLY="crewai langgraph"]

Needs the package index; nothing is installed. Both resolutions are those of uv for the same
release of Python, so that a library that has a different release together with agentctl has it
because of a bound in `pyproject.toml`, or because a dependency of both is pinned. With names, the
command prints their rows and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from tests.kit.conditions import PATIENCE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/internals/neighbours.md"
PYTHON = "3.12"
WIDTH = 100
AT_ONCE = 6

LIBRARIES = {
    "agno": "agno",
    "anthropic": "anthropic",
    "apache-airflow": "",
    "arize-phoenix": "otel",
    "autogen-agentchat": "",
    "azure-ai-projects": "",
    "boto3": "bedrock",
    "browser-use": "",
    "celery": "",
    "chainlit": "",
    "chromadb": "",
    "claude-agent-sdk": "",
    "crewai": "",
    "dspy": "",
    "fastapi": "",
    "fastmcp": "mcp",
    "google-adk": "adk",
    "google-genai": "google",
    "gradio": "",
    "guardrails-ai": "",
    "haystack-ai": "",
    "instructor": "",
    "langchain": "langgraph",
    "langfuse": "otel",
    "langgraph": "langgraph",
    "langgraph-api": "langgraph",
    "langgraph-cli[inmem]": "langgraph",
    "letta": "",
    "litellm[proxy]": "",
    "llama-index": "",
    "mcp": "mcp",
    "mem0ai": "",
    "mistralai": "mistral",
    "mlflow": "",
    "numpy": "",
    "ollama": "",
    "openai": "pydantic-ai",
    "openai-agents": "openai-agents",
    "opentelemetry-sdk": "otel",
    "pandas": "",
    "pgvector": "",
    "prefect": "",
    "prometheus-client": "metrics",
    "pydantic-ai": "pydantic-ai",
    "qdrant-client": "",
    "ray[serve]": "",
    "redis": "",
    "semantic-kernel": "",
    "smolagents": "",
    "sqlalchemy": "",
    "strands-agents": "",
    "streamlit": "",
    "temporalio": "",
    "torch": "",
    "transformers": "",
}
"""The libraries, each with the extra of agentctl that people install for it, or an empty text."""

_INTRODUCTION = """\
# Libraries in the same environment

agentctl runs in the environment of the agents that it hosts, so its bounds must leave them the
releases that they have without it. `make neighbours` resolves each library alone, and then together
with agentctl and the named extra, and writes this page; it installs nothing.

Resolved on {date} for Python {python}. Of {count} libraries, {same} have the same release in both
resolutions.

## The same release

{groups}
"""

_DIFFERENCES = """
## Different releases

Each entry names the dependency that has no common release, and the packages that bound it.

| library | extra of agentctl | release alone | release with agentctl |
| --- | --- | --- | --- |
"""


class Row(NamedTuple):
    """The result for a library.

    Attributes:
        alone: its release alone, or None if it has none for this Python.
        together: its release in an environment with agentctl, or None.
        reason: why its release alone is not possible together with agentctl, or an empty text.
    """

    library: str
    extra: str
    alone: str | None
    together: str | None
    reason: str


def resolve(library: str, *sources: str) -> tuple[str | None, str]:
    """Resolve a requirement of a library with uv.

    Args:
        sources: arguments that name further requirements.

    Returns:
        The release, or None, and the error message of uv.
    """
    command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", "--no-config"]
    command += ["--quiet", "--no-header", "--no-annotate", "--python-version", PYTHON]
    done = subprocess.run(
        [*command, *sources, "-"],
        input=library,
        cwd=ROOT,
        env={**os.environ, "UV_PYTHON_DOWNLOADS": "never"},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    name = re.escape(re.split(r"[\[=]", library)[0])
    found = re.search(rf"^{name}(?:\[.*\])?==(\S+)", done.stdout, re.MULTILINE)
    return (found[1] if found else None), done.stderr


def build_row(library: str) -> Row:
    """Resolve a library alone and together with agentctl."""
    extra = LIBRARIES[library]
    ours = ["pyproject.toml", *(["--extra", extra] if extra else [])]
    alone, reason = resolve(library)
    together, failure = resolve(library, *ours)
    if alone and alone != together:
        _, failure = resolve(f"{library}=={alone}", *ours)
    if alone == together or not alone:
        return Row(library, extra, alone, together, reason if not alone else "")
    return Row(library, extra, alone, together, explain(failure, read_bounds()))


def read_bounds() -> dict[str, str]:
    """Read the bounds of agentctl's dependencies, those of the extras of `LIBRARIES` included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [line for extra in set(LIBRARIES.values()) - {""} for line in extras[extra]]
    matches = (
        re.match(r"([\w-]+)(?:\[.*\])?(.*)", line) for line in project["dependencies"] + lines
    )
    return {found[1]: found[2] for found in matches if found}


def explain(failure: str, bounds: Mapping[str, str]) -> str:
    """Name the dependency without a common release, and who bounds it, from uv's message.

    Args:
        bounds: those of agentctl, by dependency.

    Returns:
        The sentence, or the message itself if it has no bound of agentctl.
    """
    text = " ".join(failure.split())
    text = text.partition("cause: ")[2] or text
    for name, ours in sorted(bounds.items()):
        required = rf"(?<![\w-]){name}(?:\[[^\]]*\])?([<>=!~][^\s]*[\d*])"
        found = list(re.finditer(required, text))
        if ours not in {each[1] for each in found}:
            continue
        for each in found:
            owner = re.findall(r"(\S+) depends? on", text[: each.start()])[-1:]
            if each[1] != ours and owner and owner[0] != "agentctl":
                return f"`{name}`: {owner[0]} requires {each[1]}, agentctl requires {ours}"
    return text


def format_page(rows: Sequence[Row], date: str) -> str:
    """Return the text of the page."""
    same = [row for row in rows if row.alone == row.together]
    differing = [row for row in rows if row not in same]
    groups = "\n\n".join(map(format_group, sorted({row.extra for row in same}), repeat(same)))
    text = _INTRODUCTION.format(
        date=date, python=PYTHON, count=len(rows), same=len(same), groups=groups
    )
    if differing:
        text += _DIFFERENCES + "".join(f"{line}\n" for line in map(format_row, differing)) + "\n"
        for row in differing:
            item = f"- {row.library}: {row.reason.rstrip('.')}."
            text += textwrap.fill(item, WIDTH, subsequent_indent="  ", break_long_words=False)
            text += "\n"
    return text


def format_group(extra: str, rows: Sequence[Row]) -> str:
    """Return a paragraph with the libraries and releases of an extra."""
    listed = ", ".join(f"{row.library} {row.alone}" for row in rows if row.extra == extra)
    text = f"Extra `{extra}`: {listed}." if extra else f"No extra: {listed}."
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def format_row(row: Row) -> str:
    """Return the line of a table for a library."""
    return f"| {row.library} | {row.extra} | {row.alone or 'none'} | {row.together or 'none'} |"


def build_rows(libraries: Sequence[str]) -> Iterator[Row]:
    """Resolve libraries, some at once, and yield their rows in the same order."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        yield from threads.map(build_row, libraries)


def main() -> int:
    """Print a row for each library, and write the page unless libraries are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="LIBRARY", help="default: all")
    names = parser.parse_args().names
    rows = []
    for row in build_rows(names or list(LIBRARIES)):
        rows.append(row)
        print(format_row(row), row.reason, flush=True)
    if not names:
        PAGE.write_text(format_page(rows, f"{datetime.now(UTC):%Y-%m-%d}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
