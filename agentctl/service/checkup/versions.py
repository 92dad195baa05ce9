"""Versions of what security and safety of data depend on, against the oldest that will do."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata

from agentctl.service.checkup.finding import Finding, ok, wrong
from agentctl.store.sqlite_checkup import sqlite_version

__all__ = ["FLOORS", "SQLITE_FLOOR", "at_least", "check_versions"]

FLOORS = {
    "pyjwt": "2.15.1",
    "cryptography": "49",
    "starlette": "1.3.1",
    "uvicorn": "0.54",
    "httptools": "0.8",
    "h11": "0.16",
}
"""Below these there are advisories about what a server does with them."""

SQLITE_FLOOR = "3.51.3"
"""Below it two connections that write and checkpoint at once can damage a file in WAL mode."""

_CHECK = "versions"


def check_versions() -> Iterator[Finding]:
    """SQLite as apsw has it, and every distribution of FLOORS."""
    sqlite = sqlite_version()
    if at_least(sqlite, SQLITE_FLOOR):
        yield ok(_CHECK, f"SQLite {sqlite}")
    else:
        text = f"SQLite {sqlite} can damage a database; {SQLITE_FLOOR} is needed"
        yield wrong(_CHECK, text, _install("apsw"))
    good = []
    for name, floor in FLOORS.items():
        version = _installed(name)
        if version is not None and at_least(version, floor):
            good.append(f"{name} {version}")
            continue
        there = "is not installed" if version is None else f"{version} has known weaknesses"
        yield wrong(_CHECK, f"{name} {there}", _install(f"{name}>={floor}"))
    if good:
        yield ok(_CHECK, ", ".join(good))


def at_least(version: str, floor: str) -> bool:
    """Whether a version is a floor or later; what is before a release (`2.0rc1`) is not it."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if numbers is None:
        return False
    found, needed = _parts(numbers[0]), _parts(floor)
    size = max(len(found), len(needed))
    padded = [each + (0,) * (size - len(each)) for each in (found, needed)]
    if padded[0] == padded[1]:
        return re.match(r"[.-]?(a|b|rc|dev)", version[numbers.end() :]) is None
    return padded[0] > padded[1]


def _parts(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _install(requirement: str) -> str:
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install --upgrade {shlex.quote(requirement)}"
