"""The table `[backup]`."""

from __future__ import annotations

import pytest

from agentctl.config.upkeep import KeepRule
from tests.config.conftest import Reads, Refuses

TIME = 'must be a time like "15m", "6h" or "1d", or empty'
KEEP = 'must be a time and what to keep of it, like "24h hourly" or "30d daily"; also "all"'
SECOND = "\n[[databases]]\nid = 'second'\nurl = 'postgresql://db/second'\n"
MAIN = "\n[[databases]]\nid = 'main'\nurl = 'sqlite:///data/main.db'\n"

WRONG = {
    "every = '15'": f"backup.every: {TIME}",
    "every = '0m'": f"backup.every: {TIME}",
    "every = '15 minutes'": f"backup.every: {TIME}",
    "keep = ['24h']": f"backup.keep[0]: {KEEP}",
    "keep = ['30d daily', '5y yearly']": f"backup.keep[1]: {KEEP}",
    "keep = ['0d daily']": f"backup.keep[0]: {KEEP}",
    "keep = ['1d daily', '1d daily']": 'backup.keep: must not contain "1d daily" twice',
    "keep = []": "backup.keep: must have at least one rule",
    "databases = ['x']": 'backup.databases: no entry of [[databases]] has the id "x"',
    "every = '1h'\nfolder = 'data'" + MAIN: 'backup.folder: is the folder of the database "main"',
    "every = '1h'\nfolder = 'data/main.db'" + MAIN: (
        'backup.folder: is a part of the database "main"'
    ),
    "every = '1h'\nfolder = 'data/main.db.workers/x'" + MAIN: (
        'backup.folder: is a part of the database "main"'
    ),
    "every = '1h'" + MAIN + SECOND: 'backup.every: the database "second" is PostgreSQL',
    "every = '1h'\ndatabases = ['second']" + MAIN + SECOND: (
        'backup.databases: the database "second" is PostgreSQL'
    ),
}


@pytest.mark.parametrize(("keys", "problem"), WRONG.items())
def test_nonsense_is_refused(refuses: Refuses, keys: str, problem: str) -> None:
    assert refuses(f"[backup]\n{keys}").startswith(problem)


def test_backups_are_off_unless_configured(reads: Reads) -> None:
    assert not reads(MAIN + SECOND).backup.includes("main")


def test_databases_and_rules_are_chosen(reads: Reads) -> None:
    keys = "every = '15m'\ndatabases = ['main']\nkeep = ['6h all', '2w daily', '400d monthly']\n"
    table = reads(f"[backup]\n{keys}{MAIN}{SECOND}").backup
    assert (table.seconds, table.includes("main"), table.includes("second")) == (900, True, False)
    assert table.rules == [
        KeepRule(21_600, "all"),
        KeepRule(1_209_600, "daily"),
        KeepRule(34_560_000, "monthly"),
    ]
