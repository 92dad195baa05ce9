"""Signed heads: each change of a signed audit log is found, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import apsw
import orjson
import pytest

from agentctl.auth.audit_chain import (
    StatementKey,
    Verification,
    load_statement_key,
    load_verification_keys,
    sign_head,
    verify_audit_log,
)
from agentctl.auth.keys.signing import build_public_pem, generate_key
from agentctl.config.settings import Audit, Settings
from agentctl.config.settings import Database as Entry
from agentctl.interface.requests import NewSession
from agentctl.interface.requests.administration import AuditFilter, AuditHeadFilter
from agentctl.records.times import now
from agentctl.runs.jobs.cleanup import Ages, delete_expired
from agentctl.service.operations import audit as signing
from agentctl.service.operations.audit import HeadSigner
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import audit
from tests.kit.command import Result, run_command
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment
from tests.kit.postgres import ConnectedTo
from tests.kit.process import base_environment
from tests.kit.service import admin, user
from tests.runs.components import build_settings

DAY = 24 * 60 * 60 * 1_000_000

HEAD_ENTRIES = 5


@pytest.fixture(autouse=True, scope="module")
def small_heads() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing, "HEAD_ENTRIES", HEAD_ENTRIES)
        yield


@dataclass(frozen=True)
class Keys:
    """The key pair of an audit log."""

    folder: Path

    @property
    def private(self) -> StatementKey:
        return load_statement_key(self.folder / "audit.pem")

    @property
    def public(self) -> Path:
        return self.folder / "audit.pub.pem"


def create_keys(folder: Path) -> Keys:
    folder.mkdir()
    data = generate_key("EdDSA")
    (folder / "audit.pem").write_bytes(data)
    (folder / "audit.pem").chmod(0o600)
    (folder / "audit.pub.pem").write_bytes(build_public_pem(data, "EdDSA"))
    return Keys(folder)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return create_keys(tmp_path_factory.mktemp("keys") / "own")


@contextlib.asynccontextmanager
async def signing_service(
    settings: Settings, keys: Keys, **table: Any
) -> AsyncIterator[tuple[Service, HeadSigner]]:
    """Open a service that signs after `HEAD_ENTRIES` entries, or after an hour."""
    values = {"key_file": keys.folder / "audit.pem", **table}
    settings = replace(settings, audit=Audit(**values))
    async with Service.open(settings, create=True) as service:
        key = service.hosting.statement_key()
        assert key is not None
        yield service, HeadSigner(service.hosting.databases.system, settings.audit, key)


async def add_entries(service: Service, count: int) -> None:
    for _ in range(count):
        await user(service).sessions.create(NewSession())


async def sign(signer: HeadSigner) -> None:
    """Sign all that is due: what one sweep has seen, the next one signs."""
    await signer.sign_due()
    await signer.sign_due()


async def sign_heads(service: Service, signer: HeadSigner, count: int) -> None:
    """Sign until there are so many heads.

    On PostgreSQL, an open transaction of another test on the same server delays them.
    """

    async def are_signed() -> bool:
        await sign(signer)
        return len(await read_tokens(service)) == count

    await wait_until(are_signed)


async def read_tokens(service: Service) -> list[str]:
    page = (await admin(service).audit.list_heads(AuditHeadFilter(limit=100))).value
    return [head["token"] for head in reversed(page["data"])]


async def verify(service: Service, keys: Keys, known: Sequence[str] = ()) -> Verification:
    async def read_entries() -> AsyncIterator[Any]:
        cursor = None
        while True:
            asked = AuditFilter(limit=7, cursor=cursor)
            page = (await admin(service).audit.list(asked)).value
            for entry in page["data"]:
                yield entry
            cursor = page["meta"]["next_cursor"]
            if cursor is None:
                return

    public = load_verification_keys(keys.public)
    return await verify_audit_log(await read_tokens(service), read_entries(), public, known)


async def test_heads_cover_the_entries_that_are_due(deployment: Deployment, keys: Keys) -> None:
    async with signing_service(deployment.settings, keys) as (service, signer):
        await sign(signer)
        assert await read_tokens(service) == []
        await add_entries(service, 2 * HEAD_ENTRIES + 2)
        await sign(signer)
        page = (await admin(service).audit.list_heads(AuditHeadFilter(limit=1))).value
        (head,) = page["data"]
        assert (head["number"], head["first_seq"], head["last_seq"], head["entries"]) == (
            2,
            6,
            10,
            5,
        )
        after = AuditHeadFilter(limit=1, cursor=page["meta"]["next_cursor"])
        (first,) = (await admin(service).audit.list_heads(after)).value["data"]
        assert (first["number"], first["first_seq"], first["last_seq"]) == (1, 1, 5)
        found = await verify(service, keys)
        assert (found.heads, found.entries, found.unsigned, found.findings) == (2, 10, 2, [])


async def test_old_entries_are_signed_before_the_head_is_full(
    deployment: Deployment, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with signing_service(deployment.settings, keys) as (service, signer):
        await add_entries(service, 1)
        await sign(signer)
        assert await read_tokens(service) == []

        # From now on, every entry is old.
        monkeypatch.setattr(signing, "HEAD_SECONDS", 0)
        await sign(signer)
        found = await verify(service, keys)
        assert (found.heads, found.entries, found.unsigned, found.findings) == (1, 1, 0, [])


async def test_heads_are_copied_to_the_file_from_the_first_on(
    deployment: Deployment, keys: Keys, tmp_path: Path
) -> None:
    file = tmp_path / "heads.jwt"
    async with signing_service(deployment.settings, keys) as (service, signer):
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
        assert file.read_text().split() == await read_tokens(service)
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
        assert file.read_text().split() == await read_tokens(service)
        assert len(await read_tokens(service)) == 3


@pytest.mark.parametrize("cut", [-1, -300], ids=["line feed", "half of a head"])
async def test_copy_goes_on_after_a_cut_line(
    deployment: Deployment, keys: Keys, tmp_path: Path, cut: int
) -> None:
    file = tmp_path / "heads.jwt"
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        await add_entries(service, 2 * HEAD_ENTRIES)
        await sign(signer)
    file.write_bytes(file.read_bytes()[:cut])
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
        assert file.read_text().split() == await read_tokens(service)


async def test_copy_has_each_head_of_several_processes_and_of_a_restored_log(
    deployment: Deployment, keys: Keys, tmp_path: Path
) -> None:
    file = tmp_path / "heads.jwt"
    main = deployment.folder / "main.db"
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        table = replace(service.hosting.settings.audit, heads_file=file)
        other = HeadSigner(service.hosting.databases.system, table, keys.private)
        for process in (signer, other, signer):
            await add_entries(service, HEAD_ENTRIES)
            await sign(process)
        with contextlib.closing(apsw.Connection(str(main))) as source:
            source.execute("VACUUM INTO ?", (str(tmp_path / "early.db"),))
        await add_entries(service, HEAD_ENTRIES)
        await sign(other)
        lines = file.read_text().split()
        assert lines == await read_tokens(service)
    for name in ("main.db", "main.db-wal", "main.db-shm"):
        (deployment.folder / name).unlink(missing_ok=True)
    shutil.copy(tmp_path / "early.db", main)
    async with signing_service(deployment.settings, keys, heads_file=file) as (service, signer):
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
        tokens = await read_tokens(service)
        assert tokens[:3] == lines[:3]
        assert file.read_text().split() == [*lines, tokens[3]]


async def test_expired_entries_are_no_finding(deployment: Deployment, keys: Keys) -> None:
    async with signing_service(deployment.settings, keys, keep_days=1) as (service, signer):
        database = service.hosting.databases.system
        for day in (5, 4, 3, 0):
            for _ in range(HEAD_ENTRIES):
                entry = audit.AuditRow(
                    now() - day * DAY, "me", "http", "x", None, "allowed", None, None, None
                )
                await database.write(audit.append_entry(entry))
        await sign(signer)
        await delete_expired(service.hosting.databases, ages=Ages(1))
        # No head is older than a day: it has not expired, although its entries are older.
        assert (await verify(service, keys)).entries == 4 * HEAD_ENTRIES
        age = "UPDATE audit_heads SET at = at - :days WHERE number <= 2"
        await database.write(Sql(age).execute(days=3 * DAY))
        await add_entries(service, HEAD_ENTRIES)
        await sign(signer)
        await delete_expired(service.hosting.databases, ages=Ages(1))
        found = await verify(service, keys)
        assert (found.entries, found.expired, found.findings) == (3 * HEAD_ENTRIES, 2, [])


async def test_deleted_entries_of_expired_heads_are_counted(keys: Keys) -> None:
    key = keys.private
    signed = list[str]()
    entries = list[dict[str, Any]]()
    for number in range(1, 5):
        some = [build_record(5 * number - 4 + place) for place in range(5)]
        signed.append(
            sign_head(
                key,
                signed[-1] if signed else None,
                number=number,
                at=f"2026-11-20T00:00:0{number}.000000Z",
                last_seq=5 * number,
                expired_seq=10 if number == 4 else 0,
                entries=some,
            )
        )
        entries += some
    public = load_verification_keys(keys.public)
    for first in (0, 3, 10):
        found = await verify_audit_log(signed, newest_first(entries[first:]), public)
        assert (found.findings, found.expired) == ([], {0: 0, 3: 1, 10: 2}[first])
    found = await verify_audit_log(signed, newest_first(entries[11:]), public)
    assert [finding.code for finding in found.findings] == ["ENTRIES_CHANGED"]


def build_record(seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "at": "2026-11-20T00:00:00.000000Z",
        "principal": "me",
        "via": "http",
        "operation": "create_session",
        "resource": f"session:s{seq}",
        "outcome": "allowed",
        "status": None,
        "reason": None,
        "request_id": "r",
        "trace_id": None,
        "count": 1,
    }


async def newest_first(entries: list[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    for entry in reversed(entries):
        yield entry


@dataclass(frozen=True)
class SignedLog:
    """A signed audit log with four heads, one entry that none covers, and a copy of its heads."""

    settings: Settings
    folder: Path
    tokens: list[str]
    early: Path


@pytest.fixture(scope="module")
def signed_log(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> SignedLog:
    folder = tmp_path_factory.mktemp("log")
    settings = build_settings(folder / "main.db")
    early = folder / "early.db"

    async def create() -> list[str]:
        async with signing_service(settings, keys) as (service, signer):
            await add_entries(service, 2 * HEAD_ENTRIES)
            await sign(signer)
            with contextlib.closing(apsw.Connection(str(folder / "main.db"))) as source:
                source.execute("VACUUM INTO ?", (str(early),))
            await add_entries(service, 2 * HEAD_ENTRIES + 1)
            await sign(signer)
            assert (await verify(service, keys)).findings == []
            return await read_tokens(service)

    tokens = asyncio.run(create())
    assert len(tokens) == 4
    return SignedLog(settings, folder, tokens, early)


OTHER_FIELDS = "at, principal, via, operation, resource, outcome, status, reason, request_id, count"

INSERT = f"INSERT INTO audit_log (seq, {OTHER_FIELDS}) SELECT"

OTHER = f"{OTHER_FIELDS} FROM audit_log WHERE seq = 8"

CHANGES: dict[str, tuple[str, str]] = {
    "principal": ("UPDATE audit_log SET principal = 'other' WHERE seq = 3", "ENTRIES_CHANGED"),
    "outcome": ("UPDATE audit_log SET outcome = 'denied' WHERE seq = 20", "ENTRIES_CHANGED"),
    "time": ("UPDATE audit_log SET at = at - 1 WHERE seq = 7", "ENTRIES_CHANGED"),
    "null": ("UPDATE audit_log SET reason = '' WHERE seq = 1", "ENTRIES_CHANGED"),
    "count": ("UPDATE audit_log SET count = 2 WHERE seq = 9", "ENTRIES_CHANGED"),
    "resource": ("UPDATE audit_log SET resource = NULL WHERE seq = 9", "ENTRIES_CHANGED"),
    "huge number": (f"UPDATE audit_log SET status = {2**60} WHERE seq = 9", "ENTRIES_CHANGED"),
    "first deleted": ("DELETE FROM audit_log WHERE seq = 1", "ENTRIES_CHANGED"),
    "middle deleted": ("DELETE FROM audit_log WHERE seq = 8", "ENTRIES_CHANGED"),
    "last deleted": ("DELETE FROM audit_log WHERE seq = 20", "ENTRIES_CHANGED"),
    "all deleted": ("DELETE FROM audit_log", "ENTRIES_CHANGED"),
    "inserted": (f"{INSERT} -1, {OTHER}", "ENTRIES_CHANGED"),
    "replaced": (f"DELETE FROM audit_log WHERE seq = 4; {INSERT} 4, {OTHER}", "ENTRIES_CHANGED"),
    "reordered": (
        "UPDATE audit_log SET seq = 99 WHERE seq = 2; UPDATE audit_log SET seq = 2 WHERE seq = 3;"
        "UPDATE audit_log SET seq = 3 WHERE seq = 99",
        "ENTRIES_CHANGED",
    ),
    "moved to another head": ("UPDATE audit_log SET seq = 99 WHERE seq = 5", "ENTRIES_CHANGED"),
    "head deleted": ("DELETE FROM audit_heads WHERE number = 2", "HEAD_MISSING"),
    "first head deleted": ("DELETE FROM audit_heads WHERE number = 1", "HEAD_MISSING"),
    "heads reordered": (
        "UPDATE audit_heads SET number = -number;"
        "UPDATE audit_heads SET number = CASE number WHEN -2 THEN 3 WHEN -3 THEN 2"
        " ELSE -number END",
        "HEAD_BROKEN",
    ),
    "head repeated": (
        "UPDATE audit_heads SET token = (SELECT token FROM audit_heads WHERE number = 2)"
        " WHERE number = 3",
        "HEAD_BROKEN",
    ),
    "head edited": (
        "UPDATE audit_heads SET token = replace(token, '.', '.e30') WHERE number = 3",
        "HEAD_INVALID",
    ),
    "cut at a head": (
        "DELETE FROM audit_heads WHERE number = 4; DELETE FROM audit_log WHERE seq > 15",
        "HEAD_UNKNOWN",
    ),
    "all heads deleted": ("DELETE FROM audit_heads", "HEAD_UNKNOWN"),
}


@dataclass(frozen=True)
class ChangedLog:
    """A copy of a log that was changed without the service, in a separate folder."""

    folder: Path
    keys: Keys

    @property
    def settings(self) -> Settings:
        return build_settings(self.folder / "changed.db")

    def audit(self, command: str, *words: str) -> Result:
        place = () if "--export" in words else ("--config", "agentctl.toml")
        return run_command(
            "audit", command, *words, *place, environment=base_environment(), folder=self.folder
        )

    def verify(self, *heads: str) -> list[str]:
        """Return the codes of the findings of `agentctl audit verify`."""
        ended = self.audit("verify", "--key", str(self.keys.public), *heads, "-o", "json")
        found = [finding["code"] for finding in json.loads(ended.stdout)["findings"]]
        assert ended.code == (1 if found else 0), ended.stderr
        return found


def change_log(log: SignedLog, keys: Keys, folder: Path, source: Path, sql: str) -> ChangedLog:
    shutil.copy(source, folder / "changed.db")
    with contextlib.closing(apsw.Connection(str(folder / "changed.db"))) as connection:
        connection.execute(sql)
    url = f"sqlite:///{folder / 'changed.db'}"
    (folder / "agentctl.toml").write_text(f'[[databases]]\nid = "main"\nurl = "{url}"\n')
    (folder / "heads.jwt").write_text("".join(f"{token}\n" for token in log.tokens))
    return ChangedLog(folder, keys)


HEADS = ("--heads", "heads.jwt")


@pytest.mark.parametrize("change", CHANGES)
def test_changes_are_found(signed_log: SignedLog, keys: Keys, tmp_path: Path, change: str) -> None:
    sql, code = CHANGES[change]
    changed = change_log(signed_log, keys, tmp_path, signed_log.folder / "main.db", sql)
    assert code in changed.verify(*HEADS)
    if code == "ENTRIES_CHANGED":
        assert changed.audit("export", "--to-file", "audit.jsonl").code == 0
        key = ("--key", str(keys.public))
        offline = changed.audit("verify", "--export", "audit.jsonl", *HEADS, *key)
        assert (offline.code, code in offline.stderr) == (1, True), offline.stderr


def test_an_unchanged_log_has_no_finding(signed_log: SignedLog, keys: Keys, tmp_path: Path) -> None:
    same = change_log(signed_log, keys, tmp_path, signed_log.folder / "main.db", "VACUUM")
    assert same.verify(*HEADS) == same.verify() == []


def test_an_earlier_copy_of_the_log_is_found_by_the_copy_of_the_heads(
    signed_log: SignedLog, keys: Keys, tmp_path: Path
) -> None:
    earlier = change_log(signed_log, keys, tmp_path, signed_log.early, "")
    assert earlier.verify() == []
    assert earlier.verify(*HEADS) == ["HEAD_UNKNOWN", "HEAD_UNKNOWN"]


def test_a_log_that_another_key_has_signed_is_found(
    signed_log: SignedLog, keys: Keys, tmp_path: Path
) -> None:
    others = create_keys(tmp_path / "others")
    source = signed_log.folder / "main.db"
    changed = change_log(signed_log, keys, tmp_path, source, "DELETE FROM audit_heads")

    async def sign_again() -> None:
        async with signing_service(changed.settings, others) as (service, signer):
            await sign(signer)
            assert (await verify(service, others)).findings == []

    asyncio.run(sign_again())
    assert changed.verify() == ["HEAD_INVALID"] * 4


async def test_another_statement_of_the_same_key_is_no_head(keys: Keys) -> None:
    receipt = keys.private.sign("approval-receipt", {"version": 1})
    public = load_verification_keys(keys.public)
    found = await verify_audit_log([receipt], newest_first([]), public)
    assert [finding.code for finding in found.findings] == ["HEAD_INVALID"]


async def test_a_head_has_the_documented_digest(signed_log: SignedLog, keys: Keys) -> None:
    import base64
    import hashlib

    import rfc8785

    payload = signed_log.tokens[0].split(".")[1]
    head = orjson.loads(base64.urlsafe_b64decode(payload + "=="))
    async with signing_service(signed_log.settings, keys) as (service, _):
        page = (await admin(service).audit.list(AuditFilter(limit=100))).value
    lines = b"".join(rfc8785.dumps(entry) + b"\n" for entry in page["data"][:-6:-1])
    assert head["digest"] == f"sha256:{hashlib.sha256(lines).hexdigest()}"
    assert head["previous"] is None


async def test_entries_of_late_transactions_are_signed(
    postgres_entry: Entry, keys: Keys, tmp_path: Path
) -> None:
    settings = replace(build_settings(tmp_path / "none.db"), databases=(postgres_entry,))
    async with signing_service(settings, keys) as (service, signer):
        await add_entries(service, 1)
        async with ConnectedTo(postgres_entry) as connection:
            late = connection.transaction()
            await late.start()
            await connection.execute(
                "INSERT INTO audit_log (at, principal, via, operation, outcome)"
                " VALUES (1, 'late', 'http', 'x', 'allowed')"
            )
            await add_entries(service, 2 * HEAD_ENTRIES)
            for _ in range(3):
                await sign(signer)
            assert await read_tokens(service) == []
            await late.commit()

        await sign_heads(service, signer, 2)
        found = await verify(service, keys)
        assert (found.heads, found.entries, found.findings) == (2, 2 * HEAD_ENTRIES, [])


async def test_two_servers_sign_one_chain(
    postgres_entry: Entry, keys: Keys, tmp_path: Path
) -> None:
    settings = replace(build_settings(tmp_path / "none.db"), databases=(postgres_entry,))
    async with (
        signing_service(settings, keys) as (one, first),
        signing_service(settings, keys) as (_, second),
    ):
        for _ in range(3):
            await add_entries(one, 2 * HEAD_ENTRIES)
            await asyncio.gather(sign(first), sign(second))
        await sign_heads(one, first, 6)
        found = await verify(one, keys)
        assert (found.heads, found.entries, found.findings) == (6, 30, [])
