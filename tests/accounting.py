"""A plugin of pytest that writes what each test cost, for `python -m tests.run`.

    pytest -p tests.accounting --account FILE

FILE gets one JSON object a test: see `Account`. A worker of xdist adds its figures to the reports
that it sends, and the process that collects the reports writes the file.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.layers import LAYERS
from tests.notices import PAGE, PROGRAM, listeners, tell

__all__ = ["Account", "read_accounts", "write_accounts"]


@dataclass
class Account:
    """The costs of one test and of its fixtures."""

    test: str
    """Its node id."""

    layer: str = ""

    outcome: str = "passed"
    """`passed`, `failed` (also: an error of a fixture), `skipped` or `xfailed`."""

    message: str = ""
    """The first line of the failure."""

    seconds: float = 0.0

    cpu: float = 0.0
    """CPU seconds of the process of the test and of the programs that it has waited for. Those of
    a server that several tests share are the costs of the test at whose end it ends."""

    programs: int = 0
    """Programs started, servers among them."""

    servers: int = 0
    """Processes started of `agentctl serve`."""

    pages: int = 0
    """Pages opened in a browser."""


def read_accounts(path: Path) -> list[Account]:
    """Return the tests of a file in the order of their ends; none if the file does not exist."""
    if not path.exists():
        return []
    return [Account(**json.loads(line)) for line in path.read_text().splitlines()]


def write_accounts(path: Path, accounts: Iterable[Account]) -> None:
    path.write_text("".join(json.dumps(asdict(account)) + "\n" for account in accounts))


class _Counts:
    """Running totals of this process, by the notices of the tests."""

    def __init__(self) -> None:
        self.programs = 0
        self.servers = 0
        self.pages = 0

    def add(self, kind: str, value: Any) -> None:
        """Count a notice."""
        if kind == PROGRAM:
            self.programs += 1
            self.servers += isinstance(value, list | tuple) and "serve" in value
        elif kind == PAGE:
            self.pages += 1

    def read(self) -> dict[str, float]:
        times = os.times()
        waited_for = times.children_user + times.children_system
        return {
            "cpu": time.process_time() + waited_for,
            "programs": self.programs,
            "servers": self.servers,
            "pages": self.pages,
        }


class _Accountant:
    """Adds the costs of each phase to its report, and sums them up where the reports arrive."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._counts = _Counts()
        self._accounts: dict[str, Account] = {}
        listeners.append(self._counts.add)
        _notice_programs()
        self._before = self._counts.read()

    def pytest_collection_finish(self) -> None:
        """Leave the collection out of the costs of the first test."""
        self._before = self._counts.read()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        now = self._counts.read()
        # xdist passes other attributes of a report on, if they are values of JSON.
        report.costs = {name: now[name] - self._before[name] for name in now}
        report.layer = next((name for name in LAYERS if item.get_closest_marker(name)), "")
        self._before = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        account = self._accounts.setdefault(report.nodeid, Account(report.nodeid))
        account.seconds += report.duration
        # The report of a worker that has died has neither of them.
        account.layer = getattr(report, "layer", "") or account.layer
        for name, value in getattr(report, "costs", {}).items():
            setattr(account, name, getattr(account, name) + value)
        if report.failed:
            account.outcome = "failed"
            account.message = account.message or _find_message(report)
        elif report.skipped and account.outcome == "passed":
            account.outcome = "xfailed" if hasattr(report, "wasxfail") else "skipped"

    def pytest_sessionfinish(self) -> None:
        if self._path is None:
            return
        write_accounts(self._path, self._accounts.values())


def _notice_programs() -> None:
    """Let `subprocess` tell each program that this process starts."""
    start: Callable[..., None] = subprocess.Popen.__init__

    @functools.wraps(start)
    def tell_and_start(self: subprocess.Popen[Any], args: Any, *more: Any, **options: Any) -> None:
        tell(PROGRAM, args)
        start(self, args, *more, **options)

    subprocess.Popen.__init__ = tell_and_start  # type: ignore[method-assign]


def _find_message(report: pytest.TestReport) -> str:
    """Return the first line of the message of a failure, such as `AssertionError: ...`."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext
    return (text.strip().splitlines() or [""])[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--account", metavar="FILE", help="write what each test cost")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--account")
    if path is None:
        return
    is_worker = hasattr(config, "workerinput")
    accountant = _Accountant(None if is_worker else Path(path))
    config.pluginmanager.register(accountant, "accountant")
