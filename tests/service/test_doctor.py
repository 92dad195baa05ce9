"""The checks of `agentctl doctor`, subject by subject."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from agentctl.admin.doctor import configuration, databases
from agentctl.admin.doctor.checks import DoctorStep, list_steps, run_step
from agentctl.admin.doctor.files import check_permissions, check_private, check_store
from agentctl.auth.keys import files, signing
from agentctl.auth.keys.rotation import open_rotation
from agentctl.auth.principal import local_principal
from agentctl.config.settings import (
    Agent,
    Authorization,
    Database,
    Metrics,
    Model,
    Server,
    Settings,
    Signing,
    Team,
)
from agentctl.errors import InvalidConfiguration
from agentctl.interface.requests.files import FileContent, FileUpload
from agentctl.records.hosts import is_loopback_host
from agentctl.records.system import Finding
from agentctl.records.times import now
from agentctl.service.service import Service
from agentctl.store.databases import open_database
from agentctl.store.sqlite import inspect
from agentctl.store.sqlite.inspect import detect_filesystem
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment

DAY = 86_400_000_000


def texts_of(findings: list[Finding], verdict: str) -> str:
    return "\n".join(
        f"{each.what} -> {each.remedy}" for each in findings if each.verdict == verdict
    )


@pytest.mark.parametrize(
    ("present", "verdict"), [(0, "wrong"), (1_800_000_000, "ok"), (4_200_000_000, "wrong")]
)
def test_implausible_clock_is_wrong(present: float, verdict: str) -> None:
    assert configuration.check_clock(present).verdict == verdict
    assert configuration.check_clock().verdict == "ok"


@pytest.mark.parametrize(
    ("host", "near"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True)]
    + [(host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "example.org", "")],
)
def test_loopback_hosts_are_recognized(host: str, near: bool) -> None:
    assert is_loopback_host(host) is near


MOUNTS = r"""22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:30 / /mnt rw shared:1 - nfs4 server:/x rw
24 23 8:2 / /mnt/local\040disk rw master:2 - xfs /dev/sdb rw
25 22 0:40 / /twice rw - tmpfs none rw
26 22 0:41 / /twice rw - 9p none rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/db", "ext4"),
        ("/mnt/db", "nfs4"),
        ("/mntx/db", "ext4"),
        ("/mnt/local disk/db", "xfs"),
        ("/twice/db", "9p"),
    ],
)
def test_filesystem_of_a_file_is_detected(tmp_path: Path, path: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert detect_filesystem(Path(path), table) == kind


def test_unknown_filesystem_is_none(tmp_path: Path) -> None:
    assert detect_filesystem(Path("/x"), tmp_path / "none") is None
    (tmp_path / "empty").write_text("")
    assert detect_filesystem(Path("/x"), tmp_path / "empty") is None


@pytest.mark.parametrize(
    ("file", "folder", "verdicts", "remedies"),
    [
        (0o644, 0o755, [], []),
        (0o646, 0o755, ["wrong"], ["chmod o-w "]),
        (0o664, 0o755, ["note"], ["chmod g-w "]),
        (0o644, 0o777, ["wrong"], ["chmod o-w "]),
        (0o644, 0o1777, [], []),
        (0o666, 0o777, ["wrong", "wrong"], ["chmod o-w ", "chmod o-w "]),
    ],
)
def test_files_that_others_may_write_are_reported(
    tmp_path: Path, file: int, folder: int, verdicts: list[str], remedies: list[str]
) -> None:
    place = tmp_path / "a folder"
    place.mkdir()
    path = place / "file"
    path.write_text("")
    path.chmod(file)
    place.chmod(folder)
    found = list(check_permissions("keys", path, "the file"))
    assert [each.verdict for each in found] == verdicts
    assert [str(each.remedy)[:10] for each in found] == remedies
    assert all("'" in str(each.remedy) for each in found), "a path with a space is quoted"
    assert list(check_permissions("keys", tmp_path / "none", "it")) == []


def test_secrets_that_others_may_read_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("")
    path.chmod(0o640)
    (finding,) = check_private("keys", path, "the secret in")
    assert finding.remedy == f"chmod 600 {path}"
    path.chmod(0o600)
    assert list(check_private("keys", path, "the secret in")) == []


def exposure_verdicts(
    host: str = "127.0.0.1", origins: tuple[str, ...] = (), **given: bool
) -> list[str]:
    settings = Settings(Server(host=host, cors_origins=origins), Authorization(**given))
    return [finding.verdict for finding in configuration.check_exposure(settings)]


def test_exposed_metrics_are_noted() -> None:
    for listen, verdicts in {
        "": ["ok"],
        "127.0.0.1:9464": ["ok"],
        "[::1]:9464": ["ok"],
        "0.0.0.0:9464": ["ok", "note"],
    }.items():
        settings = Settings(metrics=Metrics(listen=listen, allow_remote=True))
        found = configuration.check_exposure(settings)
        assert [finding.verdict for finding in found] == verdicts


def test_exposure_depends_on_host_and_authorization() -> None:
    assert exposure_verdicts() == ["ok"]
    assert exposure_verdicts(enabled=False) == ["note"]
    assert exposure_verdicts("0.0.0.0") == ["note"]
    assert exposure_verdicts("0.0.0.0", enabled=False) == ["wrong"]
    assert exposure_verdicts(origins=("https://a.example",)) == ["ok"]
    assert exposure_verdicts(origins=("*",)) == ["ok", "note"]
    assert exposure_verdicts(origins=("*",), enabled=False) == ["note", "wrong"]


STRICT = Authorization(require_exp=True, require_sub=True, verify_audience=True, issuer="us")


def check_weak_settings(foreign: bool = False, **given: object) -> list[Finding]:
    settings = Settings(authorization=replace(STRICT, **given))  # type: ignore[arg-type]
    return list(configuration.check_settings(settings, foreign=foreign))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"require_exp": False}, "require_exp = true"),
        ({"require_sub": False}, "require_sub = true"),
        ({"verify_audience": False}, "verify_audience = true"),
        ({"algorithm": "HS256"}, "agentctl keys generate --algorithm ES256"),
        ({"user_isolation": False}, "user_isolation = true"),
    ],
)
def test_weak_setting_is_a_note_with_a_remedy(given: dict[str, object], remedy: str) -> None:
    (finding,) = check_weak_settings(**given)
    assert finding.verdict == "note"
    assert str(finding.remedy).startswith(remedy)


def test_strong_settings_are_ok() -> None:
    assert [finding.verdict for finding in check_weak_settings()] == ["ok"]
    off = Settings(authorization=Authorization(enabled=False))
    assert [each.verdict for each in configuration.check_settings(off, foreign=False)] == ["ok"]
    detached = Settings(Server(on_disconnect="detach"), STRICT)
    (finding,) = configuration.check_settings(detached, foreign=False)
    assert str(finding.remedy).startswith('on_disconnect = "cancel"')


def test_accepting_all_tokens_of_a_provider_is_wrong() -> None:
    everything = check_weak_settings(foreign=True, verify_audience=False, issuer="")
    assert [finding.verdict for finding in everything] == ["wrong"]
    assert [each.verdict for each in check_weak_settings(foreign=True, verify_audience=False)] == [
        "note"
    ]
    assert [each.verdict for each in check_weak_settings(foreign=True, issuer="")] == ["ok"]


def create_signing_settings(
    folder: Path, *, entries: Callable[[dict[str, object]], list[object]]
) -> Settings:
    """Create a configuration with a JWKS built from the entry of its signing key."""
    private = signing.generate_key("ES256")
    files.write_private_key(folder / "signing.pem", private)
    (entry,) = signing.build_public_jwks(private, "ES256")["keys"]
    jwks = folder / "jwks.json"
    jwks.write_text(json.dumps({"keys": entries(entry)}))
    given = Authorization(algorithm="ES256", jwks_file=(jwks,))
    return Settings(authorization=given, signing=Signing(folder / "signing.pem"))


def foreign_key_entry() -> dict[str, object]:
    (entry,) = signing.build_public_jwks(signing.generate_key("ES256"), "ES256")["keys"]
    return dict(entry)


def test_valid_keys_are_ok(tmp_path: Path) -> None:
    settings = create_signing_settings(tmp_path, entries=lambda ours: [ours])
    findings = list(configuration.check_keys(settings))
    assert [finding.verdict for finding in findings] == ["ok", "ok"]
    assert "1 key verifies ES256 tokens" in findings[0].what
    assert not configuration.has_third_party_keys(settings)


def test_skipped_keys_are_named(tmp_path: Path) -> None:
    settings = create_signing_settings(
        tmp_path,
        entries=lambda ours: [
            ours,
            {**foreign_key_entry(), "kid": "e\x1b", "use": "enc"},
            {"kty": "odd"},
            foreign_key_entry(),
        ],
    )
    found = texts_of(list(configuration.check_keys(settings)), "note")
    assert found == (
        "JWKS key 2 ('e\\x1b') is left out: it is for another use -> agentctl keys list\n"
        "JWKS key 3 (without kid) is left out: it is of another key type -> agentctl keys list"
    )
    assert configuration.has_third_party_keys(settings)


def test_signing_key_unknown_to_the_server_is_noted(tmp_path: Path) -> None:
    settings = create_signing_settings(tmp_path, entries=lambda ours: [foreign_key_entry()])
    assert "the server rejects tokens that" in texts_of(
        list(configuration.check_keys(settings)), "note"
    )
    assert configuration.has_third_party_keys(settings)
    settings.signing.key_file.unlink()
    findings = list(configuration.check_keys(settings))
    assert texts_of(findings, "wrong") == texts_of(findings, "note") == ""
    assert "minted elsewhere" in texts_of(findings, "ok")
    assert configuration.has_third_party_keys(settings)


def test_signing_key_of_another_user_is_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server needs the public key only."""
    settings = create_signing_settings(tmp_path, entries=lambda ours: [ours])
    monkeypatch.setattr(os, "access", lambda *_: False)
    findings = list(configuration.check_keys(settings))
    assert "which a server does not need" in texts_of(findings, "ok")
    assert texts_of(findings, "wrong") == ""


def test_rejected_keys_are_wrong(tmp_path: Path) -> None:
    settings = create_signing_settings(tmp_path, entries=lambda ours: [{**ours, "d": "AA"}])
    settings.signing.key_file.chmod(0o640)
    found = texts_of(list(configuration.check_keys(settings)), "wrong")
    assert "JWKS key 1 is a private key -> publish its public members only" in found
    assert f"-> chmod 600 {settings.signing.key_file}" in found
    off = replace(settings, authorization=replace(settings.authorization, enabled=False))
    assert "private key" not in texts_of(list(configuration.check_keys(off)), "wrong")
    assert not configuration.has_third_party_keys(off)


def test_unfinished_rotation_is_noted(tmp_path: Path) -> None:
    settings = create_signing_settings(tmp_path, entries=lambda ours: [ours])
    with open_rotation(settings) as rotation:
        rotation.publish_new_key(now() + DAY)
        half = list(configuration.check_keys(settings))
        rotation.activate_new_key(keep=False)
    assert texts_of(half, "note") == "a key rotation was interrupted -> agentctl keys rotate"
    waiting = list(configuration.check_keys(settings))
    assert texts_of(waiting, "note") == ""
    assert f"the replaced key {rotation.old_thumbprint} verifies tokens until" in texts_of(
        waiting, "ok"
    )
    assert not configuration.has_third_party_keys(settings)
    (jwks,) = settings.authorization.jwks_file
    entries = json.loads(jwks.read_text())["keys"]
    entries[0]["agentctl_remove_after"] = "2026-01-01T00:00:00Z"
    jwks.write_text(json.dumps({"keys": entries}))
    over = texts_of(list(configuration.check_keys(settings)), "note")
    assert "still verifies tokens -> agentctl keys rotate --finish" in over
    entries[0]["agentctl_remove_after"] = "soon"
    jwks.write_text(json.dumps({"keys": entries}))
    assert "may be removed" in texts_of(list(configuration.check_keys(settings)), "wrong")


def check_model(monkeypatch: pytest.MonkeyPatch, **given: str) -> list[Finding]:
    monkeypatch.setenv("THERE", "precious")
    monkeypatch.delenv("MISSING", raising=False)
    model = Model("m", "openai", "x", **given)
    unused = Model("unused", "openai", "x", api_key_env="MISSING")
    used = (Agent("a", "m"), Agent("b", "demo"))
    demo = Model("demo", "demo", "echo")
    settings = Settings(models=(model, unused, demo), agents=used, teams=(Team("t", "m", ("a",)),))
    return list(configuration.check_models(settings))


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ({"api_key_env": "THERE"}, ["ok"]),
        ({"api_key_env": "MISSING"}, ["wrong"]),
        ({}, ["wrong"]),
        ({"base_url": "http://127.0.0.1:8000/v1"}, ["ok"]),
        ({"base_url": "http://llm.example/v1", "api_key_env": "THERE"}, ["ok", "note"]),
        ({"base_url": "https://llm.example/v1", "api_key_env": "THERE"}, ["ok"]),
    ],
)
def test_models_need_their_api_key(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], verdicts: list[str]
) -> None:
    found = check_model(monkeypatch, **given)
    assert [finding.verdict for finding in found] == verdicts
    assert "precious" not in repr(found)


def test_tools_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checked_tools.py").write_text(
        'print("loud")\ndef add(a: int) -> int:\n    """Add."""\n    return a\n'
    )
    agents = (Agent("a", "m", tools=("checked_tools:add",)), Agent("b", "m", tools=("no_such:f",)))
    settings = Settings(agents=agents, path=tmp_path / "agentctl.toml")
    findings = list(configuration.check_tools(settings))
    assert "agent b cannot use the tool 'no_such:f'" in texts_of(findings, "wrong")
    assert texts_of(findings, "ok") == "1 tool can be used -> None"
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "loud\n")
    assert list(configuration.check_tools(Settings(agents=(Agent("a", "m"),)))) == []


def test_objects_of_agents_are_imported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checked_agents.py").write_text(
        'print("loud")\nasync def answer(message):\n    return message\nnumber = 5\n'
    )
    agents = tuple(
        Agent(name, object=f"checked_agents:{name}") for name in ("answer", "number", "absent")
    )
    settings = Settings(agents=agents, path=tmp_path / "agentctl.toml")
    findings = list(configuration.check_objects(settings))
    assert "agent number cannot use the object 'checked_agents:number'" in texts_of(
        findings, "wrong"
    )
    assert "the module checked_agents has no absent" in texts_of(findings, "wrong")
    assert texts_of(findings, "ok") == "1 agent in code can be used -> None"
    assert capsys.readouterr().out == ""
    assert list(configuration.check_objects(Settings(agents=(Agent("a", "m"),)))) == []


def database_entry(path: Path) -> Database:
    return Database("main", f"sqlite:///{path}")


def create_database(folder: Path) -> Path:
    path = folder / "a.db"
    open_database(database_entry(path), create=True).close_blocking()
    return path


def check_file(path: Path) -> list[Finding]:
    async def collect() -> list[Finding]:
        return [finding async for finding in databases.check_database(database_entry(path))]

    return asyncio.run(collect())


def test_valid_database_is_ok(tmp_path: Path) -> None:
    findings = check_file(create_database(tmp_path))
    assert {finding.verdict for finding in findings} == {"ok"}
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["a.db"]


def test_missing_database_is_a_note(tmp_path: Path) -> None:
    assert "agentctl serve creates it" in texts_of(check_file(tmp_path / "a.db"), "note")
    assert texts_of(check_file(tmp_path / "a.db"), "wrong") == ""
    assert "-> mkdir " in texts_of(check_file(tmp_path / "no folder" / "a.db"), "wrong")
    assert list(tmp_path.iterdir()) == []


def test_foreign_file_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(b"x" * 5_000)
    assert "not a database" in texts_of(check_file(path), "wrong")
    assert path.read_bytes() == b"x" * 5_000


def test_damaged_database_is_wrong(tmp_path: Path) -> None:
    path = create_database(tmp_path)
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET rootpage = 3 WHERE name = 'runs_parent'")
    connection.close()
    assert "restore it from a backup" in texts_of(check_file(path), "wrong")


def test_other_journal_mode_is_wrong(tmp_path: Path) -> None:
    path = create_database(tmp_path)
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "DELETE")
    connection.close()
    assert "its journal mode is delete" in texts_of(check_file(path), "wrong")


def test_newer_schema_is_wrong(tmp_path: Path) -> None:
    path = create_database(tmp_path)
    connection = apsw.Connection(str(path))
    connection.execute("INSERT INTO schema_version VALUES (98, 1, 15)")
    findings = check_file(path)
    assert "schema 98 is newer than this agentctl" in texts_of(findings, "note")
    assert not texts_of(findings, "wrong")
    connection.execute("INSERT INTO schema_version VALUES (99, 1, 99)")
    connection.close()
    assert "newer than this agentctl" in texts_of(check_file(path), "wrong")


def test_records_ahead_of_the_clock_are_wrong(tmp_path: Path) -> None:
    path = create_database(tmp_path)
    connection = apsw.Connection(str(path))
    worker = ("w", "h", "b", 1, 1, now() + 2 * DAY, 1)
    connection.execute("INSERT INTO workers VALUES (?, ?, ?, ?, ?, ?, ?, NULL, NULL, 0)", worker)
    connection.close()
    assert "2 d ahead of the clock" in texts_of(check_file(path), "wrong")


def test_network_filesystem_low_space_and_large_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create_database(tmp_path)
    monkeypatch.setattr(databases, "detect_filesystem", lambda path: "nfs4")
    monkeypatch.setattr("agentctl.service.operations.deployment._LITTLE_FREE", 1 << 62)
    monkeypatch.setattr(databases, "_LARGE_LOG", -1)
    reader = inspect.connect_reader(path)
    reader.execute("SELECT count(*) FROM runs").fetchall()
    findings = check_file(path)
    monkeypatch.setattr("agentctl.service.operations.deployment._LEAST_FREE", 1 << 62)
    scarce = check_file(path)
    reader.close(True)
    assert "network filesystem (nfs4)" in texts_of(findings, "wrong")
    assert "free some space" in texts_of(findings, "note")
    assert "write-ahead log" in texts_of(findings, "note")
    assert "free some space" in texts_of(scarce, "wrong")


def test_held_write_lock_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = create_database(tmp_path)
    holder = apsw.Connection(str(path))
    holder.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("agentctl.store.sqlite.connection.WAIT_MILLISECONDS", 20)
    findings = check_file(path)
    holder.execute("ROLLBACK")
    holder.close()
    assert "another process holds its lock" in texts_of(findings, "wrong")


def test_long_check_ends_when_cancelled(tmp_path: Path) -> None:
    path = create_database(tmp_path)
    connection = apsw.Connection(str(path))
    connection.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000)"
        " INSERT INTO run_events SELECT 'r', i, i, hex(randomblob(400)) FROM n"
    )
    connection.close()

    async def is_cancelled() -> bool:
        task = asyncio.ensure_future(inspect.find_damage(path, quick=True))
        await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    async def check() -> None:
        # On a busy machine, a check may end before its cancel.
        await wait_until(is_cancelled)

    asyncio.run(check())


def test_failed_step_is_a_finding() -> None:
    async def fail() -> list[Finding]:
        raise ValueError("what nobody thought of, with a secret")

    async def missing() -> list[Finding]:
        Path("/nowhere").stat()
        return []

    (finding,) = asyncio.run(run_step(DoctorStep("keys", fail)))
    assert (finding.check, finding.verdict) == ("keys", "wrong")
    assert finding.what == "the check failed (ValueError)"
    (finding,) = asyncio.run(run_step(DoctorStep("keys", missing)))
    assert finding.what == "/nowhere: no such file or directory"
    broken = asyncio.run(
        run_step(next(list_steps(InvalidConfiguration("no", cause="c", hint="h"))))
    )
    assert broken == [Finding("configuration", "wrong", "no: c", "h")]


async def test_doctor_finds_missing_bytes_and_a_store_that_cannot_be_written(
    deployment: Deployment,
) -> None:
    settings = deployment.settings
    async with Service.open(settings, create=True) as service:
        await service.hosting.databases.open_all()
        operations = service.operations_for(local_principal("boss"))
        stored = [
            (await operations.files.upload(FileUpload(name), FileContent(name.encode()))).value
            for name in ("a.txt", "b.txt")
        ]
    findings = await check_store(settings)
    assert [each.verdict for each in findings] == ["ok"]
    (path,) = settings.files.folder.glob(f"*/{stored[0]['sha256']}")
    path.unlink()
    assert "1 of the newest 2 files of database main have no bytes" in texts_of(
        await check_store(settings), "wrong"
    )
    missing = replace(settings.files, folder=deployment.folder / "absent" / "files")
    (finding,) = await check_store(replace(settings, files=missing))
    assert (finding.verdict, "cannot be written" in finding.what) == ("wrong", True)
