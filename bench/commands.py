"""The CPU time of commands, compared with a bare Typer program that does nothing.

A command waits for nothing, so its CPU time is its duration on an idle machine. A local read checks
the configuration and opens a database. So it is also compared with a bare program that does the
same: no read of this package can take less.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.measure import Measurement, Row, at_most, build_ratio_row, run_rounds
from tests.kit.process import base_environment

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


READER = """
import asyncio

import apsw
import typer

from agentctl import config

app = typer.Typer()


async def read() -> list:
    return apsw.Connection("agentctl.db").execute("SELECT * FROM sessions").fetchall()


@app.command()
def hello(name: str = "world") -> None:
    "Greet somebody."
    config.load_settings()
    print(f"hello {name}", len(asyncio.run(read())))


app()
"""

PROGRAMS = {"bare Typer": BARE, "bare Typer that reads the configuration and a row": READER}
"""The programs to which commands are compared, by their names in the table."""


class Case(NamedTuple):
    """A command, the arguments of the program to which it is compared, and the ratio to reach."""

    command: tuple[str, ...]
    bare: tuple[str, ...]
    goal: float
    program: str = "bare Typer"


CASES = [
    Case(("--help",), ("--help",), 1.3),
    Case(("sessions", "--help"), ("--help",), 2),
    Case(("--version",), ("--help",), 0.8),
    Case(("token", "mint", "--sub", "me", "--scope", "agents:read"), (), 2),
    Case(("teams", "list"), (), 2),
    Case(("sessions", "list"), (), 2.5),
    Case(("sessions", "get", "s1"), (), 2.3),
    Case(("teams", "list"), (), 1.3, "bare Typer that reads the configuration and a row"),
    Case(("sessions", "get", "s1"), (), 1.4, "bare Typer that reads the configuration and a row"),
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
    """Write the bare programs, a configuration, keys, and a database with the session `s1`."""
    for name, text in PROGRAMS.items():
        _find_program(folder, name).write_text(text, encoding="utf-8")
    environ = command_environment(folder)
    run = ["runs", "start", "--agent", "writer", "--session", "s1", "--message", "hello"]
    for command in (["init"], run):
        measure_seconds([sys.executable, "-m", "agentctl", *command], folder, environ)


def _find_program(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(' ', '_').lower()}.py"


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
    program: str = "bare Typer",
) -> dict[str, Measurement]:
    """Build measurements of a command and of a program of `PROGRAMS`, in milliseconds."""
    environ = command_environment(folder)

    def started(*command: str) -> Measurement:
        whole = [sys.executable, *command]
        return lambda: measure(whole, folder, environ) * 1_000

    floor = program + (" --help" if bare else "")
    return {
        "ours": started("-m", "agentctl", *command),
        floor: started(str(_find_program(folder, program)), *bare),
    }


def compare_with_typer(folder: Path) -> Iterator[Row]:
    """Yield one row per command, in CPU time; the first start of each is not counted."""
    prepare_folder(folder)
    for case in CASES:
        pair = build_measurements(
            folder, case.command, case.bare, measure_cpu_seconds, program=case.program
        )
        found = {name: took[1:] for name, took in run_rounds(pair, ROUNDS).items()}
        (floor,) = set(pair) - {"ours"}
        work = " ".join(("agentctl", *case.command[:2]))
        goal = at_most(case.goal)
        row = build_ratio_row(work, found["ours"], floor, found[floor], " CPU ms", goal)
        yield replace(row, timed=False)
