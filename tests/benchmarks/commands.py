"""How long commands take, beside a bare Typer program that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.measure import Act, Row, at_most, compared, turns
from tests.process import base_environment

__all__ = ["acts", "against_typer", "prepare", "processor_seconds"]


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


def environment(folder: Path) -> dict[str, str]:
    """That of every command."""
    return base_environment() | {"HOME": str(folder), "NO_COLOR": "1"}


def prepare(folder: Path) -> None:
    """The bare program, a configuration, keys, and a database with one session."""
    (folder / "bare.py").write_text(BARE, encoding="utf-8")
    environ = environment(folder)
    for command in (["init"], ["runs", "start", "--agent", "writer", "--message", "hello"]):
        seconds([sys.executable, "-m", "agentctl", *command], folder, environ)


def processor_seconds(command: list[str], folder: Path, environ: Mapping[str, str]) -> float:
    """What one command takes of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds(command, folder, environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def acts(
    folder: Path,
    command: tuple[str, ...],
    bare: tuple[str, ...],
    measure: Callable[[list[str], Path, Mapping[str, str]], float] = seconds,
) -> dict[str, Act]:
    """A command of ours and the bare program, in a folder that has been prepared."""
    environ = environment(folder)

    def started(*command: str) -> Act:
        whole = [sys.executable, *command]
        return lambda: measure(whole, folder, environ) * 1_000

    floor = "bare Typer" + (" --help" if bare else "")
    return {
        "ours": started("-m", "agentctl", *command),
        floor: started(str(folder / "bare.py"), *bare),
    }


def against_typer(folder: Path) -> Iterator[Row]:
    """One row a command, each after a first start that is not counted."""
    prepare(folder)
    for case in CASES:
        pair = acts(folder, case.command, case.bare)
        found = {name: took[1:] for name, took in turns(pair, ROUNDS).items()}
        (floor,) = set(pair) - {"ours"}
        work = " ".join(("agentctl", *case.command[:2]))
        goal = at_most(case.goal)
        yield compared(work, found["ours"], floor, found[floor], " ms", goal)
