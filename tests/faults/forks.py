"""Runs of pytest, each in a fork of one process that has imported the libraries.

The imports of libraries and of pytest take about three seconds, more than most of the tests that a
fault needs. The process (`python -m tests.faults.forks`, in a copy of the repository) imports them
once. It never imports the package or tests: each fork does, from the files as they are then.

The process reads one request a line from its input, and writes one answer a line; both are JSON.
`Forks` is the client of it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

__all__ = ["CONFTEST", "Forks", "Outcome"]

_LIBRARIES = (sysconfig.get_path("stdlib"), str(Path(pytest.__file__).parents[1]))
"""The folders of the modules that are imported before a fork: their files do not change."""


CONFTEST = "tests/conftest.py"
"""Stands for the failed tests if pytest has none, because it cannot import what all tests need."""

_NO_TESTS = (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR)


@dataclass
class Outcome:
    """The result of a run of pytest."""

    failed: dict[str, str] = field(default_factory=dict)
    """Ids of the tests that failed, and paths of the files that could not be imported, with the
    last line of the first report."""
    stuck: str | None = None
    """The id of the test that ran when the time was over, or "start"."""
    exit: int = 0
    """The exit code of pytest, or the negative number of the signal that ended it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """The duration of each test, with its fixtures."""
    used: dict[str, float] = field(default_factory=dict)
    """CPU seconds of each test, with its fixtures, without the processes that it starts."""
    reached: dict[int, list[str]] = field(default_factory=dict)
    """For each line of the measured module, the tests that execute it; only if measured."""
    cpu_seconds: float = 0.0
    """CPU seconds of the run, and of the processes that it started and waited for."""
    last_line: str = ""
    """The last line that pytest wrote."""


class Forks:
    """The process that runs tests in forks of itself."""

    def __init__(self, root: Path, temporary: Path, *, nice: int = 0) -> None:
        self._temporary = temporary
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "TMPDIR": str(temporary)}
        # Without cached bytecode, each fork would compile all modules.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [str(root / ".venv/bin/python"), "-m", "tests.faults.forks"],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if nice:
            os.setpriority(os.PRIO_PROCESS, self._process.pid, nice)

    def run(
        self,
        paths: Sequence[str],
        *,
        seconds: float,
        test_seconds: float | None = None,
        only: Collection[str] | None = None,
        measured: Path | None = None,
        options: Sequence[str] = (),
    ) -> Outcome:
        """Run tests, all of them regardless of failures.

        Args:
            paths: files, folders or ids of tests.
            seconds: the time after which the run is ended.
            test_seconds: the time after which it is ended if meanwhile no test ends; None for
                `seconds`. On a machine with other work, a run may take long although none of its
                tests is stuck.
            only: the ids of the tests to run, of those in `paths`; None for all.
            measured: a module of which the executed lines are measured, relative to the root.
            options: further arguments of pytest, such as `-m` with an expression of marks.
        """
        request = {
            "paths": list(paths),
            "only": None if only is None else sorted(only),
            "measured": measured and str(measured),
            "options": list(options),
            "seconds": seconds,
            "test_seconds": seconds if test_seconds is None else test_seconds,
            "temporary": str(self._temporary),
        }
        return self._ask(request)

    def import_libraries(self) -> None:
        """Import all libraries that the runs so far have imported.

        Later runs get them with the fork.
        """
        self._ask({"import": True})

    def _ask(self, request: Mapping[str, Any]) -> Outcome:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        answer["reached"] = {int(line): tests for line, tests in answer["reached"].items()}
        return Outcome(**answer)

    def close(self) -> None:
        """End the process, and the run that it waits for."""
        self._process.terminate()
        # Waits for the process, and closes the pipes.
        self._process.communicate()


class _Recorder:
    """A plugin of pytest that writes what happens, one JSON value a line.

    The lines are written at once, so that they survive the end of a run that is stuck.
    """

    def __init__(
        self, write: Callable[..., None], only: Collection[str] | None, module: str | None
    ) -> None:
        self._write = write
        self._only = only
        self._module = module
        self._coverage: Any = None
        if module is not None:
            import coverage

            self._coverage = coverage.Coverage(
                data_file=None, include=[module], config_file=False, branch=False
            )
            self._coverage.start()

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        if self._only is None:
            return
        others = [item for item in items if item.nodeid not in self._only]
        if others:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item.nodeid in self._only]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._write(begin=item.nodeid)
        if self._coverage is not None:
            self._coverage.switch_context(item.nodeid)
        begin = time.monotonic()
        used = time.process_time()
        result = yield
        used = time.process_time() - used
        if self._coverage is not None:
            self._coverage.switch_context("")
        seconds = time.monotonic() - begin
        self._write(end=item.nodeid, seconds=round(seconds, 3), used=round(used, 3))
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._write(failed=report.nodeid, why=_get_last_line(report.longreprtext))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(failed=report.nodeid, why=_get_last_line(report.longreprtext))

    def finish(self) -> None:
        """Write the executed lines, and the names of the imported modules."""
        if self._coverage is not None:
            self._coverage.stop()
            lines = self._coverage.get_data().contexts_by_lineno(self._module)
            self._write(reached={line: sorted(filter(None, of)) for line, of in lines.items()})
        libraries = [
            name
            for name, module in list(sys.modules.items())
            if (getattr(module, "__file__", None) or "").startswith(_LIBRARIES)
        ]
        self._write(modules=libraries)


def _run_pytest(request: Mapping[str, Any], log: Path) -> int:
    """Run pytest in this process, a new fork."""
    with log.open("w", buffering=1) as stream:

        def write(**event: Any) -> None:
            stream.write(json.dumps(event) + "\n")

        measured = request["measured"]
        only = request["only"]
        recorder = _Recorder(
            write,
            None if only is None else frozenset(only),
            measured and str(Path(measured).absolute()),
        )
        arguments = ["-q", "--tb=line", "--no-header", "--continue-on-collection-errors"]
        arguments += ["-p", "no:cacheprovider", f"--basetemp={request['temporary']}/pytest"]
        # pytest cannot rewrite the assertions of plugins that are imported already.
        arguments += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]
        arguments += request["options"]
        code = int(pytest.main([*arguments, *request["paths"]], plugins=[recorder]))
        recorder.finish()
        return code


def _fork(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run pytest in a fork, and return the values of an `Outcome`."""
    log = Path(request["temporary"], "events")
    output = Path(request["temporary"], "output")
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            descriptor = os.open(output, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            code = _run_pytest(request, log)
            sys.stdout.flush()
        finally:
            os._exit(code)
    try:
        status, used = _wait(child, log, request["seconds"], request["test_seconds"])
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    outcome = _read_events(log)
    outcome["exit"] = os.waitstatus_to_exitcode(status)
    if outcome["exit"] in _NO_TESTS and not outcome["failed"]:
        outcome["failed"] = {CONFTEST: "pytest could not begin"}
    outcome["cpu_seconds"] = round(used, 2)
    outcome["last_line"] = _get_last_line(output.read_text(errors="replace"))
    return outcome


def _get_last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def _wait(child: int, log: Path, seconds: float, test_seconds: float) -> tuple[int, float]:
    """Wait for a process, and kill it if it takes too long; return its status and CPU seconds.

    Args:
        log: what the process writes at the begin and the end of each test.
        seconds, test_seconds: see `Forks.run`.
    """
    deadline = time.monotonic() + seconds
    written = 0
    written_at = time.monotonic()
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended:
            return status, usage.ru_utime + usage.ru_stime

        size = log.stat().st_size if log.exists() else 0
        if size != written:
            written = size
            written_at = time.monotonic()
        if time.monotonic() > min(deadline, written_at + test_seconds):
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            return status, usage.ru_utime + usage.ru_stime

        time.sleep(0.02)


_found_modules: dict[str, None] = {}


def _read_events(log: Path) -> dict[str, Any]:
    """Read what the plugin in a fork has written."""
    failed: dict[str, str] = {}
    seconds: dict[str, float] = {}
    used: dict[str, float] = {}
    reached: dict[str, list[str]] = {}
    running: str | None = "start"
    for line in log.read_text().splitlines() if log.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # The last line of a killed process.
            event = json.loads(line)
            if "begin" in event:
                running = event["begin"]
            elif "end" in event:
                seconds[event["end"]] = event["seconds"]
                used[event["end"]] = event["used"]
                running = "between two tests"
            elif "failed" in event:
                failed.setdefault(event["failed"], event["why"])
            elif "reached" in event:
                reached = event["reached"]
            elif "modules" in event:
                _found_modules.update(dict.fromkeys(event["modules"]))
                running = None
    return {
        "failed": failed,
        "stuck": running,
        "seconds": seconds,
        "used": used,
        "reached": reached,
    }


def _import_libraries() -> None:
    """Import the libraries that forks have imported, in the same order.

    Modules in C come with the modules that they accelerate: `_asyncio` before `asyncio` would be
    initialized twice, and no task would know that it is the current one.
    """
    for name in _found_modules:
        if name not in sys.modules and not name.startswith("_"):
            # Some can only be imported by others.
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _serve() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    # A library may print while it is imported.
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any] = {"reached": {}}
        if "import" in request:
            _import_libraries()
        else:
            answer = _fork(request)
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    _serve()
