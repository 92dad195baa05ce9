"""Audit entries of the HTTP server: refused requests and counts of 401s."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import apsw
import httpx2
import orjson
import pytest

from agentctl.auth.explain.checks import CHECKS
from agentctl.auth.policy import authorize
from agentctl.auth.principal import Principal, local_principal
from agentctl.errors import InvalidToken, Unauthenticated
from agentctl.interface.operations import ROUTES
from agentctl.interface.requests import SessionFilter
from agentctl.interface.requests.administration import AuditFilter
from agentctl.server import create_app, running
from agentctl.server.routing import count_rejection
from agentctl.service.audit_log import EntryCounter, list_changing_operations
from agentctl.service.service import Service
from agentctl.store.repositories.audit import AuditRow
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment
from tests.server.test_mounting import bearer, client

FIELDS = ("operation", "resource", "outcome", "status", "reason")
COUNTS = "SELECT operation, resource, reason, request_id, count FROM audit_log ORDER BY seq"
ROWS = f"SELECT principal, via, request_id, {', '.join(FIELDS)} FROM audit_log ORDER BY seq"


def rows(deployment: Deployment, statement: str = ROWS) -> list[tuple[Any, ...]]:
    """Return the audit entries of the database file."""
    path = deployment.folder / "main.db"
    if not path.exists():
        return []
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as file:
        file.set_busy_timeout(5_000)
        return file.execute(statement).fetchall()


def counted(deployment: Deployment) -> Counter[str]:
    """Return the sums of the counted 401s by cause."""
    found: Counter[str] = Counter()
    for principal, via, request_id, operation, resource, outcome, status, _ in rows(deployment):
        if operation == "authenticate":
            assert (principal, via, request_id, resource) == (None, "http", None, None)
            assert (outcome, status) == ("denied", 401)
    for operation, _, reason, _, count in rows(deployment, COUNTS):
        if operation == "authenticate":
            found[reason] += count
    return found


@contextlib.asynccontextmanager
async def served(deployment: Deployment) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_app(deployment.settings)
    async with running(app), client(app) as http:
        yield http


async def test_the_policy_is_asked_once_for_a_request(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[str]()

    def count(principal: Principal | None, operation: str, path: Mapping[str, str]) -> None:
        asked.append(operation)
        authorize(principal, operation, path)

    monkeypatch.setattr("agentctl.auth.policy.authorize", count)
    monkeypatch.setattr("agentctl.service.reads.configured.authorize", count)

    app = create_app(deployment.settings)
    async with running(app), client(app) as http:
        assert (await http.get("/sessions", headers=bearer(deployment, ADMIN))).status_code == 200
        assert asked == ["get_sessions"]

        # A call of the operation itself asks, too.
        service = app.state.agentctl.service
        await service.operations_for(local_principal("ann")).sessions.list(SessionFilter())
        assert asked == ["get_sessions", "get_sessions"]


async def test_entry_has_the_request_id_of_the_response(deployment: Deployment) -> None:
    async with served(deployment) as http:
        strong = bearer(deployment, ADMIN)
        ids = []
        for session_id in ("s1", "s2"):
            body = {"session_id": session_id}
            ids.append((await http.post("/sessions", json=body, headers=strong)).headers)
        ids.append((await http.post("/sessions/s1/rename", json={}, headers=strong)).headers)
        found = rows(deployment)
        assert [row[2] for row in found] == [headers["x-request-id"] for headers in ids]
        assert {row[:2] for row in found} == {("me", "http")}


CHECKED_BY_THE_RUN = {"send_message"}
"""Operations whose scope depends on the component of a run, so the run is looked up before."""


async def test_every_403_has_an_entry(deployment: Deployment) -> None:
    """For every operation, also if the request has other faults."""
    expected = []
    async with served(deployment) as http:
        for name, (method, template) in ROUTES.items():
            path = template.replace("{", "x-").replace("}", "%2C")
            answer = await http.request(
                method, f"{path}?limit=x", headers=bearer(deployment), content=b"{"
            )
            if answer.status_code == 403:
                wanted = answer.json().get("required_scopes", [])
                expected.append((answer.headers["x-request-id"], name, len(wanted)))
        found = [row for row in rows(deployment) if row[3] not in CHECKED_BY_THE_RUN]
        head = await http.head("/sessions/s1", headers=bearer(deployment))
        assert head.status_code == 403
    assert rows(deployment, COUNTS)[-1][::4] == ("get_session_by_id", 1)
    told = []
    for principal, via, request_id, operation, resource, outcome, status, reason in found:
        assert (principal, via, outcome, status) == ("me", "http", "denied", 403)
        assert ("{" in ROUTES[operation].template) == (resource is not None)
        assert resource is None or resource.count(",") == ROUTES[operation].template.count("{") - 1
        told.append((request_id, operation, 0 if reason == "FORBIDDEN" else reason.count(", ") + 1))
    assert told == expected
    assert {name for _, name, _ in told} >= list_changing_operations() - CHECKED_BY_THE_RUN


async def test_invalid_change_requests_have_an_entry(deployment: Deployment) -> None:
    strong = bearer(deployment, ADMIN)
    json = {**strong, "content-type": "application/json"}
    async with served(deployment) as http:
        await http.post("/sessions", json={"session_id": "s1"}, headers=strong)
        requests: list[tuple[str, str, dict[str, str], bytes]] = [
            ("POST", "/agents/echo/runs", json, b"{"),
            ("POST", "/agents/echo/runs", {**strong, "content-type": "text/plain"}, b"x"),
            ("POST", "/agents/echo/runs", json, b'{"message": "x", "secret": 1}'),
            ("POST", "/agents/none/runs", json, b'{"message": "secret"}'),
            ("POST", "/agents/echo/runs/none/cancel?wait=secret", strong, b""),
            ("PATCH", "/sessions/s1", json, b"[]"),
            ("PATCH", "/sessions/none", json, b"secret"),
            ("DELETE", "/sessions/s1?cancel=secret", strong, b""),
            ("DELETE", "/sessions/a%00b", strong, b""),
            ("POST", "/sessions?type=secret", json, b"{}"),
        ]
        statuses = []
        for method, path, headers, content in requests:
            answer = await http.request(method, path, headers=headers, content=content)
            statuses.append(answer.status_code)
        # Not a change, or nothing at all: no row.
        for method, path in (("GET", "/sessions?limit=0"), ("GET", "/none"), ("PUT", "/sessions")):
            assert (await http.request(method, path, headers=strong)).status_code in (404, 405, 422)
    found = [row[3:] for row in rows(deployment)][1:]
    assert [row[3] for row in found] == statuses
    assert found == [
        ("create_agent_run", "agent:echo", "failed", 400, "BAD_REQUEST"),
        ("create_agent_run", "agent:echo", "failed", 415, "UNSUPPORTED_MEDIA_TYPE"),
        ("create_agent_run", "agent:echo", "failed", 422, "VALIDATION_ERROR"),
        ("create_agent_run", "agent:none", "failed", 404, "NOT_FOUND"),
        ("cancel_agent_run", "agent:echo,run:none", "failed", 404, "NOT_FOUND"),
        ("update_session", "session:s1", "failed", 422, "VALIDATION_ERROR"),
        ("update_session", "session:none", "failed", 404, "NOT_FOUND"),
        ("delete_session", "session:s1", "failed", 422, "VALIDATION_ERROR"),
        ("delete_session", "session:a%00b", "failed", 404, "NOT_FOUND"),
        ("create_session", None, "failed", 422, "VALIDATION_ERROR"),
    ]
    assert "secret" not in str(found)


async def test_unwritable_audit_log_fails_changes_but_not_denials(deployment: Deployment) -> None:
    async with served(deployment) as http:
        strong = bearer(deployment, ADMIN)
        await http.post("/sessions", json={"session_id": "s1"}, headers=strong)
        with contextlib.closing(apsw.Connection(str(deployment.folder / "main.db"))) as file:
            file.set_busy_timeout(5_000)
            file.execute("DROP TABLE audit_log")
        answer = await http.post("/sessions/s1/rename", json={"session_name": "x"}, headers=strong)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json() == {
            "detail": "The audit log cannot be written, so nothing was changed",
            "error_code": "UNAVAILABLE",
        }
        body = {"message": "x", "session_id": "s1"}
        assert (await http.post("/agents/echo/runs", json=body, headers=strong)).status_code == 503
        found = await http.get("/sessions/s1", headers=strong)
        assert (found.json()["session_name"], found.json()["chat_history"]) == ("", [])
        denied = await http.get("/sessions/s1", headers=bearer(deployment))
        assert denied.status_code == 403


async def test_401s_are_counted_by_cause_and_written_at_the_end(deployment: Deployment) -> None:
    expired = deployment.token("me", ADMIN, seconds=1)
    async with served(deployment) as http:
        for _ in range(30):
            assert (await http.get("/sessions")).status_code == 401
        for token in ("not.a.token", "x", "a b"):
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/sessions", "/no/such/path"):
                assert (await http.get(path, headers=headers)).status_code == 401
            assert (await http.get("/health", headers=headers)).status_code == 200
        strong = {"Authorization": f"Bearer {expired}"}
        await wait_until(_refused(http, strong))
        assert rows(deployment) == []
    found = counted(deployment)
    assert found["no credential"] == 30
    assert found["claims.exp"] >= 1
    assert sum(found.values()) == 30 + 6 + found["claims.exp"]
    assert found.keys() <= {"no credential", *CHECKS}
    assert len(rows(deployment)) == len(found)


def _refused(http: httpx2.AsyncClient, headers: dict[str, str]) -> Any:
    async def look() -> bool:
        return (await http.get("/sessions", headers=headers)).status_code == 401

    return look


async def test_counts_are_written_periodically_with_few_causes(deployment: Deployment) -> None:
    async with Service.open(deployment.settings, create=True) as service:
        counter = EntryCounter(service.hosting.audit_log.commit, seconds=0.05)
        for number in range(1_000):
            count_rejection(counter, InvalidToken("x", check=f"secret {number}"))
            count_rejection(counter, InvalidToken("secret", check="signature"))
            count_rejection(counter, Unauthenticated())
        await wait_until(lambda: len(rows(deployment)) == 3)
        count_rejection(counter, Unauthenticated())
        await wait_until(lambda: len(rows(deployment)) == 4)
        count_rejection(counter, Unauthenticated())
        await counter.close()
        assert counted(deployment) == {"other": 1_000, "signature": 1_000, "no credential": 1_002}
        assert len(rows(deployment)) == 5
        assert "secret" not in str(rows(deployment))


async def test_unwritten_counts_are_kept(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    async with Service.open(deployment.settings, create=True) as service:
        counter = EntryCounter(service.hosting.audit_log.commit, seconds=0.05)
        assert service.hosting.databases.system.id == "main"  # and it is open
        with contextlib.closing(apsw.Connection(str(deployment.folder / "main.db"))) as file:
            file.set_busy_timeout(5_000)
            file.execute("ALTER TABLE audit_log RENAME TO elsewhere")
            count_rejection(counter, Unauthenticated())
            await wait_until(lambda: "audit entries wait for the database" in caplog.text)
            count_rejection(counter, Unauthenticated())
            file.execute("ALTER TABLE elsewhere RENAME TO audit_log")
        await wait_until(lambda: bool(rows(deployment)))
        await counter.close()
        assert counted(deployment) == {"no credential": 2}


async def test_401s_do_not_write_one_entry_each(deployment: Deployment) -> None:
    """Many concurrent 401s result in a few entries."""
    async with served(deployment) as http:
        await asyncio.gather(*(http.get("/sessions") for _ in range(500)))
    assert counted(deployment) == {"no credential": 500}
    assert len(rows(deployment)) == 1


async def test_every_server_writes_its_counts(deployment: Deployment) -> None:
    """Each worker of a server does so, too."""
    weak = bearer(deployment)
    async with served(deployment) as one, served(deployment) as other:
        for http in (one, other):
            for _ in range(20):
                assert (await http.get("/sessions")).status_code == 401
            for _ in range(3):
                assert (await http.get("/config", headers=weak)).status_code == 403
        # The first denial at each server.
        assert [row[5] for row in rows(deployment)] == ["denied"] * 2

    assert counted(deployment) == {"no credential": 40}
    found = rows(deployment, COUNTS)
    assert [row[4] for row in found if row[0] == "get_config"] == [1, 1, 2, 2]
    assert len(found) == 4 + 2


async def _deny_repeatedly(deployment: Deployment) -> None:
    weak = bearer(deployment)
    other = deployment.bearer("you")
    async with served(deployment) as http:
        for number in range(60):
            path = f"/sessions/s{number % 2}"
            assert (await http.delete(path, headers=weak)).status_code == 403
        for _ in range(5):
            assert (await http.get("/config", headers=weak)).status_code == 403
        assert (await http.get("/config", headers=other)).status_code == 403
        first = rows(deployment, COUNTS)
        assert [(row[0], row[1], row[4]) for row in first] == [
            ("delete_session", "session:s0", 1),
            ("get_config", None, 1),
            ("get_config", None, 1),
        ]
        assert all(row[3] for row in first)
    later = rows(deployment, COUNTS)[3:]
    assert later == [
        ("delete_session", None, None, None, 59),
        ("get_config", None, first[1][2], None, 4),
    ]


def test_denials_of_a_caller_and_operation_are_counted(deployment: Deployment) -> None:
    """F15: a token without scopes cannot fill the audit log."""
    asyncio.run(_deny_repeatedly(deployment))
    config = ("--config", str(deployment.path))
    shown = [
        run_command("audit", *arguments, *config, environment={}, folder=deployment.folder)
        for arguments in (
            ("list", "-o", "tsv"),
            ("list", "-o", "table"),
            ("export",),
            ("list", "-o", "json"),
        )
    ]
    assert shown[0].lines[0].endswith("\tcount")
    assert "COUNT" in shown[1].lines[0]
    assert [line.rpartition("\t")[2] for line in shown[0].lines[1:]] == ["4", "59", "1", "1", "1"]
    assert [orjson.loads(line)["count"] for line in shown[2].lines] == [4, 59, 1, 1, 1]
    assert [row["count"] for row in orjson.loads(shown[3].raw)["data"]] == [4, 59, 1, 1, 1]


async def test_repeated_denials_have_one_entry_a_minute(deployment: Deployment) -> None:
    async with Service.open(deployment.settings, create=True) as service:
        log = service.hosting.audit_log
        log.counter = EntryCounter(log.commit, seconds=0.3)
        entry = AuditRow(1, "me", "http", "get_config", None, "denied", 403, "x", "id")
        loop = asyncio.get_running_loop()
        began = loop.time()
        sent = 0
        async with asyncio.timeout(PATIENCE):
            while loop.time() < began + 1.2 or len(rows(deployment, COUNTS)) < 2:
                await log.record_refusal(entry)
                sent += 1
                await asyncio.sleep(0.001)
        minutes = (loop.time() - began) / 0.3
        await log.counter.close()
    found = rows(deployment, COUNTS)
    assert sum(row[4] for row in found) == sent
    assert 2 <= len(found) <= minutes + 2


async def test_denial_without_a_database_is_counted(deployment: Deployment) -> None:
    async with served(deployment) as http:
        assert (await http.get("/config", headers=bearer(deployment, ADMIN))).status_code == 200
        with contextlib.closing(apsw.Connection(str(deployment.folder / "main.db"))) as file:
            file.set_busy_timeout(5_000)
            file.execute("ALTER TABLE audit_log RENAME TO elsewhere")
            assert (await http.get("/config", headers=bearer(deployment))).status_code == 403
            file.execute("ALTER TABLE elsewhere RENAME TO audit_log")
    assert [row[::4] for row in rows(deployment, COUNTS)] == [("get_config", 1)]


async def test_audit_log_is_paged_over_http(deployment: Deployment) -> None:
    async with served(deployment) as http:
        for number in range(7):
            body = {"session_id": f"s{number}"}
            await http.post("/sessions", json=body, headers=bearer(deployment, ADMIN))
        auditor = bearer(deployment, "audit:read")
        seen: list[str] = []
        query = ""
        for _ in itertools.count():
            page = (await http.get(f"/audit?limit=3{query}", headers=auditor)).json()
            assert page.keys() == {"data", "meta"}
            assert page["meta"].keys() == {"next_cursor"}
            seen += [row["resource"] for row in page["data"]]
            if page["meta"]["next_cursor"] is None:
                break
            query = f"&cursor={page['meta']['next_cursor']}"
        assert seen == [f"session:s{number}" for number in reversed(range(7))]


async def test_local_command_reads_entries_of_the_server(deployment: Deployment) -> None:
    async with served(deployment) as http:
        await http.post("/sessions", json={}, headers=bearer(deployment, ADMIN))
        async with Service.open(deployment.settings) as service:
            page = (
                await service.operations_for(local_principal("ann")).audit.list(AuditFilter())
            ).value
            assert [row["principal"] for row in page["data"]] == ["me"]
