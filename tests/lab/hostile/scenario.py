"""The worst inputs that the bounds of docs/limits.md allow, at a server with all interfaces.

    python -m tests.lab inputs --cases "key set of a URL"

Clients, models, tools, MCP servers and receivers of webhooks send the longest and the most that
they may. Each input has its answer, and meanwhile `/health` answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.lab.hostile.health import Wait, measure_waits
from tests.lab.hostile.worst_inputs import CASES, Case, World, serve_world

__all__ = ["add_options", "run", "send"]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))


async def run(options: argparse.Namespace) -> Counter[str]:
    """Send inputs, print the longest wait of `/health` for each, and return the violations."""
    return await asyncio.to_thread(_send_all, options.cases)


def _send_all(names: Sequence[str]) -> Counter[str]:
    violations: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder, serve_world(Path(folder)) as world:
        for name in names:
            answer, waits = send(world, CASES[name])
            longest = max((wait.quiet for wait in waits), default=0.0)
            print(f"{name}: {len(waits)} answers of /health, the longest {longest:.3f} s")
            if not waits:
                violations[f"{name}: /health did not answer"] += 1
            if CASES[name].expected not in answer:
                violations[f"{name}: {answer[-300:]!r}"] += 1
    return violations


def send(world: World, case: Case) -> tuple[bytes, list[Wait]]:
    """Send an input; return its answer, and the waits of `/health` meanwhile."""
    answers: list[bytes] = []
    waits = measure_waits(world.target, lambda: answers.append(case.act(world)))
    (answer,) = answers
    return answer, waits
