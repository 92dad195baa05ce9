"""The environment of every test: the same, regardless of the shell that started the suite."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator

import hypothesis
import pytest
from httpx2._config import DEFAULT_TIMEOUT_CONFIG
from hypothesis.internal.conjecture import providers

from tests.kit.conditions import PATIENCE
from tests.kit.trust import share_trust
from tests.kit.user_modules import forget_user_modules
from tests.layers import DESCRIPTIONS, find_name, read_table

pytest_plugins = (
    "tests.kit.clock",
    "tests.kit.new_files",
    "tests.kit.model",
    "tests.kit.postgres",
    "tests.kit.deployment",
)
"""The modules with the fixtures of all tests. A module precedes those that import it."""

_OURS = ("AGENTCTL_", "JWT_")
_KEPT = "AGENTCTL_TEST_"
_SCRUBBED = frozenset({
    "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID",
    "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
})  # fmt: skip
_FIXED = {"NO_COLOR": "1", "TERM": "dumb", "TZ": "UTC", "NO_PROXY": "*", "no_proxy": "*"}


_numbers = itertools.count()


def _find_unwanted() -> list[str]:
    return [
        name
        for name in os.environ
        if name in _SCRUBBED or (name.startswith(_OURS) and not name.startswith(_KEPT))
    ]


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment for fixtures of a wider scope, which run before the one below."""
    for layer, description in DESCRIPTIONS.items():
        config.addinivalue_line("markers", f"{layer}: {description} (tests/layers.py)")
    for name in _find_unwanted():
        del os.environ[name]
    os.environ.update(_FIXED)
    # A shell that starts the suite in the background makes every process of it ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    share_trust()
    for name in vars(DEFAULT_TIMEOUT_CONFIG):
        setattr(DEFAULT_TIMEOUT_CONFIG, name, PATIENCE)
    # The same examples in every run, without regard to the time that they take. The database would
    # add examples of earlier runs.
    is_long = bool(os.environ.get("AGENTCTL_TEST_LONG"))
    hypothesis.settings.register_profile(
        "agentctl",
        deadline=None,
        derandomize=not is_long,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )
    hypothesis.settings.load_profile("agentctl")
    if not is_long:
        # It would also take constants from all modules of the repository that this process has
        # imported: its examples would depend on the files that were tested before.
        assert callable(providers._get_local_constants)
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its layer, before the option `-m` chooses among them.

    A test that is repeated with PostgreSQL belongs to `check` with SQLite alone. A row of
    parameters that imports a library of agents has the mark `doors` itself: that takes seconds.
    """
    try:
        table = read_table()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    for item in items:
        layer = table.find_layer(find_name(item.nodeid))
        if layer == "check" and (_needs_postgres(item) or item.get_closest_marker("doors")):
            layer = "doors"
        if layer is not None:
            item.add_marker(layer)


def _needs_postgres(item: pytest.Item) -> bool:
    is_repeated = "postgres" in item.name.partition("[")[2]
    return is_repeated or "postgres_url" in getattr(item, "fixturenames", ())


def pytest_collection() -> None:
    """Keep the garbage collector from walking the collected tests, again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the collected tests, which live until the end."""
    gc.collect()
    gc.freeze()
    # With the default of 700 new objects, the collections took 5% of the CPU time of all tests.
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Forget the modules of users after each file: which file is the next one differs."""
    yield
    if nextitem is None or nextitem.path != item.path:
        forget_user_modules()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the skipped cases by reason. Each reason is `REASON: REMEDY`."""
    places = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(place[2] for place in places if isinstance(place, tuple))
    if reasons:
        terminalreporter.section("not tested")
    for reason, count in reasons.most_common():
        why, _, remedy = reason.removeprefix("Skipped: ").partition(": ")
        terminalreporter.line(f"{count:5}  {why:44}  {remedy}")


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Keep settings, credentials and configuration of the user away from a test."""
    home = (
        tmp_path_factory.getbasetemp() / f"home-{next(_numbers)}"
    )  # exists only if a test uses it
    for name in _find_unwanted():
        monkeypatch.delenv(name)
    for name, value in _FIXED.items():
        monkeypatch.setenv(name, value)
    for name in ("CONFIG", "DATA", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(home / name.lower()))
