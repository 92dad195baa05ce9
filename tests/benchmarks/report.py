"""docs/benchmarks.md: the table, and what it takes to have it again."""

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
with the load, in {minutes:.0f} minutes at a load average of {load:.0f} (what the benchmarks run
makes 3 of it; more means that the machine was busy with other work).

A ratio is ours to theirs, made within a round; sides take turns, round after round, so that a
machine that is shared or slows down moves both. Shown are medians, and the spread of the ratios.
Absolute numbers are of that machine and that hour. "/s" is requests per second: more is better, and
so is a ratio above 1; for times and memory less is. "By CPU" is the ratio of what both servers get
done in the same time of the processor, which a busy machine hardly changes.

{table}

## What is compared

- AgentOS 2.7.2 and agentctl: one worker each, on uvicorn with uvloop and httptools; the same three
  agents and five teams, the same RS256 key, authorization with scopes on, SQLite, the same stub of
  a model; 16 connections of wrk. AgentOS's database is filled through its own classes, ours through
  the store's own repositories; its versions are in `tests/benchmarks/agentos-requirements.txt`.
- A session has a question of 160 and an answer of 480 characters in every run. Of the
  400 sessions of the list the newer half, which the first page shows, has 50 runs each, the older
  half has five.
- Cancel: of a run that has ended, which is the same work for AgentOS as that of any other. Cancels
  of hung calls are from the recorded request until the row is final; a run that was not final by
  its answer would have stopped the benchmark.
- Floors: a constant of 1 KB from bare ASGI and from a FastAPI route, and bare ASGI that reads the
  same session with apsw and checks nothing, all on the same uvicorn.
- PostgreSQL: a server of its own on the same machine, with its own defaults, over a socket.
- Memory is the resident set of the server's processes.

## To repeat it

`make bench`, with wrk installed (Debian, Ubuntu: `apt install wrk`). The first time it makes an
environment for AgentOS in `.bench`, which needs PyPI. `python -m tests.benchmarks {parts}` runs a
part and writes nothing. `make bench-quick` compares the hot paths with the floors alone and fails
when a ratio has clearly fallen; `make bench-scale` is about a million sessions.
"""


def format_document(rows: Sequence[Row], seconds: float, parts: str) -> str:
    """The text of the document."""
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
    """Write it where it belongs."""
    DOCUMENT.write_text(format_document(rows, seconds, "agentos"), encoding="utf-8")
