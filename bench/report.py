"""The page docs/internals/benchmarks.md: the table, and how to repeat the measurement."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bench.gains import find_gain
from bench.measure import HEAD, MAXIMUM_OTHER_WORK, MAXIMUM_SPREAD, format_markdown
from bench.peers import AGENTOS, LANGGRAPH, LITELLM
from bench.servers import ROOT

__all__ = [
    "TABLE_HEAD",
    "PartResult",
    "format_document",
    "read_results",
    "save_result",
    "write_document",
]

DOCUMENT = ROOT / "docs" / "internals" / "benchmarks.md"
RESULTS = ROOT / ".bench" / "results"

_TEXT = """# Benchmarks

Written by `make bench`; do not edit. Python {python}, {cores} cores that the servers shared with
the load generator.

A ratio is agentctl to the other side, computed within a round; sides take turns, so that a slow
machine affects both. The table has medians, and the spread of the ratios. "/s" is requests per
second. "By CPU" is the ratio of the work that both servers do in the same CPU time, which hardly
changes on a busy machine. The last but one column is agentctl on PostgreSQL, with its ratio to
agentctl on SQLite: by CPU, without that of the database server, where the row has that. The last
one says what a user gains from a good figure.

A row is *unclear* if other programs used more than {other_work:.0%} of the cores during it, if its
highest ratio is more than {spread:g} times its lowest one (of eight rounds and more the middle half
counts), or if a limit was not that of the server.

{table}

## Parts

| part | measured (UTC) | load average |
| --- | --- | --- |
{parts}

## Conditions

- {agentos} and agentctl: one worker each, on uvicorn with uvloop and httptools; the same three
  agents and five teams, the same RS256 key, authorization with scopes, SQLite, the same stub of a
  model; 16 connections, by wrk, or by threads for a fixed number of requests. The
  database of AgentOS is filled through its own classes, that of agentctl through its repositories.
- A session has a question of 160 and an answer of 480 characters in every run. Of the 400 sessions
  of the list, the newer half, which the first page shows, has 50 runs each, the older half five.
- Cancel: of a final run, which is the same work for AgentOS as for any other. Cancels of hung calls
  are measured from the recorded request until the row is final; a run that is not final when the
  response arrives stops the benchmark.
- Floors: a constant of 1 KB from bare ASGI and from a FastAPI route, and bare ASGI that reads the
  same session with apsw and checks nothing, all on the same uvicorn.
- Tokens: the CPU time of the server for a token. Both sides stream answers of the same length: it
  is in the row, because all servers have costs for each answer. The pass-through is Starlette with
  httpx2, which checks and stores nothing. Model and client are separate processes on the same
  cores.
- Commands: the CPU time of a command, with the start of Python. The bare programs use the same
  Typer; the second one also checks the configuration of agentctl and reads a row, which a local
  read cannot do without.
- {langgraph}: in memory, without authorization, `--n-jobs-per-worker 50`; its queue
  is polled about once a second, so that only CPU time can be compared. agentctl hosts the same
  graph, with ChatOpenAI and with a model of the configuration, and stores runs and events in
  SQLite.
- {litellm}: the proxy with a master key, one worker, without a database. agentctl runs an agent,
  verifies a JWT, and stores session, run and events.
- PostgreSQL: a separate server on the same machine, with its default settings, over a socket.
- The versions of the other servers are in `bench/*-requirements.txt`.

## How to repeat it

`make bench`, with wrk installed (Debian, Ubuntu: `apt install wrk`). The first time it creates
environments for the other servers in `.bench`, which needs up to 1.4 GB of disk.
`make bench ONLY="tokens langgraph"` measures two parts; the page has the last rows of each part.
`make bench-quick` compares the hot paths with the floors alone and fails if a ratio has clearly
fallen; `make bench-scale` measures a million sessions.
"""


TABLE_HEAD = [
    *HEAD[:4],
    "ratio (spread)",
    "by CPU",
    "target: reached",
    "on PostgreSQL (to SQLite)",
    "for a user",
]


class PartResult(NamedTuple):
    """The table of a part: cells of its rows, time of its end, seconds, and load average."""

    name: str
    day: str
    seconds: float
    load: float
    rows: list[list[str]]


def save_result(result: PartResult) -> None:
    """Keep the result of a part for the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{result.name}.json").write_text(json.dumps(result), encoding="utf-8")


def read_results(parts: Iterable[str]) -> dict[str, PartResult | None]:
    """Return the last result of each part; None if it was never measured."""
    return {
        part: PartResult(*json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None
        for part in parts
        for path in [RESULTS / f"{part}.json"]
    }


def format_document(results: Sequence[PartResult]) -> str:
    """Format the text of the page."""
    return _TEXT.format(
        python=platform.python_version(),
        cores=os.cpu_count(),
        other_work=MAXIMUM_OTHER_WORK,
        spread=MAXIMUM_SPREAD,
        table=format_markdown(
            TABLE_HEAD, [_join_cells(row) for result in results for row in result.rows]
        ),
        parts="\n".join(map(_format_part, results)),
        agentos=AGENTOS.title,
        langgraph=f"`{LANGGRAPH.name}`{LANGGRAPH.title.removeprefix(LANGGRAPH.name)}",
        litellm=LITELLM.title,
    )


def _join_cells(row: Sequence[str]) -> list[str]:
    """Return the cells of a row of `HEAD` as those of `TABLE_HEAD`."""
    work, here, against, there, ratio, spread, by_cpu, target, reached, postgres, to_sqlite = row
    return [
        work,
        here,
        against,
        there,
        f"{ratio} ({spread})" if spread else ratio,
        by_cpu,
        ": ".join(filter(None, (target, reached))),
        f"{postgres} ({to_sqlite})" if to_sqlite else postgres,
        find_gain(work, against),
    ]


def _format_part(result: PartResult) -> str:
    return f"| `{result.name}` | {result.day} | {result.load:.0f} |"


def write_document(results: dict[str, PartResult | None]) -> list[str]:
    """Write the page, if every part has a result; return the parts without one."""
    found = [result for result in results.values() if result is not None]
    if len(found) == len(results):
        DOCUMENT.write_text(format_document(found), encoding="utf-8")
    return [part for part, result in results.items() if result is None]
