"""Servers with PgBouncer in transaction mode, and the errors of set-ups that cannot work."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from agentctl import errors
from agentctl.config.settings import Database
from agentctl.store.database import ReadSize, Sql, Statement, Steps, unit
from agentctl.store.postgres.database import PostgresDatabase
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, SQLITE_DATABASES, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer, execute
from tests.lab.servers import Server
from tests.poolers.pgbouncer import (
    MISSING,
    PgBouncer,
    find_old_pgbouncer,
    find_pgbouncer,
    running_pgbouncer,
)

CALLERS = 8
RUNS = 24

ROLES = ("pooled_one", "pooled_two", "pooled_empty")
"""Users with a schema of the same name, each of a deployment."""


@pytest.fixture(scope="module")
def roles(server: PostgresServer) -> None:
    for role in ROLES:
        execute(
            server,
            f"CREATE ROLE {role} LOGIN",
            f"CREATE SCHEMA {role} AUTHORIZATION {role}",
            f"ALTER ROLE {role} SET search_path = '{role}'",
        )


@pytest.fixture(scope="module")
def pooler(server: PostgresServer, roles: None) -> Iterator[PgBouncer]:
    """PgBouncer with its default settings."""
    program = find_pgbouncer()
    if program is None:
        pytest.skip(MISSING)
    with running_pgbouncer(program, server.url, users=("postgres", *ROLES)) as pooler:
        yield pooler


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@")


def build_config(role: str, pooler: PgBouncer, server: PostgresServer, *, listens: bool) -> str:
    text = f'url = "{as_role(pooler.url, role)}"\nsearch_path = "{role}"\ntls = "disable"'
    return f'{text}\nlisten_url = "{as_role(server.url, role)}"' if listens else text


@pytest.fixture(scope="module")
def servers(
    pooler: PgBouncer,
    server: PostgresServer,
    model_endpoint: ModelEndpoint,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Server]]:
    """Yield two servers of a deployment, one of them without `listen_url`, and one of another."""
    folder = tmp_path_factory.mktemp("pgbouncer")
    running = {}
    with ExitStack() as stack:
        for name, role in (("one", ROLES[0]), ("deaf", ROLES[0]), ("two", ROLES[1])):
            place = folder / name
            if name == "deaf":
                shutil.copytree(folder / "one", place)
                text = (place / "agentctl.toml").read_text()
                (place / "agentctl.toml").write_text(
                    "".join(line for line in text.splitlines(True) if "listen_url" not in line)
                )
                deployment = Deployment(place)
            else:
                place.mkdir()
                config = build_config(role, pooler, server, listens=True)
                deployment = create_deployment(
                    place,
                    model_endpoint.base_url,
                    databases={"main": config, "second": SQLITE_DATABASES["second"]},
                )
            running[name] = Server(name, deployment)
            running[name].start()
            stack.callback(running[name].stop)
        yield running


async def test_default_pgbouncer_keeps_two_deployments_apart(servers: dict[str, Server]) -> None:
    """The statements of both, on the same sessions of the pooler, read their own tables only."""

    async def work(client: httpx2.AsyncClient, prefix: str) -> None:
        waiting = iter(range(RUNS))

        async def call() -> None:
            for number in waiting:
                body = {"message": "hello", "session_id": f"{prefix}{number}", "stream": False}
                answer = await client.post("/agents/echo/runs", json=body)
                assert answer.status_code == 200, answer.text
                body["stream"] = True
                streamed = await client.post("/agents/echo/runs", json=body)
                assert "RunCompleted" in streamed.text

        await asyncio.gather(*(call() for _ in range(CALLERS)))

    async with client_of(servers["one"]) as one, client_of(servers["two"]) as two:
        await asyncio.gather(work(one, "one-"), work(two, "two-"))
        for client, own, other in ((one, "one-", "two-"), (two, "two-", "one-")):
            page = (await client.get(f"/sessions?limit={RUNS + 20}")).json()
            ids = [session["session_id"] for session in page["data"]]
            ids = [session_id for session_id in ids if session_id.startswith(("one-", "two-"))]
            assert len(ids) == RUNS
            assert all(session_id.startswith(own) for session_id in ids)
            assert (await client.get(f"/sessions/{other}1")).status_code == 404


async def test_cancel_passes_between_servers_with_pgbouncer(servers: dict[str, Server]) -> None:
    async with client_of(servers["one"]) as one, client_of(servers["deaf"]) as deaf:
        for owner, other in ((one, deaf), (deaf, one)):
            session = uuid4().hex
            body = {"message": "x", "session_id": session, "stream": False, "background": True}
            run = (await owner.post("/agents/hang/runs", json=body)).json()["run_id"]
            path = f"/agents/hang/runs/{run}/cancel?session_id={session}&wait=30"
            assert (await other.post(path)).json()["cancel"] == "stopped"


def test_missing_notifications_are_reported(servers: dict[str, Server]) -> None:
    words = "a connection pooler does not pass on notifications"

    async def run() -> None:
        # A server listens from its first run on.
        for name in ("one", "deaf"):
            async with client_of(servers[name]) as client:
                body = {"message": "hello", "session_id": f"listen-{name}", "stream": False}
                assert (await client.post("/agents/echo/runs", json=body)).status_code == 200
        await wait_until(lambda: words in servers["deaf"].logs[-1].read_text())

    asyncio.run(run())
    assert words not in servers["one"].logs[-1].read_text()
    for name, expected in (("deaf", "listen_url in [[databases]] main"), ("one", "servers arrive")):
        found = run_command("doctor", folder=servers[name].deployment.folder, environment={})
        assert expected in found.stdout, found


async def test_notification_arrives_at_the_listen_url(
    server: PostgresServer, pooler: PgBouncer, roles: None
) -> None:
    url = as_role(pooler.url, ROLES[0])
    direct = as_role(server.url, ROLES[0])
    admin = await asyncpg.connect(server.url)
    for listen_url, attempts in ((direct, 60), ("", 2)):
        entry = Database("main", url, search_path=ROLES[0], listen_url=listen_url)
        database = PostgresDatabase(entry, create=True)
        try:
            await database.check()
            count = database.watch("news")
            # The listener counts once when it starts.
            await wait_until(lambda count=count: count() > 0)
            assert await has_heard(count, admin, attempts) == bool(listen_url)
        finally:
            await database.close()
    await admin.close()


async def has_heard(
    count: Callable[[], int], admin: asyncpg.Connection[asyncpg.Record], attempts: int
) -> bool:
    before = count()
    for _ in range(attempts):
        await admin.execute(f"SELECT pg_notify('agentctl', '{ROLES[0]} news')")
        await asyncio.sleep(0.5)
        if count() > before:
            return True
    return False


@unit
def read_limits() -> Steps[list[str]]:
    """Two statements, so that the unit has a transaction."""
    found = []
    for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
        rows = yield Statement(Sql(f"SELECT current_setting('{name}')"))
        found.append(rows[0][0])
    return found


async def test_time_limits_hold_with_pgbouncer(pooler: PgBouncer, roles: None) -> None:
    """The pooler refuses the settings, so each transaction sets them."""
    entry = Database("main", as_role(pooler.url, ROLES[0]), search_path=ROLES[0])
    database = PostgresDatabase(entry, create=True)
    assert await database.write(read_limits()) == ["5s", "10s"]
    assert await database.read(read_limits()) == ["5s", "10s"]
    await database.close()


async def test_lists_change_no_session_of_pgbouncer(pooler: PgBouncer, roles: None) -> None:
    """The setting of a list ends with its transaction: others have the session after it."""
    entry = Database("main", as_role(pooler.url, ROLES[0]), search_path=ROLES[0])
    database = PostgresDatabase(entry, create=True)
    mode = Sql("SELECT current_setting('plan_cache_mode')")
    sizes: tuple[ReadSize, ...] = ("unknown", "small", "large", "small")
    found = [await database.read(mode.value(), size=size) for size in sizes]
    assert found == ["force_custom_plan", "auto"] * 2
    await database.close()


async def test_schema_of_a_session_is_not_that_of_the_user(
    server: PostgresServer, pooler: PgBouncer, roles: None
) -> None:
    """A `SET search_path` of another program on a shared session is found, not used."""
    url = as_role(pooler.url, ROLES[1])
    other = await asyncpg.connect(url, statement_cache_size=0)
    await other.execute("SET search_path = 'pooled_one'")
    entry = Database("main", url, search_path="pooled_one")
    database = PostgresDatabase(entry, create=False)
    with pytest.raises(errors.InvalidConfiguration) as raised:
        await database.check()
    assert "changed by others: SET search_path" in raised.value.detail
    assert "a separate user" in str(raised.value.hint)
    await database.close()
    await other.execute("RESET search_path")
    await other.close()


def run_with(folder: Path, config: str, *arguments: str) -> Result:
    text = "[authorization]\nenabled = false\n[[databases]]\nid = 'main'\n"
    (folder / "agentctl.toml").write_text(text + config)
    return run_command(*arguments, folder=folder, environment={})


def test_wrong_setups_name_the_pooler_and_the_remedy(
    tmp_path: Path, server: PostgresServer, pooler: PgBouncer, servers: dict[str, Server]
) -> None:
    role = ROLES[0]
    url = f'url = "{as_role(pooler.url, role)}"\n'
    lost = run_with(tmp_path, url + 'search_path = "elsewhere"', "sessions", "list")
    assert lost.code == 2
    assert "has lost settings: search_path" in lost.stderr
    assert "ALTER ROLE … SET search_path = 'elsewhere'" in lost.stderr
    deaf = run_with(tmp_path, f'{url}listen_url = "{pooler.url}"', "sessions", "list")
    assert deaf.code == 2
    assert "the listen_url of database 'main' leads to a connection pooler" in deaf.stderr
    execute(server, "CREATE DATABASE elsewhere")
    other = as_role(server.url, role).replace("/postgres?", "/elsewhere?")
    wrong = run_with(tmp_path, f'{url}listen_url = "{other}"', "sessions", "list")
    assert wrong.code == 2
    assert "leads to another database" in wrong.stderr
    assert "the PostgreSQL server itself" in wrong.stderr


def test_statement_mode_is_refused(tmp_path: Path, server: PostgresServer, roles: None) -> None:
    program = find_pgbouncer()
    if program is None:
        pytest.skip(MISSING)
    with running_pgbouncer(program, server.url, "pool_mode = statement", users=ROLES) as pooler:
        config = f'url = "{as_role(pooler.url, ROLES[2])}"\n'
        refused = run_with(tmp_path, config, "db", "migrate")
    assert "the connection pooler does not support transactions" in refused.stderr
    assert "set pool_mode = transaction" in refused.stderr


@pytest.mark.skipif(
    find_old_pgbouncer() is None,
    reason="needs PgBouncer before 1.21: apt install pgbouncer (Debian 12)",
)
def test_pgbouncer_without_prepared_statements_is_refused(
    tmp_path: Path, server: PostgresServer, roles: None
) -> None:
    program = find_old_pgbouncer()
    assert program is not None
    with running_pgbouncer(program, server.url, users=ROLES) as pooler:
        direct = as_role(server.url, ROLES[0])
        assert run_with(tmp_path, f'url = "{direct}"\n', "db", "migrate").code == 0
        config = f'url = "{as_role(pooler.url, ROLES[0])}"\n'
        refused = run_with(tmp_path, config, "sessions", "list")
    assert "the connection pooler does not keep prepared statements" in refused.stderr
    assert "use PgBouncer 1.21 or later" in refused.stderr


def client_of(server: Server) -> httpx2.AsyncClient:
    headers = server.deployment.bearer("me", ADMIN)
    return httpx2.AsyncClient(base_url=server.url, headers=headers, timeout=PATIENCE)
