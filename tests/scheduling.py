"""A plugin of pytest that divides the files of tests among the workers of xdist.

    pytest -n 3 --dist each -p tests.scheduling \\
        --layers check --layers check --layers process FILE ...

Each worker gets its own `--layers`, with ` or ` between several. Workers with the same layers share
the files that have tests of them: each collects a part of these files, which takes as long as the
other parts by the seconds in `layers.tsv`, and runs no other. Neighbours in the order of the
arguments stay together, because they use the same libraries. With the divisions of xdist, every
worker collects all tests and imports all libraries of agents: four workers spent a fifth of the CPU
time of `check` on it.

The tests of processes and browsers wait for other processes, with deadlines. Where they run beside
other layers, the workers of those layers have a lower priority: they use what is left of the cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import EachScheduling

from tests.layers import WAITING_LAYERS, Table, read_table

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

__all__ = ["cut_files"]

_UNKNOWN_SECONDS = 0.2
"""Of a file without recorded seconds; also what the start of a file takes."""

_LOWER_PRIORITY = 5
"""An addition to the niceness of a process."""


def cut_files(
    table: Table, arguments: Sequence[str], layers: Sequence[str], parts: int
) -> list[list[str]]:
    """Cut those of some files that have tests of these layers into parts of about the same time.

    Args:
        arguments: files, or node ids of tests in them; a part keeps their order.
        parts: how many.
    """
    seconds = table.sum_seconds(layers)
    chosen: list[str] = []
    weights: list[float] = []
    for argument in arguments:
        file, _, _ = argument.partition("::")
        if file in seconds:
            chosen.append(argument)
            weights.append(_UNKNOWN_SECONDS + seconds[file])

    whole = sum(weights)
    divided: list[list[str]] = [[] for _ in range(parts)]
    before = 0.0
    for argument, weight in zip(chosen, weights, strict=True):
        # A file at a cut goes to the part that has the middle of it.
        middle = before + weight / 2
        divided[int(middle / whole * parts)].append(argument)
        before += weight
    return divided


class _PartScheduling(EachScheduling):
    """Each worker runs all tests that it has collected."""

    def schedule(self) -> None:
        # xdist has set the number of one worker's tests, and the progress counts up to it.
        session = self.config.pluginmanager.get_plugin("session")
        assert isinstance(session, pytest.Session)
        session.testscollected = sum(map(len, self.node2collection.values()))
        super().schedule()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--layers", action="append", default=[], help="of the next worker, joined by ` or `"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Let no process load the `conftest.py` of all files of the run: they import servers.

    A worker loads those of its own files when it collects them, and the process that starts the
    workers needs only the first one, in `tests`.
    """
    early_config.known_args_namespace.file_or_dir = []


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> EachScheduling:
    return _PartScheduling(config, log)


def pytest_configure_node(node: WorkerController) -> None:
    """Choose the files of a new worker."""
    all_layers: list[str] = node.config.getoption("--layers")
    number = int(node.workerinput["workerid"].removeprefix("gw"))
    own_layers = all_layers[number]
    parts = cut_files(
        read_table(), node.config.args, own_layers.split(" or "), all_layers.count(own_layers)
    )
    own_part = all_layers[:number].count(own_layers)
    node.workerinput["layers"] = own_layers
    node.workerinput["files"] = parts[own_part]


def pytest_configure(config: pytest.Config) -> None:
    """Leave a worker its own files and layers."""
    workerinput = getattr(config, "workerinput", None)
    if workerinput is None:
        return

    config.args = workerinput["files"]
    # A file may have tests of several layers.
    chosen = config.option.markexpr
    own_layers = workerinput["layers"]
    config.option.markexpr = f"({own_layers}) and ({chosen})" if chosen else own_layers

    is_waiting = own_layers in WAITING_LAYERS
    all_layers = config.getoption("--layers")
    if not is_waiting and not set(WAITING_LAYERS).isdisjoint(all_layers):
        os.nice(_LOWER_PRIORITY)
