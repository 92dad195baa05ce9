"""How long commands take, as ratios to a bare Typer program in the same run.

`make bench`. Runs alternate, so that a slower or busier machine moves both sides; the medians are
compared. Nothing fails here: the numbers are to be read.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROUNDS = 15

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


def measured(case: Case, folder: Path, environ: Mapping[str, str]) -> tuple[float, float]:
    """Median seconds of the command and of the bare program, run in turns after a first of each."""
    ours = [sys.executable, "-m", "agentctl", *case.command]
    bare = [sys.executable, str(folder / "bare.py"), *case.bare]
    pairs = [
        (seconds(ours, folder, environ), seconds(bare, folder, environ)) for _ in range(ROUNDS + 1)
    ][1:]
    return statistics.median(one for one, _ in pairs), statistics.median(one for _, one in pairs)


def prepared(folder: Path) -> dict[str, str]:
    """A configuration, keys, and a database with one session; the environment for commands."""
    (folder / "bare.py").write_text(BARE, encoding="utf-8")
    environ = {name: value for name, value in os.environ.items() if name in {"PATH", "LANG"}}
    environ |= {"HOME": str(folder), "NO_COLOR": "1"}
    for command in (["init"], ["runs", "start", "--agent", "writer", "--message", "hello"]):
        seconds([sys.executable, "-m", "agentctl", *command], folder, environ)
    return environ


def lines(folder: Path) -> Iterator[str]:
    """One line a command."""
    environ = prepared(folder)
    yield f"{'command':<52}{'ms':>7}{'bare':>7}{'ratio':>7}{'goal':>7}"
    for case in CASES:
        ours, bare = measured(case, folder, environ)
        name = " ".join(("agentctl", *case.command))
        yield (f"{name:<52}{ours * 1000:>7.0f}{bare * 1000:>7.0f}{ours / bare:>7.2f}{case.goal:>7}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for line in lines(Path(directory)):
            print(line, flush=True)
