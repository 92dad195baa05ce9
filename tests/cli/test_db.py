"""`agentctl db`: status, migrations, checks and backups."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from agentctl.store.schema import SCHEMA_VERSION, TEXT_ROWS_SINCE, load_migrations
from agentctl.store.sqlite.backup import hash_rows
from tests.cli.conftest import Agentctl
from tests.kit.deployment import Deployment
from tests.kit.tables import every_row
from tests.kit.threaded_server import serve_in_thread
from tests.store.old_databases import old_file

pytestmark = pytest.mark.usefixtures("without_copies")

NAMES = [migration.name for migration in load_migrations("sqlite")]

CONFIG = """
[authorization]
enabled = false

[[databases]]
id = "main"
url = "sqlite:///agentctl.db"

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[models]]
id = "slow"
provider = "demo"
model = "slow"

[[agents]]
id = "echo"
model = "echo"

[[agents]]
id = "slow"
model = "slow"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "agentctl.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def file(config: Path) -> Path:
    return config.with_name("agentctl.db")


def change(file: Path, sql: str) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(sql)


def test_migrate_creates_a_missing_database(agentctl: Agentctl, config: Path, file: Path) -> None:
    where = ("--config", str(config))
    ended = agentctl("db", "status", "-o", "json", *where)
    (record,) = json.loads(ended.stdout)
    assert (ended.code, record["state"], record["pending"]) == (7, "missing", NAMES)
    assert ended.stderr.endswith(f"hint: agentctl db migrate --config {config}\n")
    ended = agentctl("db", "migrate", "--dry-run", "-o", "name", *where)
    assert (ended.code, ended.lines) == (0, NAMES)
    assert "nothing was changed" in ended.stderr
    assert not file.exists()
    ended = agentctl("db", "migrate", "-o", "json", *where)
    assert [each["outcome"] for each in json.loads(ended.stdout)] == ["applied"] * len(NAMES)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    ended = agentctl("db", "migrate", *where)
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert f"up to date, schema version {SCHEMA_VERSION}" in ended.stderr


def test_an_old_schema_is_rejected_with_the_command_to_migrate(
    agentctl: Agentctl, config: Path, file: Path
) -> None:
    old_file(file)
    before = file.read_bytes()
    where = ("--config", str(config))
    told = (
        "error: the database schema is older than this agentctl\n"
        f"  cause: {file} has schema 1; this agentctl needs {SCHEMA_VERSION}\n\n"
        f"hint: agentctl db migrate --config {config}\n"
    )
    for command in (["sessions", "list"], ["runs", "list"], ["db", "status"]):
        ended = agentctl(*command, *where)
        assert (ended.code, ended.stderr) == (1, told)
    served = agentctl("serve", "--port", "0", *where)
    assert (served.code, served.stderr.endswith(told)) == (1, True)
    plain = agentctl("sessions", "list", env={"AGENTCTL_CONFIG": str(config)})
    assert plain.stderr.endswith("\nhint: agentctl db migrate\n")
    dry = agentctl("db", "migrate", "--dry-run", "-o", "json", *where)
    (pending, *_) = json.loads(dry.stdout)
    assert (pending["migration"], pending["outcome"]) == (NAMES[1], "pending")
    assert "CREATE INDEX idempotency_created ON idempotency" in pending["statements"]
    assert file.read_bytes() == before
    ended = agentctl("db", "migrate", *where)
    assert (ended.code, ended.stderr) == (
        0,
        f"main ({file}) was migrated, {len(NAMES) - 1} migrations from schema version 1\n",
    )
    assert agentctl("sessions", "list", "-o", "name", *where).lines == ["s1"]
    (record,) = json.loads(agentctl("db", "status", "-o", "json", *where).stdout)
    assert (record["state"], record["sessions"], record["runs"]) == ("ok", 1, 1)
    assert record["pending"] == []


def test_a_schema_of_a_development_version_is_refused(
    agentctl: Agentctl, config: Path, file: Path
) -> None:
    old_file(file)
    where = ("--config", str(config))
    change(file, load_migrations("sqlite")[14].text)
    for number in (16, 27):
        change(file, f"INSERT INTO schema_version VALUES ({number}, 0, 15)")
        for words in ("db migrate", "db status", "sessions list", "doctor --db"):
            before = file.read_bytes()
            ended = agentctl(*words.split(), *where)
            text = f"{ended.stdout}{ended.stderr}"
            assert (ended.code, file.read_bytes() == before) == (1, True), words
            assert "database schema is one of a development version" in text
            assert "restore a backup of version 0.2 or earlier" in text


def test_the_operator_ends_an_upgrade(agentctl: Agentctl, config: Path, file: Path) -> None:
    old_file(file)
    where = ("--config", str(config))

    def read_compatible_from() -> int:
        (record,) = json.loads(agentctl("db", "status", "-o", "json", *where).stdout)
        return int(record["compatible_from"])

    def finds_old_form() -> bool:
        return "its upgrade is not finished" in agentctl("doctor", "-o", "json", *where).stdout

    assert agentctl("db", "migrate", *where).code == 0
    assert (read_compatible_from(), finds_old_form()) == (15, True)
    change(file, "INSERT INTO workers VALUES ('old', 'far', 'boot/1', 17, 1, 1, 1, NULL, NULL, 0)")
    refused = agentctl("db", "migrate", "--finish", *where)
    assert (refused.code, read_compatible_from()) == (6, 15)
    assert "an earlier version work with the database\n  cause: pid 17 on far\n" in refused.stderr
    change(file, f"UPDATE workers SET schema_version = {SCHEMA_VERSION}")
    assert agentctl("db", "migrate", "--finish", "--dry-run", *where).code == 0
    assert read_compatible_from() == 15
    ended = agentctl("db", "migrate", "--finish", *where)
    assert (ended.code, ended.stderr.splitlines()[1]) == (
        0, f"main now works with versions from schema {TEXT_ROWS_SINCE} on only"
    )  # fmt: skip
    assert (read_compatible_from(), finds_old_form()) == (TEXT_ROWS_SINCE, False)


def test_a_newer_schema_is_rejected(agentctl: Agentctl, config: Path, file: Path) -> None:
    where = ("--config", str(config))
    assert agentctl("db", "migrate", *where).code == 0
    change(file, "INSERT INTO schema_version VALUES (99, 0, 99)")
    for command in (["db", "status"], ["db", "migrate"], ["sessions", "list"]):
        ended = agentctl(*command, *where)
        assert ended.code == 1
        needed = f"{file} has schema 99, for agentctl with schema 99 or later"
        assert f"{needed}; this agentctl has {SCHEMA_VERSION}" in ended.stderr
        assert "the way back to this version is a backup" in ended.stderr


def test_a_newer_compatible_schema_is_used_and_not_changed(
    agentctl: Agentctl, config: Path, file: Path
) -> None:
    where = ("--config", str(config))
    assert agentctl("db", "migrate", *where).code == 0
    change(
        file,
        "ALTER TABLE runs ADD COLUMN added TEXT; CREATE TABLE added (id TEXT);"
        f"INSERT INTO schema_version VALUES (99, 0, {SCHEMA_VERSION})",
    )
    before = hashlib.sha256(file.read_bytes()).digest()
    what = f"schema 99 is newer than this agentctl ({SCHEMA_VERSION}) and compatible with versions"
    ended = agentctl("db", "migrate", *where)
    assert (ended.code, len(ended.lines)) == (0, 1)
    assert ended.stderr == (
        f"main ({file}) was not changed: {what} from schema {SCHEMA_VERSION} on\n"
    )
    (record,) = json.loads(agentctl("db", "status", "-o", "json", *where).stdout)
    assert (record["state"], record["problem"], record["pending"]) == ("ahead", None, [])
    assert (record["schema"], record["newest"]) == (99, SCHEMA_VERSION)
    assert record["compatible_from"] == SCHEMA_VERSION
    assert agentctl("sessions", "list", *where).code == 0
    assert hashlib.sha256(file.read_bytes()).digest() == before
    checked = agentctl("doctor", "--db", "-o", "json", *where)
    verdicts = {each["verdict"] for each in json.loads(checked.stdout)}
    assert (checked.code, verdicts) == (0, {"ok", "note"})
    assert what in checked.stdout
    ran = agentctl("runs", "start", "--agent", "echo", "--message", "hi", *where)
    assert (ran.code, what in ran.stderr) == (0, False)
    assert agentctl("doctor", "--db", *where).code == 0


Damage = Callable[[Path], None]


def zeroed_page(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[2 * 4096 : 3 * 4096] = bytes(4096)
    file.write_bytes(content)


DAMAGES = {
    "a page": (zeroed_page, "is damaged", "restore the database"),
    "an index": ("DROP INDEX runs_parent", "index runs_parent is missing", "restore"),
    "a count": ("UPDATE sessions SET run_count = 2", "run_count differs", "by hand"),
    "a size": ("UPDATE sessions SET history_bytes = 9", "history_bytes differs", "by hand"),
    "a state": ("UPDATE sessions SET last_status = 'ERROR'", "last_status differs", "by hand"),
    "an end": ("UPDATE runs SET finished_at = NULL", "ended runs without an end", "by hand"),
    "a session": ("DELETE FROM sessions", "runs: 1 reference to missing rows", "by hand"),
    "a status": ("UPDATE runs SET status = 'DONE'", "unknown status", "by hand"),
    "a trigger": (
        "CREATE TRIGGER mine AFTER INSERT ON runs BEGIN DELETE FROM audit_log; END",
        "trigger mine is not part of the schema",
        "restore",
    ),
    "a view": ("CREATE VIEW mine AS SELECT 1", "view mine is not part of the schema", "restore"),
}

UNSAFE = {
    **{name: damage for name, (damage, *_) in DAMAGES.items()},
    "a view as table": "DROP TABLE memories; CREATE VIEW memories AS SELECT 1",
    "a view without an end": "DROP TABLE memories; CREATE VIEW memories AS"
    " WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT 1 FROM n) SELECT n FROM n",
}


@pytest.fixture
def sound(agentctl: Agentctl, config: Path, file: Path) -> bytes:
    """The content of a database in which a check finds nothing."""
    where = ("--config", str(config))
    old_file(file)
    agentctl("db", "migrate", *where)
    checked = agentctl("doctor", "--db", "-o", "json", *where)
    verdicts = {each["verdict"] for each in json.loads(checked.stdout)}
    assert (checked.code, verdicts) == (0, {"ok"})
    return file.read_bytes()


@every_row("damage, told, remedy", DAMAGES.values())
def test_check_reports_damage_and_changes_nothing(
    agentctl: Agentctl,
    config: Path,
    file: Path,
    sound: bytes,
    damage: str | Damage,
    told: str,
    remedy: str,
) -> None:
    file.write_bytes(sound)
    if callable(damage):
        damage(file)
    else:
        change(file, damage)
    before = file.read_bytes()
    ended = agentctl("doctor", "--db", "-o", "json", "--config", str(config))
    assert ended.code == 1
    wrong = [each for each in json.loads(ended.stdout) if each["verdict"] == "wrong"]
    assert any(told in each["what"] and remedy in each["remedy"] for each in wrong), wrong
    assert file.read_bytes() == before


def test_backup_names_the_databases_that_it_lacks(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    config.write_text(f'{CONFIG}\n[[databases]]\nid = "second"\nurl = "sqlite:///second.db"\n')
    where = ("--config", str(config))
    assert agentctl("db", "migrate", *where).code == 0
    made = agentctl("db", "backup", str(tmp_path / "first"), *where)
    assert (made.code, "back up the rest with --db: second" in made.stderr) == (0, True)
    made = agentctl("db", "backup", str(tmp_path / "second"), "--db", "second", *where)
    assert (made.code, "the rest" in made.stderr) == (0, False)


def test_a_backup_is_a_new_complete_private_file(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    where = ("--config", str(config))
    copy = tmp_path / "copy.db"
    ended = agentctl("db", "backup", str(copy), *where)
    assert (ended.code, list(tmp_path.glob("*.db*"))) == (7, [])
    old_file(file)
    ended = agentctl("db", "backup", str(copy), "-o", "json", *where)
    made = json.loads(ended.stdout)
    assert (made["schema"], made["sessions"], made["runs"]) == (1, 1, 1)
    assert made["bytes"] == copy.stat().st_size
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    connection = apsw.Connection(str(copy), flags=apsw.SQLITE_OPEN_READONLY)
    tables, digest = hash_rows(connection, lambda _: None)
    connection.close()
    assert (sum(tables.values()), digest) == (made["rows"], made["sha256"])
    before = copy.read_bytes()
    ended = agentctl("db", "backup", str(copy), *where)
    assert (ended.code, copy.read_bytes()) == (6, before)
    assert "never overwrites" in ended.stderr
    ended = agentctl("db", "backup", str(tmp_path / "absent" / "copy.db"), *where)
    assert ended.code == 7
    assert not list(tmp_path.glob("*.part*"))


def test_a_restored_backup_goes_on_with_nothing(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    config.write_text(CONFIG + 'on_busy = "enqueue"\n')
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    assert agentctl("db", "migrate", *where).code == 0
    with serve_in_thread(Deployment(tmp_path)) as server:
        url = ("--url", server.url, "--session", "busy", "-o", "json")
        start = ("runs", "start", "--agent", "slow", "-m", "x", "--background")
        run_id, queued = (json.loads(agentctl(*start, *url).stdout)["run_id"] for _ in range(2))
        made = json.loads(agentctl("db", "backup", str(backup), *where, "-o", "json").stdout)
        later = ("runs", "start", "--agent", "echo", "-m", "later", "--session", "later")
        assert agentctl(*later, *where).code == 0
        refused = agentctl("db", "restore", str(backup), "--replace", *where)
        assert (refused.code, "a process works with the database" in refused.stderr) == (6, True)
        assert agentctl("runs", "cancel", "--all", "--yes", *where).code == 0
    refused = agentctl("db", "restore", str(backup), *where)
    assert (refused.code, "--replace" in refused.stderr) == (6, True)
    wrong = agentctl("db", "restore", str(backup), "--replace", "--sha256", "0", *where)
    assert (wrong.code, "not the expected one" in wrong.stderr) == (7, True)
    assert agentctl("sessions", "get", "later", *where).code == 0
    known = ("--sha256", made["sha256"])
    ended = agentctl("db", "restore", str(backup), "--replace", *known, *where, "-o", "json")
    assert ended.code == 0, ended.stderr
    restored = json.loads(ended.stdout)
    assert (restored["rows"], restored["sha256"]) == (made["rows"], made["sha256"])
    assert restored["ended_runs"] == 2
    assert agentctl("doctor", "--db", *where).code == 0
    for one in (run_id, queued):
        run = json.loads(agentctl("runs", "get", one, "-o", "json", *where).stdout)
        assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
    assert agentctl("sessions", "get", "later", *where).code == 5
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    config.write_text(config.read_text().replace("agentctl.db", Path(restored["moved_to"]).name))
    assert agentctl("sessions", "get", "later", *where).code == 0
    assert not list(tmp_path.rglob("*.restoring*"))


def test_restore_keeps_calls_of_ended_runs_as_they_were(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text('def refund() -> str:\n    """Pay back."""\n    return ""\n')
    config.write_text(
        CONFIG
        + '[[models]]\nid = "tool"\nprovider = "demo"\nmodel = "tool"\n'
        + '[[agents]]\nid = "clerk"\nmodel = "tool"\ntools = ["shop:refund"]\n'
        + 'approve = { refund = "user" }\n'
    )
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    assert agentctl("db", "migrate", *where).code == 0
    for session in ("ended", "waits"):
        start = ("runs", "start", "--agent", "clerk", "-m", "refund", "--session", session)
        assert agentctl(*start, *where).code == 9
        [approval] = agentctl("approvals", "list", "--session", session, "-o", "name", *where).lines
        assert agentctl("approvals", "approve", approval, "--yes", *where).code == 0
    [run] = agentctl("runs", "list", "--session", "ended", "-o", "name", *where).lines
    assert agentctl("runs", "cancel", run, *where).code == 0
    assert agentctl("db", "backup", str(backup), *where).code == 0
    ended = agentctl("db", "restore", str(backup), "--replace", *where, "-o", "json")
    assert ended.code == 0, ended.stderr
    restored = json.loads(ended.stdout)
    assert (restored["ended_runs"], restored["unknown_calls"]) == (1, 1)
    unknown = ("approvals", "list", "--execution", "unknown", "-o", "tsv")
    listed = agentctl(*unknown, "--fields", "session_id", *where)
    assert listed.lines == ["session_id", "waits"]
    lost = agentctl("runs", "list", "--session", "waits", "-o", "tsv", "--fields", "error", *where)
    assert "WORKER_LOST" in lost.stdout


def test_a_damaged_backup_changes_nothing(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    old_file(file)
    assert agentctl("db", "backup", str(backup), *where).code == 0
    before = file.read_bytes()
    foreign = tmp_path / "foreign.db"
    with contextlib.closing(apsw.Connection(str(foreign))) as store:
        store.execute("CREATE TABLE notes (text)")
    parts = (backup.read_bytes()[:5_000], foreign.read_bytes(), b"not a database" * 100, b"")
    for damaged in parts:
        backup.write_bytes(damaged)
        ended = agentctl("db", "restore", str(backup), "--replace", *where)
        assert (ended.code, ended.stdout, file.read_bytes()) == (7, "", before), ended.stderr
        assert f"  cause: {backup}; nothing was changed" in ended.stderr
        assert "hint: restore another one" in ended.stderr
    ended = agentctl("db", "restore", str(tmp_path / "none.db"), "--replace", *where)
    assert (ended.code, file.read_bytes()) == (7, before)
    assert not list(tmp_path.rglob("*.restoring*"))


@pytest.fixture
def sound_backup(agentctl: Agentctl, config: Path, file: Path, tmp_path: Path) -> bytes:
    """The content of a backup of the database, which can be restored."""
    where = ("--config", str(config))
    backup = tmp_path / "sound.db"
    old_file(file)
    agentctl("db", "migrate", *where)
    assert agentctl("db", "backup", str(backup), *where).code == 0
    return backup.read_bytes()


@every_row("damage", UNSAFE.values())
def test_restore_refuses_what_check_refuses(
    agentctl: Agentctl,
    config: Path,
    file: Path,
    tmp_path: Path,
    sound_backup: bytes,
    damage: str | Damage,
) -> None:
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    backup.write_bytes(sound_backup)
    if callable(damage):
        damage(backup)
    else:
        change(backup, damage)
    before = file.read_bytes()
    ended = agentctl("db", "restore", str(backup), "--replace", *where)
    assert (ended.code in (6, 7), ended.stdout, file.read_bytes()) == (True, "", before)
    assert "nothing was changed" in ended.stderr
    assert not list(tmp_path.rglob("*.restoring*"))


def test_restore_refuses_what_is_no_regular_file(
    agentctl: Agentctl, config: Path, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for source in (Path("/dev/zero"), pipe, tmp_path):
        ended = agentctl("db", "restore", str(source), "--config", str(config))
        assert ended.code in (6, 7), ended.stderr
        assert str(source) in ended.stderr
    assert not list(tmp_path.rglob("*.restoring*"))


def test_restore_replaces_what_a_killed_one_left(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    old_file(file)
    assert agentctl("db", "backup", str(backup), *where).code == 0
    left = file.with_name(f"{file.name}.restoring")
    left.write_bytes(backup.read_bytes() * 2)
    with left.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = agentctl("db", "restore", str(backup), "--replace", *where)
        assert (refused.code, "another restore works" in refused.stderr) == (6, True)
        assert left.exists()
    assert agentctl("db", "restore", str(backup), "--replace", *where).code == 0
    assert not left.exists()
    assert agentctl("doctor", "--db", *where).code == 0


def test_restore_reads_no_write_ahead_log(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    raw = tmp_path / "raw.db"
    log = file.with_name("agentctl.db-wal")
    assert agentctl("db", "migrate", *where).code == 0
    made = json.loads(agentctl("db", "backup", str(backup), *where, "-o", "json").stdout)
    with closing(sqlite3.connect(file)) as writer:
        writer.executescript("UPDATE removals SET sessions = sessions + 7")
        raw.write_bytes(file.read_bytes())
        raw.with_name("raw.db-wal").write_bytes(log.read_bytes())
        # As a restore leaves it that is killed while it migrates its copy.
        file.with_name("agentctl.db.restoring-wal").write_bytes(log.read_bytes())
    ended = agentctl("db", "restore", str(raw), "--replace", *where)
    assert (ended.code, "raw.db-wal has changes" in ended.stderr) == (6, True), ended.stderr
    ended = agentctl("db", "restore", str(backup), "--replace", "-o", "json", *where)
    assert ended.code == 0, ended.stderr
    assert json.loads(ended.stdout)["sha256"] == made["sha256"]


def test_an_old_backup_is_restored_and_migrated(
    agentctl: Agentctl, config: Path, file: Path, tmp_path: Path
) -> None:
    where = ("--config", str(config))
    backup = tmp_path / "b.db"
    old_file(file)
    assert agentctl("db", "backup", str(backup), *where).code == 0
    file.unlink()
    ended = agentctl("db", "restore", str(backup), *where)
    assert ended.code == 0, ended.stderr
    assert agentctl("doctor", "--db", *where).code == 0
    assert agentctl("sessions", "list", "-o", "name", *where).lines == ["s1"]


def test_commands_about_backups_refuse_what_they_cannot_do(
    agentctl: Agentctl, config: Path, file: Path
) -> None:
    where = ("--config", str(config))
    old_file(file)
    for words, code, told in (
        (("restore",), 2, "FILE"),
        (("settle", "--yes"), 2, "db settle is for PostgreSQL databases"),
    ):
        ended = agentctl("db", *words, *where)
        assert (ended.code, ended.stdout) == (code, ""), ended.stderr
        assert told in ended.stderr
    config.write_text(CONFIG.replace("sqlite:///agentctl.db", "postgresql://db/agents"))
    refused = agentctl("db", "settle", *where)
    assert (refused.code, "--yes" in refused.stderr) == (2, True)


def test_backup_of_postgresql_prints_the_pg_dump_command(agentctl: Agentctl, config: Path) -> None:
    url = "postgresql://ann@db.example/agents"
    text = CONFIG.replace(
        'url = "sqlite:///agentctl.db"', f'url = "{url}"\npassword_env = "PGP"\ntls = "require"'
    )
    config.write_text(text.replace("[[models]]", 'search_path = "ours"\n[[models]]', 1))
    ended = agentctl("db", "backup", "copy of it.dump", "--config", str(config))
    assert (ended.code, ended.stdout) == (
        0,
        "pg_dump --format=custom --no-owner '--file=copy of it.dump' --schema=ours"
        f" --dbname={url}\n",
    )
    assert "PGPASSWORD=$PGP" in ended.stderr
    assert "PGSSLMODE=require\n" in ended.stderr
    assert f"pg_restore --exit-on-error --single-transaction --no-owner --dbname={url}" in (
        ended.stderr
    )


@pytest.mark.parametrize("command", ["status", "migrate", "backup x.db"])
def test_commands_work_only_on_configured_databases(
    agentctl: Agentctl, config: Path, command: str
) -> None:
    words = ("db", *command.split(), "--config", str(config))
    ended = agentctl(*words, "--url", "http://127.0.0.1:9")
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: no such option: --url\n\nhint: this works only locally")
    ended = agentctl(*words, "--db", "other")
    assert (ended.code, ended.stdout) == (5, "")
    assert "hint: configured databases: main" in ended.stderr
