"""How long commands take, beside a bare Typer program that does nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.measure import Row, at_most, compared, turns
from tests.process import inherited

__all__ = ["against_typer"]

ROUNDS = 11

BARE = """
import typer

app = typer.Typer()


@app.command()
def hello(name: str = "world") -> None:
    "Greet somebody."
    print(f"hello {name}")


app()
"""


class Case(NamedTuple):
    """A command, what it is compared with, and the ratio to reach."""

    command: tuple[str, ...]
    bare: tuple[str, ...]
    goal: float


CASES = [
    Case(("--help",), ("--help",), 1.3),
    Case(("sessions", "--help"), ("--help",), 2),
    Case(("--version",), ("--help",), 0.8),
    Case(("token", "mint", "--sub", "me", "--scope", "agents:read"), (), 2),
    Case(("teams", "list"), (), 2),
    Case(("sessions", "list"), (), 2.5),
]


def seconds(command: list[str], folder: Path, environ: Mapping[str, str]) -> float:
    """The wall-clock time of one command.

    Raises:
        CalledProcessError: it did not exit with 0.
    """
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True, timeout=60)
    return time.perf_counter() - start


def prepared(folder: Path) -> dict[str, str]:
    """A configuration, keys, and a database with one session; the environment for commands."""
    (folder / "bare.py").write_text(BARE, encoding="utf-8")
    environ = inherited() | {"HOME": str(folder), "NO_COLOR": "1"}
    for command in (["init"], ["runs", "start", "--agent", "writer", "--message", "hello"]):
        seconds([sys.executable, "-m", "agentctl", *command], folder, environ)
    return environ


def against_typer(folder: Path) -> Iterator[Row]:
    """One row a command, each after a first start that is not counted."""
    environ = prepared(folder)

    def started(*command: str) -> Callable[[], float]:
        whole = [sys.executable, *command]
        return lambda: seconds(whole, folder, environ) * 1_000

    for case in CASES:
        acts = {
            "ours": started("-m", "agentctl", *case.command),
            "bare": started(str(folder / "bare.py"), *case.bare),
        }
        found = {name: took[1:] for name, took in turns(acts, ROUNDS).items()}
        work = " ".join(("agentctl", *case.command[:2]))
        floor = "bare Typer" + (" --help" if case.bare else "")
        goal = at_most(case.goal)
        yield compared(work, found["ours"], floor, found["bare"], " ms", goal)
