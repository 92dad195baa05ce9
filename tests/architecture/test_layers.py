"""Imports run downward only (docs/architecture.md)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.architecture.sources import Module, modules
from tests.process import unmeasured

GROUND = {"errors", "records", "operations", "config"}
FLOOR = GROUND | {"auth", "store", "runtime"}

BELOW: dict[str, set[str]] = {
    "errors": set(),
    "records": {"errors"},
    "operations": {"errors", "records"},
    "config": {"errors", "records"},
    "auth": GROUND,
    "store": GROUND,
    "runtime": GROUND,
    "runs": FLOOR,
    "service": FLOOR | {"runs"},
    "server": FLOOR | {"runs", "service"},
    "remote": GROUND,
    "cli": FLOOR | {"runs", "service", "server", "remote"},
    "__main__": {"cli"},
}
"""The parts of the package that each part may import, besides itself."""

HEAVY = (
    "apsw",
    "asyncpg",
    "cryptography",
    "fastapi",
    "httpx2",
    "jwt",
    "orjson",
    "platformdirs",
    "prometheus_client",
    "pydantic",
    "pydantic_ai",
    "rich.console",
    "starlette",
    "tomllib",
    "uvicorn",
)


def part(module: str) -> str:
    """`agentctl.store.sqlite` is of the part `store`."""
    return [*module.split("."), ""][1]


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_a_module_imports_from_the_floors_below_it_only(module: Module) -> None:
    own = part(module.name)
    allowed = BELOW.get(own, set()) | {own}
    wrong = [
        f"line {line}: {name}"
        for name, line in module.imports()
        if name.startswith("agentctl.") and part(name) in BELOW and part(name) not in allowed
    ]
    assert wrong == []


def test_every_part_of_the_package_has_a_layer() -> None:
    parts = {part(module.name) for module in modules()} - {""}
    assert parts <= BELOW.keys()


@pytest.mark.parametrize("module", ["agentctl.cli.app", "agentctl.config"])
def test_the_start_of_the_command_line_stays_light(module: str) -> None:
    code = f"import sys, {module}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=unmeasured(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == []
