"""One policy for all backends: HTTP, a mounted application, and the local backend."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from agentctl.auth.policy import POLICY, Public
from agentctl.auth.principal import Principal
from agentctl.errors import AgentctlError, Unauthenticated
from agentctl.interface.operations import ROUTES, Operations
from agentctl.interface.pages import PAGES
from agentctl.interface.requests import (
    BulkDeletion,
    CancelRequest,
    DiffFilter,
    ExplainRequest,
    ForkRequest,
    MessageRequest,
    NewSession,
    Page,
    ResumeRequest,
    RetryRequest,
    RunFilter,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    VersionFilter,
)
from agentctl.interface.requests.administration import (
    AccountFilter,
    AuditFilter,
    AuditHeadFilter,
    DeliveryFilter,
    Erasure,
    Grant,
    IdleFilter,
    NewAccount,
    OverviewFilter,
    PersonalRowsFilter,
    PruneRequest,
    UsageFilter,
)
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.interface.requests.files import FileContent, FileFilter, FileUpload
from agentctl.interface.requests.halts import HaltFilter, NewHalt
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.service.service import ServiceOperations
from tests.kit.tables import every_row
from tests.policy.in_process import HttpRequest, comparable
from tests.policy.scenario import ABSENT_RUN, Scenario

Call = Callable[[ServiceOperations], Awaitable[Any]]

COMPONENTS: dict[ComponentKind, str] = {"agent": "echo", "team": "crew", "workflow": "line"}


@dataclass(frozen=True)
class Row:
    """An operation over HTTP and in the local backend.

    Attributes:
        operation: its id.
        request: method and path with query.
        call: the same operation in the local backend.
        body: the JSON body.
    """

    operation: str
    request: str
    call: Call
    body: Any = None

    def __str__(self) -> str:
        return f"{self.operation} {self.request.partition(' ')[2]}"


def system_rows() -> Iterator[Row]:
    yield Row("get_api", "GET /", lambda operations: operations.system.get_api())
    yield Row("get_health", "GET /health", lambda operations: operations.system.get_health())
    yield Row("get_readiness", "GET /ready", lambda operations: operations.system.get_readiness())
    yield Row("get_info", "GET /info", lambda operations: operations.system.get_info())
    yield Row("get_config", "GET /config", lambda operations: operations.system.get_config())
    yield Row("get_models", "GET /models", lambda operations: operations.system.get_models())
    yield Row("get_me", "GET /auth/me", lambda operations: operations.system.get_me())
    explain = ExplainRequest("GET", "/agents", "a.b")
    yield Row(
        "explain_auth",
        "POST /auth/explain",
        lambda operations: operations.system.explain_auth(explain),
        {"method": "GET", "path": "/agents", "token": "a.b"},
    )
    wanted = AuditFilter(operation="rename_session", limit=1)
    path = "GET /audit?operation=rename_session&limit=1"
    yield Row("get_audit", path, lambda operations: operations.audit.list(wanted))
    heads = AuditHeadFilter(limit=1)
    yield Row("get_audit_heads", "GET /audit/heads?limit=1", lambda p: p.audit.list_heads(heads))


def webhook_rows() -> Iterator[Row]:
    yield Row("get_budgets", "GET /budgets", lambda operations: operations.usage.list_budgets())
    yield Row(
        "get_deployment", "GET /deployment", lambda operations: operations.system.get_deployment()
    )
    yield Row("get_usage", "GET /usage", lambda operations: operations.usage.get(UsageFilter()))
    yield Row(
        "get_usage_overview",
        "GET /usage/overview?step=day",
        lambda operations: operations.usage.get_overview(OverviewFilter("day")),
    )
    yield Row("get_webhooks", "GET /webhooks", lambda operations: operations.webhooks.list())
    wanted = DeliveryFilter(state="dead")
    yield Row(
        "get_webhook_deliveries",
        "GET /webhooks/deliveries?state=dead",
        lambda operations: operations.webhooks.list_deliveries(wanted),
    )
    yield Row(
        "redeliver_webhook",
        f"POST /webhooks/deliveries/{ABSENT_RUN}/redeliver",
        lambda operations: operations.webhooks.redeliver(ABSENT_RUN),
    )
    yield Row(
        "test_webhook",
        "POST /webhooks/absent/test",
        lambda operations: operations.webhooks.test("absent"),
    )
    yield Row(
        "enable_webhook",
        "POST /webhooks/absent/enable",
        lambda operations: operations.webhooks.enable("absent"),
    )


def halt_rows() -> Iterator[Row]:
    wanted = HaltFilter("active")
    yield Row("get_halts", "GET /halts?state=active", lambda p: p.halts.list(wanted))
    yield Row("get_halt", f"GET /halts/{ABSENT_RUN}", lambda p: p.halts.get(ABSENT_RUN))
    yield Row("end_halt", f"DELETE /halts/{ABSENT_RUN}", lambda p: p.halts.end(ABSENT_RUN))
    absent = NewHalt("agent", "why", scope_id="absent")
    body = {"scope": "agent", "reason": "why", "scope_id": "absent"}
    yield Row("create_halt", "POST /halts", lambda p: p.halts.create(absent), body)


def component_rows() -> Iterator[Row]:
    for kind, name in COMPONENTS.items():
        ids = operation_ids(kind)
        path = f"/{KINDS[kind].path}"
        yield Row(ids.list, f"GET {path}", lambda operations, k=kind: operations.components.list(k))
        for one in (name, "apart", "absent"):
            yield from rows_of_component(kind, one, f"{path}/{one}")


def rows_of_component(kind: ComponentKind, name: str, path: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    run = f"{path}/runs/{ABSENT_RUN}"
    yield Row(ids.get, f"GET {path}", lambda operations: operations.components.get(kind, name))
    yield Row(
        ids.list_runs,
        f"GET {path}/runs?session_id=absent",
        lambda operations: operations.runs.list_of_component(
            kind, name, RunFilter(session_id="absent")
        ),
    )
    yield Row(ids.get_run, f"GET {run}", lambda p: p.runs.get_of_component(kind, name, ABSENT_RUN))
    of_another_kind = "theirs" if kind == "workflow" else "theirs-flow"
    for session in (of_another_kind, "a b")[name == "apart" :]:
        request = RunRequest("x", session)
        yield Row(
            ids.create_run,
            f"POST {path}/runs",
            lambda operations, request=request: operations.runs.create(kind, name, request),
            {"message": "x", "session_id": session, "stream": False},
        )
    for query, session_id in (("?session_id=theirs", "theirs"), ("", None)):
        cancel = CancelRequest(session_id)
        resume = ResumeRequest(session_id)
        yield Row(
            ids.cancel_run,
            f"POST {run}/cancel{query}",
            lambda operations, cancel=cancel: operations.runs.cancel(
                kind, name, ABSENT_RUN, cancel
            ),
        )
        yield Row(
            ids.resume_run,
            f"POST {run}/resume{query}",
            lambda operations, resume=resume: first_event(
                operations.runs.resume(kind, name, ABSENT_RUN, resume)
            ),
        )
        yield Row(
            ids.follow_run,
            f"GET {run}/events{query}",
            lambda operations, resume=resume: first_event(
                operations.runs.follow(kind, name, ABSENT_RUN, resume)
            ),
        )
        yield Row(
            ids.get_tool_call,
            f"GET {run}/tools/t1{query}",
            lambda operations, session_id=session_id: operations.runs.get_tool_call(
                kind, name, ABSENT_RUN, "t1", session_id=session_id
            ),
        )


def approval_rows() -> Iterator[Row]:
    wanted = ApprovalFilter(session_id="absent")
    yield Row(
        "get_approvals", "GET /approvals?session_id=absent", lambda p: p.approvals.list(wanted)
    )
    for kind, name in COMPONENTS.items():
        for one in (name, "absent"):
            yield from approval_rows_of_component(kind, one)


def approval_rows_of_component(kind: ComponentKind, name: str) -> Iterator[Row]:
    ids = operation_ids(kind)
    path = f"/{KINDS[kind].path}/{name}"
    approval = f"{path}/approvals/{ABSENT_RUN}"
    yield Row(
        ids.get_approval, f"GET {approval}", lambda p: p.approvals.get(kind, name, ABSENT_RUN)
    )
    yield Row(
        ids.get_versions,
        f"GET {path}/versions",
        lambda p: p.components.list_versions(kind, name, VersionFilter()),
    )
    yield Row(
        ids.get_version_diff,
        f"GET {path}/versions/diff",
        lambda p: p.components.compare_versions(kind, name, DiffFilter()),
    )
    receipt = f"GET {approval}/receipt"
    yield Row(ids.get_receipt, receipt, lambda p: p.approvals.get_receipt(kind, name, ABSENT_RUN))
    yield Row(
        ids.decide_approval,
        f"POST {approval}/decide",
        lambda p: p.approvals.decide(kind, name, ABSENT_RUN, Ruling("approve")),
        {"decision": "approve"},
    )
    yield Row(
        ids.continue_run,
        f"POST {path}/runs/{ABSENT_RUN}/continue",
        lambda p: p.runs.continue_run(kind, name, ABSENT_RUN, ContinueRequest()),
        {"stream": False},
    )
    yield Row(
        ids.retry_run,
        f"POST {path}/runs/{ABSENT_RUN}/retry",
        lambda p: p.runs.retry(kind, name, ABSENT_RUN, RetryRequest()),
        {"stream": False},
    )
    yield Row(
        ids.fork_run,
        f"POST {path}/runs/{ABSENT_RUN}/fork",
        lambda p: p.runs.fork(kind, name, ABSENT_RUN, ForkRequest(at=1)),
        {"stream": False, "at": 1},
    )


async def first_event(events: AsyncIterator[Any]) -> Any:
    return await anext(events)


def session_rows() -> Iterator[Row]:
    here = SessionFilter(SessionLocator(type="team"))
    yield Row(
        "get_sessions", "GET /sessions?type=team", lambda operations: operations.sessions.list(here)
    )
    bad = SessionFilter(page=Page(limit=0))
    yield Row(
        "get_sessions", "GET /sessions?limit=0", lambda operations: operations.sessions.list(bad)
    )
    taken = NewSession(session_id="theirs")
    yield Row(
        "create_session",
        "POST /sessions",
        lambda operations: operations.sessions.create(taken),
        {"session_id": "theirs"},
    )
    several = BulkDeletion(("absent", "mine"))
    yield Row(
        "delete_sessions",
        "DELETE /sessions",
        lambda operations: operations.sessions.delete_several(several),
        {"session_ids": ["absent", "mine"]},
    )
    for name in ("mine", "theirs", "nobodys", "absent"):
        yield from rows_of_session(name, f"/sessions/{name}")


async def read_export(operations: Operations, session_id: str) -> bytes:
    return b"".join([part async for part in operations.sessions.export(session_id)])


def rows_of_session(name: str, path: str) -> Iterator[Row]:
    yield Row("get_session_by_id", f"GET {path}", lambda operations: operations.sessions.get(name))
    yield Row(
        "get_session_runs",
        f"GET {path}/runs",
        lambda operations: operations.sessions.list_runs(name),
    )
    yield Row(
        "export_session", f"GET {path}/export", lambda operations: read_export(operations, name)
    )
    run = f"{path}/runs/{ABSENT_RUN}"
    yield Row("get_session_run", f"GET {run}", lambda p: p.sessions.get_run(name, ABSENT_RUN))
    long = "x" * 256
    patch = SessionPatch({"session_name": long})
    yield Row(
        "update_session",
        f"PATCH {path}",
        lambda operations: operations.sessions.update(name, patch),
        {"session_name": long},
    )
    yield Row(
        "rename_session",
        f"POST {path}/rename",
        lambda operations: operations.sessions.rename(name, long),
        {"session_name": long},
    )
    yield Row(
        "summarize_session",
        f"POST {path}/summarize",
        lambda operations: operations.sessions.summarize(name),
    )
    yield Row(
        "hold_session",
        f"POST {path}/hold",
        lambda operations: operations.sessions.hold(name, " "),
        {"reason": " "},
    )
    old = IdleFilter(36_500)
    yield Row(
        "get_idle_sessions",
        "GET /retention/sessions?idle_days=36500",
        lambda operations: operations.sessions.list_idle(old),
    )
    prune = PruneRequest(36_500, (name,), "nowhere")
    yield Row(
        "prune_sessions",
        "POST /retention/sessions/prune?db_id=nowhere",
        lambda operations: operations.sessions.prune(prune),
        {"idle_days": 36_500, "session_ids": [name]},
    )
    yield Row(
        "get_user_data",
        "GET /user-data?user_id=none",
        lambda operations: operations.users.get_data("none"),
    )
    rows = PersonalRowsFilter("none", "usage", "nowhere")
    yield Row(
        "get_user_rows",
        "GET /user-data/rows?user_id=none&part=usage&db_id=nowhere",
        lambda operations: operations.users.list_rows(rows),
    )
    bad = Erasure("none", cursor="bad")
    yield Row(
        "erase_user_data",
        "POST /user-data/erase",
        lambda operations: operations.users.erase(bad),
        {"user_id": "none", "cursor": "bad"},
    )
    nowhere = SessionLocator(db_id="nowhere")
    yield Row(
        "release_session",
        f"DELETE {path}/hold?db_id=nowhere",
        lambda operations: operations.sessions.release(name, nowhere),
    )
    yield Row(
        "delete_session",
        f"DELETE {path}?db_id=nowhere",
        lambda operations: operations.sessions.delete(name, nowhere),
    )


def other_rows() -> Iterator[Row]:
    absent = RunFilter(session_id="absent")
    yield Row(
        "get_runs", "GET /runs?session_id=absent", lambda operations: operations.runs.list(absent)
    )
    yield Row(
        "get_run", f"GET /runs/{ABSENT_RUN}", lambda operations: operations.runs.get(ABSENT_RUN)
    )
    yield Row(
        "get_run_messages",
        f"GET /runs/{ABSENT_RUN}/messages",
        lambda operations: operations.runs.list_messages(ABSENT_RUN),
    )
    yield Row(
        "send_message",
        f"POST /runs/{ABSENT_RUN}/messages",
        lambda operations: operations.runs.send_message(ABSENT_RUN, MessageRequest("hello")),
        {"message": "hello"},
    )
    yield Row(
        "get_run_causes",
        f"GET /runs/{ABSENT_RUN}/causes",
        lambda operations: operations.runs.get_causes(ABSENT_RUN),
    )
    yield Row(
        "get_failures",
        "GET /failures?session_id=absent",
        lambda operations: operations.runs.list_failures(absent),
    )
    yield Row(
        "get_run_model_calls",
        f"GET /runs/{ABSENT_RUN}/model-calls",
        lambda operations: operations.runs.list_model_calls(ABSENT_RUN),
    )
    yield Row(
        "get_run_model_call",
        f"GET /runs/{ABSENT_RUN}/model-calls/model-1",
        lambda operations: operations.runs.get_model_call(ABSENT_RUN, "model-1"),
    )
    path = "GET /service-accounts?name=one"
    named = AccountFilter("one")
    yield Row("list_service_accounts", path, lambda operations: operations.accounts.list(named))
    path = "DELETE /service-accounts/absent"
    yield Row(
        "revoke_service_account", path, lambda operations: operations.accounts.revoke("absent")
    )
    for scope in ("agents:read", "sessions:write", "agent_os:admin", "agents:reed"):
        account = NewAccount("one", (Grant(scope),))
        yield Row(
            "create_service_account",
            "POST /service-accounts",
            lambda operations, account=account: operations.accounts.create(account),
            {"name": "one", "scopes": [{"scope": scope}]},
        )


def memory_rows() -> Iterator[Row]:
    wanted = MemoryFilter(user_id="absent")
    yield Row(
        "get_memories",
        "GET /memories?user_id=absent",
        lambda operations: operations.memories.list(wanted),
    )
    yield Row(
        "get_memory_topics",
        "GET /memory_topics?user_id=absent",
        lambda operations: operations.memories.list_topics(user_id="absent"),
    )
    blank = NewMemory(" ")
    yield Row(
        "create_memory",
        "POST /memories",
        lambda operations: operations.memories.create(blank),
        {"memory": " "},
    )
    path = f"/memories/{ABSENT_RUN}"
    yield Row("get_memory", f"GET {path}", lambda operations: operations.memories.get(ABSENT_RUN))
    patch = MemoryPatch("x")
    yield Row(
        "update_memory",
        f"PATCH {path}",
        lambda operations: operations.memories.update(ABSENT_RUN, patch),
        {"memory": "x"},
    )
    yield Row(
        "delete_memory", f"DELETE {path}", lambda operations: operations.memories.delete(ABSENT_RUN)
    )
    deletion = MemoryDeletion((ABSENT_RUN,))
    yield Row(
        "delete_memories",
        "DELETE /memories",
        lambda operations: operations.memories.delete_several(deletion),
        {"memory_ids": [ABSENT_RUN]},
    )


def file_rows() -> Iterator[Row]:
    absent = f"/files/{ABSENT_RUN}"
    wanted = FileFilter(user_id="absent")
    upload = FileUpload("a/b")
    yield Row("get_files", "GET /files?user_id=absent", lambda o: o.files.list(wanted))
    yield Row("get_file", f"GET {absent}", lambda o: o.files.get(ABSENT_RUN))
    yield Row(
        "get_file_content",
        f"GET {absent}/content",
        lambda o: anext(o.files.get_content(ABSENT_RUN)),
    )
    content = FileContent(b"x")
    yield Row(
        "upload_file", "POST /files?name=a/b", lambda o: o.files.upload(upload, content, size=1), {}
    )
    yield Row("delete_file", f"DELETE {absent}", lambda o: o.files.delete(ABSENT_RUN))


ROWS = [
    *system_rows(), *component_rows(), *approval_rows(), *webhook_rows(), *halt_rows(),
    *session_rows(), *memory_rows(), *file_rows(), *other_rows(),
]  # fmt: skip
"""Requests that change nothing, for any caller."""

MOUNTED_CALLERS = ("nobody", "powerless", "me", "admin")
"""The callers that ask the mounted application, whose paths alone are others."""

WITHOUT_A_METHOD = {name for name in ROUTES if "docs" in name or "redirect" in name}
WITHOUT_A_METHOD |= set(PAGES)


def test_every_operation_has_a_row() -> None:
    assert {row.operation for row in ROWS} == set(ROUTES) - WITHOUT_A_METHOD


@pytest.fixture(scope="module")
def mounted(scenario_data: Scenario) -> Iterator[httpx2.AsyncClient]:
    """Yield a client of an application that mounts ours below a path, behind a proxy path."""
    inner = scenario_data.served.app
    outside = Starlette(routes=[Mount("/api/v1", app=inner)])

    async def proxied(scope: Any, receive: Any, send: Any) -> None:
        path = "/proxy" + scope["path"]
        await outside({**scope, "root_path": "/proxy", "path": path}, receive, send)

    with scenario_data.served.through(proxied, "http://inside/api/v1") as client:
        yield client


async def call_locally(scenario_data: Scenario, ask: HttpRequest, row: Row) -> tuple[int, Any]:
    """Return status and body of the local backend for the principal of a request."""
    service = scenario_data.served.service
    header = ask.headers.get("Authorization")
    try:
        try:
            principal = await service.hosting.verifier().identify(header)
        except Unauthenticated:
            if not isinstance(POLICY[row.operation], Public):
                raise
            principal = Principal(None)
        answer = await row.call(service.operations_for(principal))
    except AgentctlError as error:
        return error.status, error.body()
    return 200, answer.raw if isinstance(answer, Document) else answer


def http_result(answer: httpx2.Response) -> tuple[int, Any]:
    failed = answer.status_code >= 400
    return answer.status_code, json.loads(answer.content) if failed else answer.content


@every_row("row", ROWS)
def test_every_backend_has_the_same_rule(
    scenario_data: Scenario, mounted: httpx2.AsyncClient, row: Row
) -> None:
    asks = {who: scenario_data.ask(who, row.request, row.body) for who in scenario_data.bearers}
    alone = dict(zip(asks, scenario_data.served.answers(list(asks.values())), strict=True))
    below = scenario_data.served.answers([asks[who] for who in MOUNTED_CALLERS], mounted)

    for who, other in zip(MOUNTED_CALLERS, below, strict=True):
        assert other.status_code == alone[who].status_code, who
        assert is_new_report(row, other) or comparable(other) == comparable(alone[who]), who

    for who, ask in asks.items():
        here = scenario_data.served.call(lambda ask=ask: call_locally(scenario_data, ask, row))
        assert here[0] == alone[who].status_code, who
        assert is_new_report(row, alone[who]) or here == http_result(alone[who]), who


def is_new_report(row: Row, answer: httpx2.Response) -> bool:
    """Return True for a report in which heartbeats, or times of use, change with each request."""
    changing = ("get_deployment", "list_service_accounts")
    return row.operation in changing and answer.status_code == 200


def test_rows_have_every_status(scenario_data: Scenario) -> None:
    # On a busy machine a server may truthfully not be ready.
    rows = [row for row in ROWS if row.operation != "get_readiness"]
    asks = [
        scenario_data.ask(who, row.request, row.body)
        for row in rows
        for who in ("nobody", "powerless", "admin")
    ]
    answers = scenario_data.served.answers(asks)
    assert [answer.text for answer in answers if answer.status_code == 503] == []
    assert {answer.status_code for answer in answers} == {200, 400, 401, 403, 404, 409, 422}
