"""Backups, restores and checks of the bytes of files, in a folder."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from agentctl.records.times import HOUR, now
from agentctl.store.blobs import build_key
from agentctl.store.sqlite import backup_bytes
from agentctl.store.sqlite.backup_bytes import FOLDER
from tests.cli.conftest import Agentctl
from tests.cli.local_project import in_database, write_config
from tests.kit.conditions import wait_for
from tests.kit.process import base_environment


@pytest.fixture
def config(tmp_path: Path, agentctl: Agentctl) -> Path:
    path = write_config(tmp_path)
    assert agentctl("db", "migrate", "--config", str(path)).code == 0
    return path


def add_files(config: Path, numbers: range) -> set[str]:
    """Store files of one user; return the keys of their bytes."""
    keys = set()
    rows = []
    for number in numbers:
        data = f"file {number} ".encode() * 1_000
        digest = hashlib.sha256(data).hexdigest()
        key = build_key("ann", digest)
        path = config.parent / "files" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        keys.add(key)
        rows.append(
            f"('f{number}', 'ann', NULL, NULL, 'n.txt', 'text/plain', {len(data)}, '{digest}',"
            f" '{key}', 'upload', 1, {now()})"
        )
    in_database(config, f"INSERT INTO files VALUES {', '.join(rows)}")
    return keys


def list_keys(folder: Path) -> set[str]:
    return {
        f"{path.parent.name}/{path.name}"
        for path in folder.glob("*/*")
        if not path.relative_to(folder).parts[0].startswith(".")
    }


def list_whole(folder: Path) -> set[str]:
    """Return the keys without the copies that a kill has cut off."""
    return {key for key in list_keys(folder) if "/." not in key}


@pytest.fixture
def backups(tmp_path: Path) -> Path:
    """An empty folder for backups, in which `FOLDER` gets the bytes of files."""
    folder = tmp_path / "b"
    folder.mkdir()
    return folder


def test_backup_adds_new_bytes_and_restore_puts_back_exactly_those(
    agentctl: Agentctl, config: Path, tmp_path: Path, backups: Path
) -> None:
    local = ("--config", str(config))
    store = tmp_path / "files"
    copies = backups / FOLDER

    first = add_files(config, range(5))
    made = agentctl("db", "backup", str(backups / "1.db"), "-o", "json", *local)
    assert made.code == 0, made.stderr
    assert "the bytes of 5 files are in backup-files next to" in made.stderr
    facts = json.loads(made.stdout)
    assert (facts["files"], facts["files_missing"]) == (5, 0)
    assert list_keys(copies) == first

    times = {key: (copies / key).stat().st_ctime_ns for key in first}
    second = add_files(config, range(5, 8))
    assert agentctl("db", "backup", str(backups / "2.db"), *local).code == 0
    assert list_keys(copies) == first | second
    assert {key: (copies / key).stat().st_ctime_ns for key in first} == times

    lost = store.rename(tmp_path / "lost")
    restored = agentctl("db", "restore", str(backups / "1.db"), "--replace", *local)
    assert restored.code == 0, restored.stderr
    assert list_keys(store) == first
    for key in first:
        assert (store / key).read_bytes() == (lost / key).read_bytes()
        # A link to the copy would let a change of one change the other.
        assert not (store / key).samefile(copies / key)
    assert agentctl("doctor", "--db", "--deep", *local).code == 0


def test_restore_and_backup_count_the_files_whose_bytes_are_missing(
    agentctl: Agentctl, config: Path, tmp_path: Path, backups: Path
) -> None:
    local = ("--config", str(config))
    store = tmp_path / "files"
    keys = add_files(config, range(5))
    assert agentctl("db", "backup", str(backups / "1.db"), *local).code == 0

    damaged, absent, *_ = sorted(keys)
    copy = backups / FOLDER / damaged
    size = copy.stat().st_size
    copy.unlink()
    copy.write_bytes(b"x" * size)
    (backups / FOLDER / absent).unlink()
    for key in (damaged, absent):
        (store / key).unlink()

    restored = agentctl("db", "restore", str(backups / "1.db"), "--replace", *local)
    assert restored.code == 1
    assert "bytes of 2 files are missing" in restored.stderr
    assert list_keys(store) == keys - {damaged, absent}

    lacking = agentctl("db", "backup", str(tmp_path / "3.db"), *local)
    assert (lacking.code, (tmp_path / "3.db").exists()) == (1, True)
    assert "bytes of 2 files are missing" in lacking.stderr


def add_unnamed_bytes(config: Path) -> str:
    """Store bytes that no file names; return the key of those that a check reports.

    It reports neither new bytes, whose file may be on its way, nor those that the next cleanup
    looks at.
    """
    store = config.parent / "files"
    new, old, noted = (build_key("bob", letter * 64) for letter in "abc")
    for key in (new, old, noted):
        (store / key).parent.mkdir(exist_ok=True)
        (store / key).write_bytes(b"x")
        if key != new:
            os.utime(store / key, ns=((now() - 3 * HOUR) * 1_000,) * 2)
    in_database(config, f"INSERT INTO blob_checks (blob) VALUES ('{noted}')")
    return old


def test_check_reports_missing_changed_and_unnamed_bytes(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    local = ("--config", str(config))
    store = tmp_path / "files"
    missing, short, changed, *_ = sorted(add_files(config, range(6)))
    assert agentctl("doctor", "--db", *local).code == 0

    (store / missing).unlink()
    (store / short).write_bytes(b"short")
    (store / changed).write_bytes(b"x" * (store / changed).stat().st_size)
    unnamed = add_unnamed_bytes(config)

    ended = agentctl("doctor", "--db", "-o", "json", *local)
    assert ended.code == 1
    wrong = [row["what"] for row in json.loads(ended.stdout) if row["verdict"] == "wrong"]
    assert {text.split(":")[0] for text in wrong} == {
        "files whose bytes are missing", "files whose bytes have another size",
        "bytes that no file names",
    }  # fmt: skip
    assert f"bytes that no file names: 1, for example {unnamed}" in wrong

    # Only a deep check reads the bytes.
    deep = agentctl("doctor", "--db", "--deep", "-o", "json", *local)
    assert "files whose bytes have another hash: 1" in deep.stdout

    rest = agentctl("doctor", "--db", "--cursor", f"main:files:{short}", "-o", "json", *local)
    assert "are missing" not in rest.stdout
    assert "bytes that no file names" in rest.stdout


def interrupt(words: tuple[str, ...], config: Path, reached: Path, entries: int) -> None:
    """Kill a command when a folder has some entries, or let it end."""
    command = [sys.executable, "-P", "-m", "agentctl", *words, "--config", str(config)]
    process = subprocess.Popen(
        command, env=base_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: process.poll() is not None or len(list_keys(reached)) >= entries)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_killed_backup_and_restore_are_done_by_the_next_ones(
    agentctl: Agentctl, config: Path, tmp_path: Path, backups: Path
) -> None:
    local = ("--config", str(config))
    store = tmp_path / "files"
    copies = backups / FOLDER
    keys = add_files(config, range(2_000))

    for turn, entries in enumerate((1, 300, 1_500)):
        backup = backups / f"{turn}.db"
        interrupt(("db", "backup", str(backup)), config, copies, entries)
        assert list_whole(copies) <= keys
        # A backup with a name has all of its bytes.
        if backup.exists():
            assert list_whole(copies) == keys
    whole = agentctl("db", "backup", str(backups / "whole.db"), *local)
    assert whole.code == 0, whole.stderr
    assert list_whole(copies) == keys

    store.rename(tmp_path / "lost")
    restore = ("db", "restore", str(backups / "whole.db"), "--replace")
    for entries in (1, 200, 800):
        interrupt(restore, config, store, entries)
        read = agentctl("sessions", "list", *local)
        assert read.code == 0, read.stderr
    assert agentctl(*restore, *local).code == 0
    assert list_whole(store) == keys
    assert agentctl("doctor", "--db", "--deep", *local).code == 0


def test_backup_removes_the_bytes_that_no_backup_names(
    agentctl: Agentctl, config: Path, backups: Path
) -> None:
    def back_up(name: str) -> dict[str, object]:
        made = agentctl("db", "backup", str(backups / name), "-o", "json", "--config", str(config))
        assert made.code == 0, made.stderr
        (backups / name).with_suffix(".json").write_text(made.stdout)
        facts: dict[str, object] = json.loads(made.stdout)
        return facts

    first = add_files(config, range(3))
    back_up("main-1.db")
    in_database(config, "DELETE FROM files WHERE file_id <> 'f0'")
    second = add_files(config, range(3, 5)) | {build_key("ann", hash_of(0))}
    made = back_up("main-2.db")
    assert (made["files"], made["files_missing"]) == (3, 0)
    assert list_keys(backups / FOLDER) == first | second

    # A file that is not a database may be a backup that was compressed.
    compressed = backups / "main-1.db.gz"
    compressed.write_bytes(gzip.compress((backups / "main-1.db").read_bytes()))
    (backups / "main-1.db").unlink()
    back_up("main-3.db")
    assert list_keys(backups / FOLDER) == first | second

    compressed.unlink()
    back_up("main-4.db")
    assert list_keys(backups / FOLDER) == second


def hash_of(number: int) -> str:
    return hashlib.sha256(f"file {number} ".encode() * 1_000).hexdigest()


def test_each_folder_with_new_bytes_is_on_the_disk(
    agentctl: Agentctl, config: Path, tmp_path: Path, backups: Path
) -> None:
    local = ("--config", str(config))
    copies = backups / FOLDER
    first, last = sorted(add_files(config, range(2)))
    assert agentctl("db", "backup", str(backups / "1.db"), *local).code == 0
    # The bytes after the new ones are there already.
    (copies / first).unlink()

    flushed: list[Path] = []
    with patch.object(backup_bytes, "flush", flushed.append):
        assert agentctl("db", "backup", str(backups / "2.db"), *local).code == 0

    assert (copies / first).read_bytes() == (tmp_path / "files" / first).read_bytes()
    assert (copies / last).exists()
    assert flushed == [(copies / first).parent]
