"""A plugin of pytest that runs the tests again and again, for `python -m tests.run repeat`.

    pytest -n 0 -p tests.repeating --rounds 200 PATH ...

The tests are collected once, and all of them run in each round, in one process. What a fixture of
the session has started serves all rounds. A line tells the failures and the CPU seconds of each
round. A test that fails is reported at the end, as often as it has failed.
"""

from __future__ import annotations

import os

import pytest

__all__ = ["pytest_addoption", "pytest_runtestloop"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="how often all tests run")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Run all tests in each round, and stop where pytest would."""
    if session.testsfailed and not session.config.option.continue_on_collection_errors:
        raise session.Interrupted("there are errors during collection")
    if session.config.option.collectonly:
        return True

    rounds = session.config.getoption("--rounds")
    cpu = _read_cpu()
    failures = 0
    for number in range(1, rounds + 1):
        _run_round(session, is_last=number == rounds)
        new_failures = session.testsfailed - failures
        seconds = _read_cpu() - cpu
        failures += new_failures
        cpu += seconds
        _tell(
            session,
            f"Round {number} of {rounds}: {new_failures} of {len(session.items)} tests failed, "
            f"{seconds:.0f} CPU s",
        )
    return True


def _run_round(session: pytest.Session, *, is_last: bool) -> None:
    for index, item in enumerate(session.items):
        following = session.items[index + 1 : index + 2]
        if not following and not is_last and len(session.items) > 1:
            # The fixtures that the first test shares with this one live on. A test that follows
            # itself would keep its own.
            following = session.items[:1]
        item.config.hook.pytest_runtest_protocol(
            item=item, nextitem=following[0] if following else None
        )
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _tell(session: pytest.Session, line: str) -> None:
    """Print a line, and drop the reports of tests that have passed: some hundred thousand."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    reporter.stats.pop("passed", None)
    reporter.stats.pop("", None)
    reporter.ensure_newline()
    reporter.write_line(line)


def _read_cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
