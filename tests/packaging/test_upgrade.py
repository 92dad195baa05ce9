"""The last release on the newest schema: alone, and next to servers of this version."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing
from pathlib import Path
from uuid import uuid4

import asyncpg
import httpx2
import pytest

from tests.kit.concurrent_callers import open_client
from tests.kit.conditions import wait_until
from tests.kit.deployment import SQLITE_DATABASES, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, base_environment, serve_config
from tests.kit.releases import NEW, Program, build_program, extract_last_release
from tests.packaging.programs import PACKAGING, needs_packaging_mode
from tests.packaging.test_release import install

ROOT = PACKAGING.parent
LATER_VERSION = 9_000
APPROVED = """
[[agents]]
id = "careful"
name = "Careful"
model = "tool-add"
tools = ["world_tools:add"]
approve = { add = "user" }
"""


@pytest.fixture(
    scope="module", params=["source", pytest.param("wheel", marks=needs_packaging_mode)]
)
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The program of the last release: its source, or an installation of its wheel."""
    folder = tmp_path_factory.mktemp("release")
    source = extract_last_release(folder)
    if source is None:
        pytest.skip("needs the commit of the last release: git clone")
    if request.param == "source":
        return build_program(source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    subprocess.run([*pip, *options, str(source)], check=True)
    (wheel,) = folder.glob("*.whl")
    packages = str(Path(httpx2.__file__).parents[1])
    programs = install(wheel, folder / "environment", packages=packages)
    return Program((str(programs / "agentctl"),), {})


@pytest.fixture(params=["sqlite", "postgres"])
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, model_endpoint: ModelEndpoint, old: Program
) -> Iterator[Deployment]:
    """A deployment of the last release, with the newest schema and additions of a later one."""
    if request.param == "sqlite":
        created = create_deployment(tmp_path, model_endpoint.base_url, extra=APPROVED)
        migrate(created, old)
        for name in SQLITE_DATABASES:
            with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
                rows = connection.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")
                names = [row[0] for row in rows if not row[0].startswith("sqlite_")]
                connection.executescript(add_to_schema(names))
        yield created
        return
    url = request.getfixturevalue("postgres_url")
    schemas = {name: f"{name}_{uuid4().hex}" for name in SQLITE_DATABASES}
    places = {name: f'url = "{url}"\nsearch_path = "{at}"' for name, at in schemas.items()}
    created = create_deployment(tmp_path, model_endpoint.base_url, extra=APPROVED, databases=places)
    migrate(created, old)
    asyncio.run(add_to_postgres(url, list(schemas.values())))
    yield created
    asyncio.run(drop_schemas(url, list(schemas.values())))


def migrate(deployment: Deployment, old: Program) -> None:
    """Create the databases with the last release, and migrate them with this version."""
    for program in (old, NEW):
        done = program.run(deployment, "db", "migrate")
        assert done.returncode == 0, done.stderr


def add_to_schema(tables: Sequence[str]) -> str:
    """Return statements that add to a schema what later migrations may add."""
    columns = "".join(f"ALTER TABLE {table} ADD COLUMN later TEXT;" for table in tables)
    return (
        f"{columns} CREATE TABLE later (id TEXT); CREATE INDEX later_runs ON runs (later);"
        f"INSERT INTO schema_version (version, applied_at) VALUES ({LATER_VERSION}, 1);"
    )


async def add_to_postgres(url: str, schemas: list[str]) -> None:
    connection = await asyncpg.connect(url)
    for schema in schemas:
        await connection.execute(f"SET search_path TO {schema}")
        rows = await connection.fetch(
            "SELECT tablename FROM pg_tables WHERE schemaname = $1", schema
        )
        await connection.execute(add_to_schema([row[0] for row in rows]))
    await connection.close()


async def drop_schemas(url: str, schemas: list[str]) -> None:
    connection = await asyncpg.connect(url)
    for schema in schemas:
        await connection.execute(f"DROP SCHEMA {schema} CASCADE")
    await connection.close()


class Servers:
    """Servers of both versions on one deployment, each with a client of an administrator."""

    def __init__(self, deployment: Deployment, old: Program) -> None:
        self.deployment = deployment
        self.old = old
        self._number = 0
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def start(self, program: Program) -> tuple[ServerProcess, httpx2.AsyncClient]:
        self._number += 1
        log = f"server-{self._number}.log"
        environment = base_environment() | program.variables
        server = await asyncio.to_thread(
            self._stack.enter_context,
            serve_config(
                self.deployment.path, log=log, environment=environment, program=program.command
            ),
        )
        client = await self._stack.enter_async_context(open_client(self.deployment, server.url))
        return server, client


async def work_on_both(a: httpx2.AsyncClient, b: httpx2.AsyncClient) -> None:
    """Have the server of `a` execute runs; read, cancel and decide them through `b`."""
    session = uuid4().hex
    body = {"message": "hello", "session_id": session, "stream": "false"}
    run = (await a.post("/agents/echo/runs", data=body)).raise_for_status().json()
    assert (run["status"], run["content"]) == ("COMPLETED", "hello")
    events = (await a.post("/agents/echo/runs", data=body | {"stream": "true"})).text
    assert events.count("event: RunCompleted") == 1, events
    streamed = re.findall(r'"run_id":"([^"]+)"', events)[0]
    followed = await b.get(f"/agents/echo/runs/{streamed}/events?session_id={session}")
    assert list_data(followed.raise_for_status().text) == list_data(events)
    stored = (await b.get(f"/sessions/{session}")).raise_for_status().json()
    assert stored["session_id"] == session
    runs = (await b.get(f"/sessions/{session}/runs")).raise_for_status().json()
    assert len(runs if isinstance(runs, list) else runs["data"]) == 2
    listed = (await b.get("/sessions?limit=100")).raise_for_status().json()["data"]
    assert session in [each["session_id"] for each in listed]

    hanging = await a.post("/agents/hang/runs", data=body | {"background": "true"})
    run_id = hanging.raise_for_status().json()["run_id"]
    await reach(b, "hang", run_id, "RUNNING")
    (await b.post(f"/agents/hang/runs/{run_id}/cancel")).raise_for_status()
    await reach(a, "hang", run_id, "CANCELLED")

    call = body | {"message": '{"a": 1, "b": 2}'}
    paused = (await a.post("/agents/careful/runs", data=call)).raise_for_status().json()
    assert paused["status"] == "PAUSED", paused
    (waiting,) = (await b.get("/approvals?status=pending")).raise_for_status().json()["data"]
    at = f"/agents/careful/approvals/{waiting['approval_id']}/decide"
    decision = {"decision": "approve", "arguments_hash": waiting["arguments_hash"]}
    (await b.post(at, json=decision)).raise_for_status()
    await reach(a, "careful", paused["run_id"], "COMPLETED")


def list_data(stream: str) -> list[str]:
    """Return the ids and the data of server-sent events."""
    return [line for line in stream.splitlines() if line.startswith(("id:", "data:"))]


async def reach(client: httpx2.AsyncClient, agent: str, run_id: str, status: str) -> None:
    """Wait until a run has a status, as a server reports it."""

    async def has_status() -> bool:
        run = (await client.get(f"/agents/{agent}/runs/{run_id}")).json()
        return bool(run["status"] == status)

    await wait_until(has_status)


async def test_old_and_new_servers_share_a_newer_schema(
    deployment: Deployment, old: Program
) -> None:
    async with Servers(deployment, old) as servers:
        (old_process, a), (new_process, b) = await asyncio.gather(
            servers.start(old), servers.start(NEW)
        )
        for process in (old_process, new_process):
            assert f"schema {LATER_VERSION} is newer than this agentctl" in process.log_text
        await work_on_both(a, b)
        await work_on_both(b, a)
        done = await asyncio.to_thread(NEW.run, deployment, "db", "migrate", "--finish")
        assert (done.returncode, f"pid {old_process.process.pid} on" in done.stderr) == (6, True)
        await lose_server(old_process, a, b)
        _, again = await servers.start(old)
        await lose_server(new_process, b, again)


async def lose_server(
    process: ServerProcess, client: httpx2.AsyncClient, other: httpx2.AsyncClient
) -> None:
    """Kill a server with a live run, which the other server ends."""
    body = {"message": "hello", "session_id": uuid4().hex, "background": "true"}
    started = await client.post("/agents/hang/runs", data=body | {"stream": "false"})
    run_id = started.raise_for_status().json()["run_id"]
    await reach(other, "hang", run_id, "RUNNING")
    process.process.kill()
    await asyncio.to_thread(process.process.wait)
    await reach(other, "hang", run_id, "ERROR")
    run = (await other.get(f"/agents/hang/runs/{run_id}")).json()
    assert run["error"]["code"] == "WORKER_LOST", run


@pytest.mark.parametrize(
    "deployment", ["sqlite", pytest.param("postgres", marks=needs_packaging_mode)], indirect=True
)
def test_old_commands_work_with_a_newer_schema(deployment: Deployment, old: Program) -> None:
    done = old.run(deployment, "db", "status", "-o", "json")
    states = [each["state"] for each in json.loads(done.stdout)]
    assert (done.returncode, states) == (0, ["ahead", "ahead"]), done.stderr
    done = old.run(deployment, "db", "migrate")
    assert (done.returncode, done.stderr.count("was not changed")) == (0, 2), done.stderr
    done = old.run(deployment, "doctor", "-o", "json")
    found = json.loads(done.stdout)
    # The PostgreSQL of the tests does not flush.
    wrong = [each for each in found if each["verdict"] == "wrong" and "is off" not in each["what"]]
    assert (wrong, done.stdout.count("is newer than this agentctl")) == ([], 2), done.stderr
    # Locally, without a server.
    run = ("runs", "start", "--agent", "echo", "--message", "hello", "--session", "local")
    done = old.run(deployment, *run)
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    done = NEW.run(deployment, "sessions", "list", "-o", "name")
    assert (done.returncode, done.stdout) == (0, "local\n"), done.stderr
    done = NEW.run(deployment, "db", "migrate", "--finish")
    assert done.returncode == 0, done.stderr
    done = old.run(deployment, *run)
    assert (done.returncode, "is newer than this agentctl" in done.stderr) == (1, True)
