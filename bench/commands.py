"""Durations of commands, compared with a bare Typer program that does nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from bench.measure import Measurement, Row, at_most, build_ratio_row, run_rounds
from tests.process import base_environment

__all__ = ["build_measurements", "compare_with_typer", "measure_cpu_seconds", "prepare_folder"]


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
    """A command, the arguments of the bare program, and the ratio to reach."""

    command: tuple[str, ...]
    bare: tuple[str, ...]
    goal: float


CASES = [
    Case(("--help",), ("--help",), 1.3),
    Case(("sessions", "--help"), ("--help",), 2),
    Case(("--version",), ("--help",), 0.8),
    Case(("token", "mint", "--sub", "me", "--scope", "agents:read"), (), 2),
    Case(("teams", "list"), (), 1.5),
    Case(("sessions", "list"), (), 2),
]


def measure_seconds(command: list[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Return the wall-clock time of one command in seconds.

    Raises:
        CalledProcessError: the command did not exit with 0.
    """
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=True, timeout=60)
    return time.perf_counter() - start


def command_environment(folder: Path) -> dict[str, str]:
    """Return the environment of every command."""
    return base_environment() | {"HOME": str(folder), "NO_COLOR": "1"}


def prepare_folder(folder: Path) -> None:
    """Write the bare program, a configuration, keys, and a database with one session."""
    (folder / "bare.py").write_text(BARE, encoding="utf-8")
    environ = command_environment(folder)
    for command in (["init"], ["runs", "start", "--agent", "writer", "--message", "hello"]):
        measure_seconds([sys.executable, "-m", "agentctl", *command], folder, environ)


def measure_cpu_seconds(command: list[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Return the CPU time of one command in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    measure_seconds(command, folder, environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build_measurements(
    folder: Path,
    command: tuple[str, ...],
    bare: tuple[str, ...],
    measure: Callable[[list[str], Path, Mapping[str, str]], float] = measure_seconds,
) -> dict[str, Measurement]:
    """Build measurements of a command and of the bare program, in milliseconds."""
    environ = command_environment(folder)

    def started(*command: str) -> Measurement:
        whole = [sys.executable, *command]
        return lambda: measure(whole, folder, environ) * 1_000

    floor = "bare Typer" + (" --help" if bare else "")
    return {
        "ours": started("-m", "agentctl", *command),
        floor: started(str(folder / "bare.py"), *bare),
    }


def compare_with_typer(folder: Path) -> Iterator[Row]:
    """Yield one row per command; the first start of each is not counted."""
    prepare_folder(folder)
    for case in CASES:
        pair = build_measurements(folder, case.command, case.bare)
        found = {name: took[1:] for name, took in run_rounds(pair, ROUNDS).items()}
        (floor,) = set(pair) - {"ours"}
        work = " ".join(("agentctl", *case.command[:2]))
        goal = at_most(case.goal)
        yield build_ratio_row(work, found["ours"], floor, found[floor], " ms", goal)
