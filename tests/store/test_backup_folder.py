"""The folder of backups: its list, the rules that keep backups, and files of others."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.config.upkeep import Backup as BackupTable
from agentctl.config.upkeep import KeepRule
from agentctl.store.sqlite.backup_folder import BackupFolder, StoredBackup, list_expired
from tests.runs.components import LONG

HOUR = 3_600
DAY = 24 * HOUR
START = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())
RULES = BackupTable(every="15m").rules


def build_backup(at: int, *, is_verified: bool = True) -> StoredBackup:
    return StoredBackup(Path(str(at)), at, 1, {"sha256": "x"} if is_verified else None)


def expire(times: list[int], rules: list[KeepRule], at: int) -> list[int]:
    """Return the times of the backups that are kept."""
    backups = [build_backup(time) for time in sorted(times, reverse=True)]
    expired = {backup.taken_at for backup in list_expired(backups, rules, at)}
    return [time for time in times if time not in expired]


def test_keep_rules_keep_the_last_backup_of_each_period() -> None:
    step = 15 * 60 if LONG else HOUR
    kept: list[int] = []
    for at in range(START, START + 60 * DAY, step):
        kept = expire([*kept, at], RULES, at)
        assert kept[-1] == at
    ages = [at - time for time in kept]
    hours = [age for age in ages if age <= DAY]
    assert 24 <= len(hours) <= 26
    assert all(abs(a - b) <= HOUR for a, b in pairwise(hours))
    days = Counter(time // DAY for time in kept if at - time > DAY)
    assert set(days.values()) == {1}
    assert (at - 30 * DAY) // DAY <= min(days) <= (at - 29 * DAY) // DAY
    assert len(days) in (29, 30)


@pytest.mark.parametrize(
    ("keep", "times", "kept"),
    [
        ("3h all", [0, 1, 2, 3, 4], [1, 2, 3, 4]),
        ("9d weekly", [0, 3 * 24, 4 * 24, 8 * 24], [0, 4 * 24, 8 * 24]),
        ("9w monthly", [0, 24, 29 * 24, 30 * 24, 31 * 24], [29 * 24, 31 * 24]),
        ("1h hourly", [0, 24, 48], [48]),
    ],
)
def test_each_period_is_one_of_the_calendar(keep: str, times: list[int], kept: list[int]) -> None:
    rules = BackupTable(every="15m", keep=(keep,)).rules
    at = START + times[-1] * HOUR
    assert expire([START + hour * HOUR for hour in times], rules, at) == [
        START + hour * HOUR for hour in kept
    ]


def test_clock_that_jumps_back_expires_nothing_newer() -> None:
    times = [START + hour * HOUR for hour in range(20)]
    at = START + 5 * HOUR
    assert expire(times, RULES, at) == times
    assert expire(times, [KeepRule(60, "all")], at) == times[5:]


def test_unverified_backups_neither_expire_nor_take_a_place() -> None:
    backups = [build_backup(START + 60, is_verified=False), build_backup(START)]
    assert list_expired(backups, [KeepRule(60, "all")], START + DAY) == []


def write_backup(folder: BackupFolder, at: int, content: bytes = b"x") -> Path:
    """Write a file as a server does, with facts about it."""
    path = folder.build_path(at).with_suffix("")
    path.write_bytes(content)
    path.with_suffix(".json").write_text(json.dumps({"bytes": len(content), "sha256": "x"}))
    return path


FOREIGN = (
    "main-20261101T000000Z.db.bak", "main-20261101.db", "main-2026-11-01T000000Z.db", "notes.txt",
    "main2-20261101T000000Z.db", "main2-20261101T000000Z.json", "main2-20261101T000000Z.db.new",
    "main-20261101T000000Z.db", "main-20269901T000000Z.db", "main.db.new", "agentctl.db",
    "main-20261106T000000Z.json",
)  # fmt: skip
"""Files that no server has made for the database `main`."""


def test_files_of_others_are_never_touched(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path, "main")
    for name in FOREIGN:
        (tmp_path / name).write_text("mine")
    ours = [write_backup(folder, START + hour * HOUR) for hour in (1, 2, 3)]
    changed = write_backup(folder, START + 4 * HOUR)
    changed.write_text("larger than before")
    for leftover in (
        "main-20261105T000000Z.db.new",
        "main-20261105T000000Z.db.new.part",
        "main-20261105T000000Z.db.new.part-journal",
        "main-20261105T000000Z.json.new",
    ):
        (tmp_path / leftover).touch()
    (tmp_path / "main-20261105T000000Z.json").write_text('{"bytes": 1, "sha256": "x"}')
    folder.remove_unfinished()
    assert folder.delete_expired([KeepRule(60, "all")], START + DAY) == ours[1::-1]
    left = {*FOREIGN, ours[2].name, changed.name}
    left |= {path.with_suffix(".json").name for path in (ours[2], changed)}
    assert {path.name for path in tmp_path.iterdir()} == left
    latest = folder.find_latest()
    assert latest is not None
    assert latest.path == ours[2]


def test_backup_that_does_not_fit_is_refused_before_the_copy(tmp_path: Path) -> None:
    folder = BackupFolder(tmp_path, "main")
    folder.check_space(1)
    with pytest.raises(errors.Unavailable) as caught:
        folder.check_space(1 << 60)
    assert "keep in [backup]" in (caught.value.hint or "")
