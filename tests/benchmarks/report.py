"""The page docs/benchmarks.md: the table, and how to repeat the measurement."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from tests.benchmarks.measure import Row, format_markdown

__all__ = ["DOCUMENT", "format_document", "write_document"]

DOCUMENT = Path(__file__).parents[2] / "docs" / "benchmarks.md"

_TEXT = """# Benchmarks

Written by `make bench`; do not edit. {day}, Python {python}, {cores} cores that the servers shared
with the load generator, in {minutes:.0f} minutes at a load average of {load:.0f} (the benchmarks
alone cause 3; more means that the machine had other work).

A ratio is agentctl to the other side, computed within a round; sides take turns, round after round,
so that a shared or slow machine affects both. The table has medians, and the spread of the ratios.
Absolute numbers are specific to that machine and hour. "/s" is requests per second: more is better,
and so is a ratio above 1; for times and memory less is better. "By CPU" is the ratio of the work
that both servers do in the same CPU time, which hardly changes on a busy machine. The last two
columns are agentctl on PostgreSQL, in the same rounds, and its ratio to agentctl on SQLite: by CPU,
without that of the database server, where the row has that, and of the figures otherwise. They are
empty for work that needs no database, and for rows of which only one engine is measured.

{table}

## Conditions

- AgentOS 2.7.2 and agentctl: one worker each, on uvicorn with uvloop and httptools; the same three
  agents and five teams, the same RS256 key, authorization with scopes, SQLite, the same stub of a
  model; 16 connections of wrk. The database of AgentOS is filled through its own classes, that of
  agentctl through its repositories; the versions of AgentOS are in
  `tests/benchmarks/agentos-requirements.txt`.
- A session has a question of 160 and an answer of 480 characters in every run. Of the 400 sessions
  of the list, the newer half, which the first page shows, has 50 runs each, the older half five.
- Cancel: of a final run, which is the same work for AgentOS as for any other. Cancels of hung calls
  are measured from the recorded request until the row is final; a run that is not final when the
  response arrives stops the benchmark.
- Floors: a constant of 1 KB from bare ASGI and from a FastAPI route, and bare ASGI that reads the
  same session with apsw and checks nothing, all on the same uvicorn.
- Tokens: the CPU time of the server for a token. The pass-through is Starlette with httpx2, which
  checks and stores nothing. The streams of the search for a core's limit start one after the other
  within a second, and the delay of a token, from the write of the model to the read of the client,
  counts from the second after that. Model and client are separate processes on the same cores.
- 1,000 streams at once: all connect in one instant. The memory of a waiting run is that of the
  first thousand of a new server.
- PostgreSQL: a separate server on the same machine, with its default settings, over a socket.
- Memory is the resident set of the server processes.

## How to repeat it

`make bench`, with wrk installed (Debian, Ubuntu: `apt install wrk`). The first time it creates an
environment for AgentOS in `.bench`, which needs PyPI. `python -m tests.benchmarks {parts}` runs one
part and writes nothing. `make bench-quick` compares the hot paths with the floors alone and fails
if a ratio has clearly fallen; `make bench-scale` measures a million sessions.
"""


def format_document(rows: Sequence[Row], seconds: float, parts: str) -> str:
    """Format the text of the page."""
    return _TEXT.format(
        day=datetime.now(UTC).date(),
        python=platform.python_version(),
        cores=os.cpu_count(),
        minutes=seconds / 60,
        load=os.getloadavg()[2],
        table=format_markdown(rows),
        parts=parts,
    )


def write_document(rows: Sequence[Row], seconds: float) -> None:
    """Write the page."""
    DOCUMENT.write_text(format_document(rows, seconds, "agentos"), encoding="utf-8")
