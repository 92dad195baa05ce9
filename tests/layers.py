"""The layer of each test: the table `layers.tsv`.

- `check`: functions, formats and the service, in process: for each change;
- `doors`: HTTP, command line, faces, libraries of agents, PostgreSQL; on shared servers;
- `process`: signals, workers, kills and terminals: each test starts its own processes;
- `browser`: pages in Chromium;
- `long`: searches, matrices, sizes, pages that are executed, packaging.

A line of the table names a file of tests and its layer, or one function of a file that belongs to
another layer than its file. `make check` runs the first layer, `make test` all but the last, and
`make test-long` the last one (CONTRIBUTING.md). `tests/conftest.py` marks each test with its layer.

A new file needs a line. `tests/suite/test_layers.py` names the files that have none.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "DESCRIPTIONS",
    "LAYERS",
    "TABLE",
    "WAITING_LAYERS",
    "Table",
    "find_name",
    "find_problems",
    "read_table",
    "record_seconds",
]

DESCRIPTIONS = {
    "check": "in process, fast",
    "doors": "through HTTP, commands, libraries or PostgreSQL",
    "process": "with its own processes",
    "browser": "in Chromium",
    "long": "searches, matrices, sizes, packaging",
}

LAYERS = tuple(DESCRIPTIONS)

WAITING_LAYERS = ("browser", "process")
"""Their tests wait for other processes."""

TABLE = Path(__file__).with_name("layers.tsv")


@dataclass(frozen=True)
class Table:
    layers: dict[str, str]
    """The layer of each file, `tests/FOLDER/test_NAME.py`, and of each function that differs from
    its file, `FILE::FUNCTION`."""

    seconds: dict[str, float]
    """The recorded seconds of the files and functions, by which they are divided (see
    `record_seconds`)."""

    def find_layer(self, name: str) -> str | None:
        """Return the layer of the function `FILE::FUNCTION`; None if its file is not listed."""
        file, _, _ = name.partition("::")
        return self.layers.get(name) or self.layers.get(file)

    def find_files(self, layers: Collection[str]) -> list[str]:
        """Return the files with a function in these layers, in the order of the table."""
        return list(self.sum_seconds(layers))

    def divide_files(self, layer: str, count: int) -> list[list[str]]:
        """Divide the files of a layer into shards of about the same recorded time.

        The same table gives the same shards. A file is never divided, because its tests share
        fixtures.
        """
        seconds = self.sum_seconds([layer])
        shards: list[list[str]] = [[] for _ in range(count)]
        loads = [0.0] * count
        for file in sorted(seconds, key=lambda file: (-seconds[file], file)):
            lightest = loads.index(min(loads))
            shards[lightest].append(file)
            loads[lightest] += seconds[file]
        return [sorted(shard) for shard in shards]

    def sum_seconds(self, layers: Collection[str]) -> dict[str, float]:
        """Return the recorded seconds of each file with a function in these layers."""
        seconds: dict[str, float] = {}
        for name, layer in self.layers.items():
            if layer in layers:
                file, _, _ = name.partition("::")
                seconds[file] = seconds.get(file, 0.0) + self.seconds.get(name, 0.0)
        return seconds


def read_table(path: Path = TABLE) -> Table:
    """Read a table: a heading, then NAME, LAYER and SECONDS (or nothing), with a tab between them.

    Raises:
        ValueError: a line has another form, an unknown layer, or the name of an earlier line.
    """
    layers: dict[str, str] = {}
    seconds: dict[str, float] = {}
    with path.open(newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            name = row["test"]
            layer = row["layer"]
            if layer not in LAYERS:
                raise ValueError(
                    f"{path.name}: {name}: no layer {layer!r}; use {', '.join(LAYERS)}"
                )
            if name in layers:
                raise ValueError(f"{path.name}: {name} is listed twice")
            layers[name] = layer
            if row["seconds"]:
                seconds[name] = float(row["seconds"])
    return Table(layers, seconds)


def record_seconds(tests: Iterable[tuple[str, float]], path: Path = TABLE) -> None:
    """Write into a table what its files and functions took; those without a test here stay.

    Args:
        tests: the node id of each test, and its seconds with its fixtures.
    """
    listed = read_table(path).layers
    seconds: defaultdict[str, float] = defaultdict(float)
    for nodeid, duration in tests:
        name = find_name(nodeid)
        file, _, _ = name.partition("::")
        seconds[name if name in listed else file] += duration

    heading, *lines = path.read_text().splitlines()
    recorded = [heading]
    for line in lines:
        name, layer, before = line.split("\t")
        duration = f"{seconds[name]:.1f}" if name in seconds else before
        recorded.append(f"{name}\t{layer}\t{duration}")
    path.write_text("\n".join(recorded) + "\n")


def find_name(nodeid: str) -> str:
    """Return `FILE::FUNCTION` of a test, without its parameters.

    >>> find_name("tests/auth/test_keys.py::test_key[a::b]")
    'tests/auth/test_keys.py::test_key'
    """
    name, _, _ = nodeid.partition("[")
    return name


def find_problems(table: Table, files: Iterable[str], functions: Iterable[str]) -> list[str]:
    """Return the faults of a table, given all files of tests and all their functions."""
    known = {*files, *functions}
    missing = [f"{file} has no layer" for file in sorted(set(files) - table.layers.keys())]
    unknown = [f"{name} does not exist" for name in sorted(table.layers.keys() - known)]
    needless = [
        f"{name} has the layer of its file"
        for name, layer in table.layers.items()
        if "::" in name and layer == table.layers.get(name.partition("::")[0])
    ]
    return [*missing, *unknown, *needless]
