"""A server that makes backups, and is killed."""

from __future__ import annotations

import fcntl
import os
import random
import re
import threading
import time
from pathlib import Path

import httpx2

from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import audit
from tests.commands import run_command
from tests.conditions import PATIENCE, wait_for
from tests.process import base_environment, serve_config
from tests.runs.components import LONG
from tests.service.test_backups import build_entry

KILLS = 100 if LONG else 1

CONFIG = """
[authorization]
enabled = false

[metrics]
listen = "127.0.0.1:0"

[backup]
every = "1h"
folder = "backups"

[[databases]]
id = "main"
url = "sqlite:///main.db"
"""


def test_killed_server_leaves_no_half_backup(tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    folder = tmp_path / "backups"
    config.write_text(CONFIG)
    database = open_sqlite("main", tmp_path / "main.db", create=True)
    for number in range(40):
        database.write_blocking(audit.append_entry(build_entry("x" * 1_000_000 + str(number))))
    database.close_blocking()

    def agentctl(*words: str) -> tuple[int, str]:
        line = (*words, "--config", str(config))
        ended = run_command(*line, environment=base_environment(), folder=tmp_path)
        return ended.code, ended.stdout + ended.stderr

    for _ in range(KILLS):
        for file in folder.glob("main-*"):
            file.unlink()  # so that a backup is due
        with serve_config(config) as server:
            # A busy machine may see the backup only when it is complete.
            wait_for(lambda: list(folder.glob("main-*")), problem="no backup begins")
            time.sleep(random.uniform(0, 0.8) if LONG else 0)
            server.process.kill()
            server.process.wait()
        # The process that copies ends with its server; a later kill leaves a copy without a name.
        unfinished = "*.part*" if LONG else "*.new*"
        wait_for(
            lambda pattern=unfinished: not list(folder.glob(pattern)), problem="the half copy stays"
        )
        code, listed = agentctl("db", "backups", "--check")
        assert (code, "unverified" in listed) == (0, False), listed
        finished = len(list(folder.glob("*.db")))
        assert agentctl("db", "restore", "--latest", "--replace")[0] == (0 if finished else 5)
    for file in folder.glob("main-*"):
        file.unlink()
    half = folder / "main-20261101T000000Z.db.new.part"
    half.touch()  # as after a failure of the machine
    with serve_config(config) as server:
        wait_for(lambda: list(folder.glob("*.db")), problem=lambda: server.log_text)
        assert not half.exists()
        (address,) = re.findall(r"metrics: (\S+)", server.log_text)
        family = 'agentctl_backup_age_seconds{database="main",worker="0"} '
        wait_for(lambda: family in httpx2.get(address).text, problem="no metric")
        assert 'agentctl_backup_failures_total{database="main",worker="0"} 0.0' in (
            httpx2.get(address).text
        )
        assert httpx2.get(f"{server.url}/ready").status_code == 200
        (backup,) = folder.glob("*.db")
        code, listed = agentctl("db", "backups", "--check")
        assert (code, f"{backup}\tmain\tverified" in listed) == (0, True), listed
        code, refused = agentctl("db", "restore", "--latest", "--replace")
        assert (code, "a process works with the database" in refused) == (6, True)
        server.process.kill()
        server.process.wait()
    code, restored = agentctl("db", "restore", "--latest", "--replace")
    assert (code, f"restored main from {backup}" in restored) == (0, True), restored
    content = bytearray(backup.read_bytes())
    content[-100_000:] = bytes(100_000)
    backup.write_bytes(content)
    code, listed = agentctl("db", "backups", "--check")
    assert (code, "1 of 1 backups are damaged" in listed) == (1, True), listed
    code, refused = agentctl("db", "restore", "--latest", "--replace")
    assert code == 7, refused


def test_folder_that_hangs_does_not_keep_the_server(tmp_path: Path) -> None:
    config = tmp_path / "agentctl.toml"
    folder = tmp_path / "backups"
    config.write_text(CONFIG)
    open_sqlite("main", tmp_path / "main.db", create=True).close_blocking()
    folder.mkdir(0o700)
    (folder / "main-20260101T000000Z.db").touch()
    facts = folder / "main-20260101T000000Z.json"
    os.mkfifo(facts)
    # The start of the server reads it; the job does not get an answer.
    answering = threading.Thread(target=facts.write_text, args=("{}",), daemon=True)
    answering.start()

    def is_looking() -> bool:
        with (folder / "main.lock").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with serve_config(config) as server:
        answering.join()
        wait_for((folder / "main.lock").exists)
        wait_for(is_looking)
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
