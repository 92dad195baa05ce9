"""Backups, restores and checks of the bytes of files, in a bucket of S3."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store

from agentctl.config.files import Files
from agentctl.records.times import HOUR, now
from agentctl.store.blobs import build_key, open_blob_store
from agentctl.store.sqlite.backup_bytes import FOLDER
from tests.cli.conftest import Agentctl, Result
from tests.cli.local_project import write_config
from tests.cli.test_file_backups import add_files
from tests.kit.buckets import KEYS, build_files_table, serve_bucket
from tests.kit.ports import find_free_port
from tests.kit.process import base_environment
from tests.store.old_databases import old_file

AT_ONCE = (
    "from agentctl.admin import file_checks; file_checks.UNNAMED_AGE = 0;"
    "from agentctl.cli.app import main; raise SystemExit(main())"
)
"""The command with a check that reports bytes without a file from their first moment."""


class Bucket:
    """A project whose files are in a bucket."""

    def __init__(self, folder: Path, endpoint: str, agentctl: Agentctl) -> None:
        self.config = write_config(folder)
        self._endpoint = endpoint
        self._agentctl = agentctl
        self.configure(endpoint)

    def configure(self, endpoint: str, bucket: str = "files") -> None:
        table = build_files_table(endpoint, self.config.parent.name, bucket)
        write_config(self.config.parent)
        self.config.write_text(self.config.read_text() + table)

    def run(self, *words: str) -> Result:
        return self._agentctl(*words, "--config", str(self.config), env=KEYS)

    def put(self, key: str, content: bytes) -> None:
        store = S3Store(
            "files",
            prefix=self.config.parent.name,
            endpoint=self._endpoint,
            region="eu-central-1",
            client_options={"allow_http": True},
        )
        obstore.put(store, key, content)

    def remove(self, key: str) -> None:
        folder = self.config.parent
        settings = Files("s3", folder, "files", folder.name, self._endpoint, "eu-central-1")
        assert asyncio.run(open_blob_store(settings).remove(key, now() + HOUR))

    def add_files(self, count: int) -> list[str]:
        """Store files; return the keys of their bytes in order."""
        keys = sorted(add_files(self.config, range(count)))
        folder = self.config.parent / "files"
        for key in keys:
            self.put(key, (folder / key).read_bytes())
        shutil.rmtree(folder)
        return keys

    def list_faults(self, *words: str) -> list[str]:
        ended = self.run("doctor", "--db", "-o", "json", *words)
        return [each["what"] for each in json.loads(ended.stdout) if each["verdict"] == "wrong"]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serve_bucket() as url:
        yield url


@pytest.fixture
def bucket(
    tmp_path: Path, endpoint: str, agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> Bucket:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    return Bucket(tmp_path, endpoint, agentctl)


def test_check_finds_missing_changed_and_unnamed_bytes(bucket: Bucket) -> None:
    assert bucket.run("db", "migrate").code == 0
    missing, short, changed, *_ = bucket.add_files(5)
    assert bucket.list_faults("--deep") == []
    bucket.remove(missing)
    bucket.put(short, b"short")
    bucket.put(changed, b"x" * 7_000)
    unnamed = build_key("bob", "a" * 64)
    bucket.put(unnamed, b"x")

    found = bucket.list_faults()
    assert [text.split(",")[0] for text in sorted(found)] == [
        "files whose bytes are missing: 1", "files whose bytes have another size: 1",
    ]  # fmt: skip
    deep = bucket.list_faults("--deep")
    assert any(text.startswith("files whose bytes have another hash: 1") for text in deep)

    command = [sys.executable, "-P", "-c", AT_ONCE, "doctor", "--db", "-o", "json"]
    ended = subprocess.run(
        [*command, "--config", str(bucket.config)],
        env=base_environment() | KEYS,
        capture_output=True,
        text=True,
        check=False,
    )
    texts = [each["what"] for each in json.loads(ended.stdout)]
    assert f"bytes that no file names: 1, for example {unnamed}" in texts, ended.stderr


def test_backup_and_restore_look_for_the_bytes(bucket: Bucket, tmp_path: Path) -> None:
    assert bucket.run("db", "migrate").code == 0
    keys = bucket.add_files(5)
    file = tmp_path / "b" / "1.db"
    file.parent.mkdir()
    made = bucket.run("db", "backup", str(file), "-o", "json")
    assert made.code == 0, made.stderr
    facts = json.loads(made.stdout)
    assert (facts["files"], facts["files_missing"]) == (5, 0)
    assert not (file.parent / FOLDER).exists()
    restored = bucket.run("db", "restore", str(file), "--replace", "-o", "json")
    assert (restored.code, json.loads(restored.stdout)["files"]) == (0, 5), restored.stderr

    bucket.remove(keys[0])
    bucket.put(keys[1], b"short")
    for words in (("backup", str(tmp_path / "2.db")), ("restore", str(file), "--replace")):
        lacking = bucket.run("db", *words)
        assert (lacking.code, "bytes of 2 files are missing" in lacking.stderr) == (1, True)
    assert (tmp_path / "2.db").exists()
    assert not (tmp_path / "files").exists()


def test_store_that_does_not_work_is_an_error(
    bucket: Bucket, endpoint: str, tmp_path: Path
) -> None:
    assert bucket.run("db", "migrate").code == 0
    bucket.add_files(1)
    file = tmp_path / "1.db"
    assert bucket.run("db", "backup", str(file)).code == 0
    before = (tmp_path / "agentctl.db").stat().st_ino
    bucket.configure(endpoint, bucket="absent")
    absent = "the store of files does not work: there is no bucket absent"
    for code, *words in (
        (1, "doctor", "--db"),
        (1, "doctor"),
        (7, "db", "backup", f"{tmp_path}/absent.db"),
    ):
        failed = bucket.run(*words)
        told = " ".join((failed.stdout + failed.stderr).lower().split())
        assert failed.code == code, told
        assert absent in told.replace(" cause:", ":"), told
        assert "missing" not in told, told
        assert "check bucket, endpoint and region in [files]" in told, told
    bucket.configure(f"http://127.0.0.1:{find_free_port()}")
    for code, *words in (
        (1, "check"),
        (7, "backup", str(tmp_path / "2.db")),
        (7, "restore", str(file), "--replace"),
    ):
        failed = bucket.run("db", *words)
        assert failed.code == code
        assert "the store of files does not work" in (failed.stdout + failed.stderr).lower()
    assert (tmp_path / "agentctl.db").stat().st_ino == before


def test_database_of_an_old_schema_is_backed_up(bucket: Bucket, tmp_path: Path) -> None:
    old_file(tmp_path / "agentctl.db")
    made = bucket.run("db", "backup", str(tmp_path / "1.db"))
    assert made.code == 0, made.stderr
