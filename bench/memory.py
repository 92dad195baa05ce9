"""The memory of a server after ten kinds of load, each also ten times as long.

    python -m bench.memory [SECONDS]

A server that has served a load keeps memory, for caches and because the C library gives back little
of what threads have used. It has to reach a plateau: a load that lasts ten times as long adds
hardly anything, and readers of the largest session at most 100 MB to an idle server. Rates do not
matter here, so the figures hold on a busy machine.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from bench.client import encode_form
from bench.load import Load, require_wrk
from bench.measure import format_columns
from bench.reads import AGENT, repeat_cancel
from bench.seeding import seed_database
from bench.servers import RunningServer, serve_agentctl, serve_endpoint
from bench.work import SHORT_RUNS, create_work, listed_sessions, sized_sessions

__all__ = ["LARGEST", "build_loads"]

SECONDS = 1

LONGER = 10
"""Ratio of the durations of the second load of a kind and of the first one."""

LARGEST = "/sessions/runs-1000"
"""The path of the largest session, of 1.2 MB."""

MESSAGE_WORDS = 20_000
"""Words of the answer of the large run, which are about 160 KB."""


def build_loads(server: RunningServer) -> Mapping[str, Load]:
    """Return the kinds of load by their names."""
    runs = f"/agents/{AGENT}/runs"
    return {
        "teams": server.get("/teams"),
        "list of 20 sessions": server.get("/sessions?limit=20"),
        "session of 1 run": server.get("/sessions/runs-1"),
        "session of 1,000 runs, 16 readers": server.get(LARGEST),
        "runs of this session, 100": server.get(f"{LARGEST}/runs?limit=100"),
        "export of this session": server.get(f"{LARGEST}/export", connections=2),
        "runs, plain": server.post(runs, encode_form(stream=False)),
        "runs, streamed, 10 words": server.post(runs, encode_form(stream=True, words=10)),
        "runs with an answer of 160 KB": server.post(
            runs, encode_form(stream=False, words=MESSAGE_WORDS), connections=4
        ),
        "cancel of a run that ended": repeat_cancel(server),
        "OpenAPI document": server.get("/openapi.json", connections=4),
    }


def measure_memory(server: RunningServer, seconds: int) -> None:
    """Print the memory of a server after each load, in MB."""
    lines = [["load", f"after {seconds} s", f"after {seconds * LONGER} s more"]]
    lines.append(["idle", f"{server.memory:.0f}", ""])
    for name, load in build_loads(server).items():
        line = [name]
        for duration in (seconds, seconds * LONGER):
            load.seconds = duration
            load()
            line.append(f"{server.memory:.0f}")
        print(" | ".join(line), file=sys.stderr, flush=True)
        lines.append(line)
    print(format_columns(lines))


if __name__ == "__main__":
    require_wrk()
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        sessions = [*sized_sessions((1, 1_000)), *listed_sessions(40, SHORT_RUNS)]
        work = create_work(Path(directory) / "work", f"{url}/v1", sessions)
        seed_database(work)
        with serve_agentctl(work) as server:
            measure_memory(server, int(sys.argv[1]) if sys.argv[1:] else SECONDS)
