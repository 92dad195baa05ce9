"""The settings loader next to pydantic and msgspec on the same tables and the same file.

`python -m tests.benchmarks.reasons.settings` prints two tables: the time that a fresh interpreter
takes to load the sample configuration with each, and what each reports about wrong lines. All three
read the classes of `agentctl.config.settings`. msgspec is measured if it is installed
(`pip install msgspec`); the project does not depend on it.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentctl.config.tables import ENTRY_TABLES, list_sections

ROUNDS = 15
SAMPLE = Path(__file__).parents[3] / "sample-config.toml"

FAULTS: dict[str, tuple[str, str, str]] = {
    "an unknown key": ("port = 7777", "prot = 7777", "prot"),
    "a wrong type": ("port = 7777", 'port = "x"', "port"),
    "a value out of range": ("port = 7777", "port = 70_000", "port"),
    "a reference to nothing": ('model = "fast"', 'model = "fsat"', "model"),
    "a secret in a wrong place": (
        "verification_keys = []",
        'verification_keys = "hunter2-hunter2"',
        "verification_keys",
    ),
    "a key without effect": ('audience = ""', 'audience = "other"', "audience"),
}
"""Wrong lines by name: the line of the sample, the wrong line, and the name of the key."""

Read = Callable[[Path], object]


def with_tomllib(path: Path) -> object:
    """Parse the file and check nothing: the floor."""
    return tomllib.loads(path.read_text())


def with_agentctl(path: Path) -> object:
    """Load the file as every command does."""
    from agentctl.config import load_settings

    return load_settings(path, {})


def with_pydantic(path: Path) -> object:
    """Validate each table with pydantic, unknown keys forbidden."""
    import pydantic

    def validated(cls: Any, value: Any, *, many: bool) -> object:
        cls.__pydantic_config__ = pydantic.ConfigDict(extra="forbid")
        kind: Any = list[cls] if many else cls
        return pydantic.TypeAdapter(kind).validate_python(value)

    return _each_table(path, validated)


def with_msgspec(path: Path) -> object:
    """Convert each table with msgspec, unknown keys forbidden."""
    import msgspec

    def struct(cls: type) -> Any:
        hints = typing.get_type_hints(cls, include_extras=True)
        fields: list[Any] = []
        for field in dataclasses.fields(cls):
            kind = hints[field.name]
            if field.name == "steps":
                kind = list[dict[str, str]]
            default = [] if field.default is dataclasses.MISSING else [field.default]
            fields.append((field.name, kind, *default))
        return msgspec.defstruct(cls.__name__, fields, kw_only=True, forbid_unknown_fields=True)

    def converted(cls: type, value: Any, *, many: bool) -> object:
        kind: Any = struct(cls)
        wanted = list[kind] if many else kind
        return msgspec.convert(value, wanted, dec_hook=lambda kind, given: kind(given))

    return _each_table(path, converted)


def _each_table(path: Path, read: Callable[..., object]) -> object:
    document = tomllib.loads(path.read_text())
    one = [read(cls, document.get(name, {}), many=False) for name, cls in list_sections().items()]
    return [
        *one,
        *(read(cls, document.get(name, []), many=True) for name, cls in ENTRY_TABLES.items()),
    ]


WAYS: Mapping[str, Read] = {
    "tomllib alone": with_tomllib,
    "agentctl": with_agentctl,
    "pydantic": with_pydantic,
    "msgspec": with_msgspec,
}


def start_up(way: str) -> float:
    """Return the milliseconds that a fresh interpreter takes to load the sample."""
    code = f"import {__spec__.name} as m; m.WAYS[{way!r}](m.SAMPLE)"
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return (time.perf_counter() - began) * 1_000


def message(way: str, fault: str, folder: Path) -> str:
    """Return what a way reports about a fault, or an empty text if it accepts the file."""
    right, wrong, _ = FAULTS[fault]
    text = SAMPLE.read_text()
    at = next(line for line in text.splitlines() if line.startswith(right))
    file = folder / "agentctl.toml"
    file.write_text(text.replace(at, wrong, 1))
    try:
        WAYS[way](file)
    except Exception as error:
        parts = (getattr(error, name, None) for name in ("detail", "cause", "hint"))
        return " ".join(filter(None, parts)) or str(error)
    return ""


def judged(way: str, fault: str, folder: Path) -> str:
    """Return which facts the message about a fault has."""
    report = message(way, fault, folder)
    if not report:
        return "accepted"
    name = FAULTS[fault][2]
    line = "agentctl.toml" in report and re.search(r"line \d+|toml:\d+", report)
    found = [
        *(["key"] if name in report else []),
        *(["file and line"] if line else []),
        *(["repeats the secret"] if "hunter2" in report else []),
    ]
    return ", ".join(found) or "rejected"


def main() -> None:
    """Print both tables."""
    ways = [way for way in WAYS if way != "msgspec" or importlib.util.find_spec("msgspec")]
    rounds = [{way: start_up(way) for way in ways} for _ in range(ROUNDS)]
    print("| loader | ms, fresh interpreter | above tomllib |\n| --- | --- | --- |")
    for way in ways:
        took = statistics.median(each[way] for each in rounds)
        more = statistics.median(each[way] - each["tomllib alone"] for each in rounds)
        print(f"| {way} | {took:.0f} | {more:+.0f} |")
    print(f"\n| wrong line | {' | '.join(ways[1:])} |\n|{' --- |' * len(ways)}")
    with tempfile.TemporaryDirectory() as folder:
        for fault in FAULTS:
            cells = [judged(way, fault, Path(folder)) for way in ways[1:]]
            print(f"| {fault} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
