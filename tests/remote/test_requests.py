"""Each operation sends exactly the request of docs/contract.md "Routes"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.declarations import find_address
from agentctl.interface.operations import FAMILIES, Operations
from agentctl.interface.requests import (
    BulkDeletion,
    CancelRequest,
    DiffFilter,
    ExplainRequest,
    ForkRequest,
    MessageRequest,
    NewSession,
    Page,
    RetryRequest,
    RunFilter,
    RunRequest,
    RunView,
    SessionFilter,
    SessionLocator,
    SessionPatch,
    SessionRunsQuery,
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
from agentctl.interface.requests.halts import HaltFilter, NewHalt
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.document import Document
from agentctl.remote import RemoteOperations, open_remote
from tests.remote.conftest import Serve, answer

Call = Callable[[Operations], Awaitable[Any]]

WHERE = SessionLocator(type="team", user_id="u/1", db_id="other", table="sessions")
PAGE = Page(limit=5, page=2, sort_by="updated_at", sort_order="asc")
ODD = "a b/ü?%"
ODD_QUOTED = "a%20b%2F%C3%BC%3F%25"

SUMMARY = RunView("summary")

READS: list[tuple[Call, str]] = [
    (lambda o: o.system.get_api(), "/"),
    (lambda o: o.system.get_health(), "/health"),
    (lambda o: o.system.get_readiness(), "/ready"),
    (lambda o: o.system.get_info(), "/info"),
    (lambda o: o.system.get_config(), "/config"),
    (lambda o: o.system.get_models(), "/models"),
    (lambda o: o.system.get_me(), "/auth/me"),
    (lambda o: o.components.list("agent"), "/agents"),
    (lambda o: o.components.list("team"), "/teams"),
    (lambda o: o.components.get("workflow", ODD), f"/workflows/{ODD_QUOTED}"),
    (lambda o: o.components.get("agent", ".."), "/agents/%2E%2E"),
    (lambda o: o.components.get("agent", "\udcff"), "/agents/%ED%B3%BF"),
    (lambda o: o.runs.list(RunFilter()), "/runs"),
    (
        lambda o: o.runs.list(
            RunFilter("RUNNING", "team", "t", "s", "u", "d", Page(cursor="c=", sort_order="asc"))
        ),
        "/runs?status=RUNNING&component_type=team&component_id=t&session_id=s&user_id=u&db_id=d"
        "&cursor=c%3D&sort_order=asc",
    ),
    (
        lambda o: o.runs.list(RunFilter(live=True, created_after=1_700_000_000_000_001)),
        "/runs?live=true&created_after=2023-11-14T22%3A13%3A20.000001Z",
    ),
    (
        lambda o: o.runs.list_of_component("agent", "a", RunFilter(created_before=0)),
        "/agents/a/runs?created_before=1970-01-01T00%3A00%3A00.000000Z",
    ),
    (lambda o: o.runs.get("r"), "/runs/r"),
    (lambda o: o.approvals.list(ApprovalFilter()), "/approvals"),
    (
        lambda o: o.approvals.list(
            ApprovalFilter(
                "pending", "done", "input", "user", "team", "t", "pay", "r", "s", "u", "d", PAGE, 0
            )
        ),
        "/approvals?status=pending&execution=done&kind=input&policy=user&component_type=team"
        "&component_id=t&tool_name=pay&run_id=r&session_id=s&user_id=u&db_id=d&limit=5&page=2&sort_order=asc"
        "&created_after=1970-01-01T00%3A00%3A00.000000Z",
    ),
    (lambda o: o.approvals.get("agent", "x", "a/b"), "/agents/x/approvals/a%2Fb"),
    (lambda o: o.approvals.get_receipt("agent", "x", "a/b"), "/agents/x/approvals/a%2Fb/receipt"),
    (
        lambda o: o.components.list_versions("agent", "x", VersionFilter(5, "c")),
        "/agents/x/versions?limit=5&cursor=c",
    ),
    (
        lambda o: o.components.compare_versions("team", "x", DiffFilter("a", "b")),
        "/teams/x/versions/diff?before=a&after=b",
    ),
    (lambda o: o.runs.get("r", db_id="d"), "/runs/r?db_id=d"),
    (
        lambda o: o.runs.list_of_component("team", "t", RunFilter(status="ERROR", page=PAGE)),
        "/teams/t/runs?status=ERROR&limit=5&page=2&sort_order=asc",
    ),
    (lambda o: o.runs.get_of_component("agent", "a", "r"), "/agents/a/runs/r"),
    (
        lambda o: o.runs.get_of_component("agent", "a", "r", session_id="s"),
        "/agents/a/runs/r?session_id=s",
    ),
    (lambda o: o.sessions.list(SessionFilter()), "/sessions"),
    (
        lambda o: o.sessions.list(SessionFilter(WHERE, "t", "pre fix", PAGE)),
        "/sessions?type=team&user_id=u%2F1&db_id=other&table=sessions&component_id=t"
        "&session_name=pre%20fix&limit=5&page=2&sort_by=updated_at&sort_order=asc",
    ),
    (lambda o: o.sessions.get(ODD), f"/sessions/{ODD_QUOTED}"),
    (lambda o: o.sessions.get("s", view="summary"), "/sessions/s?view=summary"),
    (lambda o: o.runs.list(RunFilter(at_work=True)), "/runs?at_work=true"),
    (
        lambda o: o.sessions.get("s", WHERE),
        "/sessions/s?type=team&user_id=u%2F1&db_id=other&table=sessions",
    ),
    (
        lambda o: read_export(o.sessions.export("s", WHERE, format="markdown")),
        "/sessions/s/export?type=team&user_id=u%2F1&db_id=other&table=sessions&format=markdown",
    ),
    (lambda o: o.sessions.list_runs("s"), "/sessions/s/runs"),
    (
        lambda o: o.sessions.list_runs("s", SessionRunsQuery(SessionLocator(db_id="d"), 3, "r")),
        "/sessions/s/runs?db_id=d&limit=3&after=r",
    ),
    (
        lambda o: o.sessions.list_runs(
            "s", SessionRunsQuery(before="r", parent="none", order="desc", form=SUMMARY)
        ),
        "/sessions/s/runs?before=r&parent=none&order=desc&view=summary",
    ),
    (lambda o: o.sessions.get_run("s", "r", form=SUMMARY), "/sessions/s/runs/r?view=summary"),
    (lambda o: o.runs.get("r", form=RunView(cut=9)), "/runs/r?cut=9"),
    (
        lambda o: o.runs.get_of_component("agent", "a", "r", form=SUMMARY),
        "/agents/a/runs/r?view=summary",
    ),
    (
        lambda o: o.runs.list(RunFilter(id_prefix="01a1fe5c", form=SUMMARY)),
        "/runs?id_prefix=01a1fe5c&view=summary",
    ),
    (
        lambda o: o.sessions.list(SessionFilter(id_prefix="support-")),
        "/sessions?id_prefix=support-",
    ),
    (
        lambda o: o.runs.get_tool_call("agent", "a", "r", "call/1", session_id="s"),
        "/agents/a/runs/r/tools/call%2F1?session_id=s",
    ),
    (lambda o: o.sessions.get_run("s", "r"), "/sessions/s/runs/r"),
    (
        lambda o: o.sessions.get_run("s", "r", SessionLocator(user_id="u")),
        "/sessions/s/runs/r?user_id=u",
    ),
    (lambda o: o.accounts.list(AccountFilter()), "/service-accounts"),
    (
        lambda o: o.accounts.list(AccountFilter("a b", PAGE)),
        "/service-accounts?name=a%20b&limit=5&page=2&sort_order=asc",
    ),
    (lambda o: o.memories.list(MemoryFilter()), "/memories?sort_by=updated_at"),
    (
        lambda o: o.memories.list(MemoryFilter("u/1", "a", "t", ("x y", "z"), "tea", PAGE)),
        "/memories?user_id=u%2F1&agent_id=a&team_id=t&topics=x%20y%2Cz&search_content=tea"
        "&limit=5&page=2&sort_order=asc&sort_by=updated_at",
    ),
    (lambda o: o.memories.get(ODD), f"/memories/{ODD_QUOTED}"),
    (lambda o: o.memories.list_topics(), "/memory_topics"),
    (lambda o: o.memories.list_topics(user_id="u"), "/memory_topics?user_id=u"),
    (lambda o: o.runs.get_causes("r 1"), "/runs/r%201/causes"),
    (lambda o: o.runs.get_causes("r", db_id="d"), "/runs/r/causes?db_id=d"),
    (
        lambda o: o.runs.list_failures(RunFilter(component_id="shop", error="no order")),
        "/failures?component_id=shop&error=no%20order",
    ),
    (
        lambda o: o.runs.list_messages("r 1", after="m", limit=7),
        "/runs/r%201/messages?after=m&limit=7",
    ),
    (
        lambda o: o.runs.list_model_calls("r", after="model-1", limit=7),
        "/runs/r/model-calls?after=model-1&limit=7",
    ),
    (
        lambda o: o.runs.get_model_call("r 1", ODD, db_id="d", cut=9),
        f"/runs/r%201/model-calls/{ODD_QUOTED}?db_id=d&cut=9",
    ),
    (lambda o: o.usage.list_budgets(), "/budgets"),
    (lambda o: o.system.get_deployment(), "/deployment"),
    (lambda o: o.usage.list_budgets(user_id="ann"), "/budgets?user_id=ann"),
    (
        lambda o: o.sessions.list_idle(IdleFilter(9, "agent", "a/b", "d", 2, "c")),
        "/retention/sessions?idle_days=9&component_type=agent&component_id=a%2Fb&db_id=d&limit=2"
        "&cursor=c",
    ),
    (lambda o: o.users.get_data("a/b"), "/user-data?user_id=a%2Fb"),
    (
        lambda o: o.users.list_rows(PersonalRowsFilter("a", "audit", "d", 2, "c")),
        "/user-data/rows?user_id=a&part=audit&db_id=d&limit=2&cursor=c",
    ),
    (lambda o: o.usage.get(UsageFilter()), "/usage"),
    (
        lambda o: o.usage.get(UsageFilter(("day", "model"), 1, None, "agent", "c", "m", "u", "d")),
        "/usage?by=day%2Cmodel&since=1970-01-01T00%3A00%3A00.000001Z&component_type=agent"
        "&component_id=c&model=m&user_id=u&db_id=d",
    ),
    (
        lambda o: o.usage.get_overview(OverviewFilter("day", "user", limit=5)),
        "/usage/overview?step=day&by=user&limit=5",
    ),
    (lambda o: o.webhooks.list(), "/webhooks"),
    (
        lambda o: o.webhooks.list_deliveries(
            DeliveryFilter("dead", "ops", "r", "d", Page(limit=5), 1_500_000, "01234567")
        ),
        "/webhooks/deliveries?state=dead&webhook_id=ops&run_id=r&db_id=d&limit=5"
        "&created_after=1970-01-01T00%3A00%3A01.500000Z&id_prefix=01234567",
    ),
    (
        lambda o: o.halts.list(HaltFilter("active", "tool", "pay", Page(limit=5))),
        "/halts?state=active&scope=tool&scope_id=pay&limit=5",
    ),
    (lambda o: o.halts.get(ODD), f"/halts/{ODD_QUOTED}"),
    (lambda o: o.audit.list(AuditFilter()), "/audit"),
    (
        lambda o: o.audit.list(AuditFilter("sa:1", "get_run", "denied", 1_500_000, 7, "x")),
        "/audit?principal=sa%3A1&operation=get_run&outcome=denied"
        "&since=1970-01-01T00%3A00%3A01.500000Z&limit=7&cursor=x",
    ),
    (lambda o: o.audit.list_heads(AuditHeadFilter(7, "x")), "/audit/heads?limit=7&cursor=x"),
]

WRITES: list[tuple[Call, str, str, dict[str, Any] | None]] = [
    (
        lambda o: o.system.explain_auth(ExplainRequest("GET", "/runs?x=1")),
        "POST",
        "/auth/explain",
        {"method": "GET", "path": "/runs?x=1"},
    ),
    (
        lambda o: o.system.explain_auth(ExplainRequest("GET", "/runs", "a.b.c")),
        "POST",
        "/auth/explain",
        {"method": "GET", "path": "/runs", "token": "a.b.c"},
    ),
    (
        lambda o: o.runs.create("agent", "a", RunRequest("hi \ud800")),
        "POST",
        "/agents/a/runs",
        {"message": "hi \ud800", "stream": False},
    ),
    (
        lambda o: o.runs.create("workflow", "w", RunRequest("hi", "s", "u", background=True)),
        "POST",
        "/workflows/w/runs",
        {"message": "hi", "stream": False, "background": True, "session_id": "s", "user_id": "u"},
    ),
    (
        lambda o: o.runs.create("agent", "a", RunRequest(input={"é": [1]})),
        "POST",
        "/agents/a/runs",
        {"input": {"é": [1]}, "stream": False},
    ),
    (
        lambda o: o.runs.cancel("team", "t", "r", CancelRequest()),
        "POST",
        "/teams/t/runs/r/cancel",
        None,
    ),
    (
        lambda o: o.runs.cancel("team", "t", "r", CancelRequest("s", 0, "no more")),
        "POST",
        "/teams/t/runs/r/cancel?session_id=s&wait=0&reason=no%20more",
        None,
    ),
    (
        lambda o: o.runs.send_message("r 1", MessageRequest("stop", "refuse", "key")),
        "POST",
        "/runs/r%201/messages",
        {"message": "stop", "late": "refuse"},
    ),
    (
        lambda o: o.approvals.decide("team", "t", "a", Ruling("reject")),
        "POST",
        "/teams/t/approvals/a/decide",
        {"decision": "reject"},
    ),
    (
        lambda o: o.approvals.decide(
            "agent", "x", ODD, Ruling("approve", "h", {"a": 1}, "n", [2], {"b": 3}), "key"
        ),
        "POST",
        f"/agents/x/approvals/{ODD_QUOTED}/decide",
        {
            "decision": "approve",
            "arguments_hash": "h",
            "arguments": {"a": 1},
            "note": "n",
            "answer": [2],
            "result": {"b": 3},
        },
    ),
    (
        lambda o: o.runs.continue_run("workflow", "w", "r", ContinueRequest()),
        "POST",
        "/workflows/w/runs/r/continue",
        {"stream": False},
    ),
    (
        lambda o: o.runs.continue_run(
            "agent",
            "x",
            "r",
            ContinueRequest(
                (Ruling("reject", approval_id="a"), Ruling("answer", answer=1, tool_call_id="c")),
                True,
                {"d": 4},
                "key",
            ),
        ),
        "POST",
        "/agents/x/runs/r/continue",
        {
            "stream": False,
            "background": True,
            "dependencies": {"d": 4},
            "decisions": [
                {"decision": "reject", "approval_id": "a"},
                {"decision": "answer", "answer": 1, "tool_call_id": "c"},
            ],
        },
    ),
    (
        lambda o: o.runs.retry("workflow", "w", "r", RetryRequest()),
        "POST",
        "/workflows/w/runs/r/retry",
        {"stream": False},
    ),
    (
        lambda o: o.runs.retry(
            "agent",
            "x",
            "r",
            RetryRequest(
                background=True,
                confirm="h",
                output_schema={"a": 1},
                dependencies={"d": 4},
                idempotency_key="key",
            ),
        ),
        "POST",
        "/agents/x/runs/r/retry",
        {
            "stream": False,
            "background": True,
            "confirm": "h",
            "output_schema": {"a": 1},
            "dependencies": {"d": 4},
        },
    ),
    (
        lambda o: o.runs.fork("team", "t", ODD, ForkRequest(at=0)),
        "POST",
        f"/teams/t/runs/{ODD_QUOTED}/fork",
        {"stream": False, "at": 0},
    ),
    (
        lambda o: o.runs.fork(
            "agent",
            "x",
            "r",
            ForkRequest(at=2, message="m", agent_id="a", team_id="t", session_id="s", confirm="h"),
        ),
        "POST",
        "/agents/x/runs/r/fork",
        {
            "stream": False,
            "at": 2,
            "message": "m",
            "agent_id": "a",
            "team_id": "t",
            "session_id": "s",
            "confirm": "h",
        },
    ),
    (lambda o: o.sessions.create(NewSession()), "POST", "/sessions?type=agent", {}),
    (
        lambda o: o.sessions.create(
            NewSession("team", "s", "name", {"a": 1}, {"b": [2]}, "u", "t", "d")
        ),
        "POST",
        "/sessions?type=team&db_id=d",
        {
            "session_id": "s",
            "session_name": "name",
            "session_state": {"a": 1},
            "metadata": {"b": [2]},
            "user_id": "u",
            "team_id": "t",
        },
    ),
    (
        lambda o: o.sessions.update(
            "s", SessionPatch({"metadata": None}), SessionLocator(db_id="d")
        ),
        "PATCH",
        "/sessions/s?db_id=d",
        {"metadata": None},
    ),
    (
        lambda o: o.sessions.summarize("s", WHERE),
        "POST",
        "/sessions/s/summarize?type=team&user_id=u%2F1&db_id=other&table=sessions",
        None,
    ),
    (
        lambda o: o.sessions.rename("s", "new"),
        "POST",
        "/sessions/s/rename",
        {"session_name": "new"},
    ),
    (
        lambda o: o.sessions.hold("s", "claim", SessionLocator(db_id="d")),
        "POST",
        "/sessions/s/hold?db_id=d",
        {"reason": "claim"},
    ),
    (lambda o: o.sessions.release("s"), "DELETE", "/sessions/s/hold", None),
    (
        lambda o: o.sessions.prune(PruneRequest(90, ("a", "b"), "d")),
        "POST",
        "/retention/sessions/prune?db_id=d",
        {"idle_days": 90, "session_ids": ["a", "b"]},
    ),
    (
        lambda o: o.users.erase(Erasure("a", True, "never", "c")),
        "POST",
        "/user-data/erase",
        {"user_id": "a", "cancel": True, "vacuum": "never", "cursor": "c"},
    ),
    (lambda o: o.sessions.delete("s"), "DELETE", "/sessions/s", None),
    (
        lambda o: o.sessions.delete("s", WHERE, cancel=True),
        "DELETE",
        "/sessions/s?type=team&user_id=u%2F1&db_id=other&table=sessions&cancel=true",
        None,
    ),
    (
        lambda o: o.sessions.delete_several(BulkDeletion(("a", "b"), "d")),
        "DELETE",
        "/sessions?db_id=d",
        {"session_ids": ["a", "b"]},
    ),
    (
        lambda o: o.memories.create(NewMemory("likes tea")),
        "POST",
        "/memories",
        {"memory": "likes tea", "topics": []},
    ),
    (
        lambda o: o.memories.create(NewMemory("likes tea", ("food",), "u", "a", "t")),
        "POST",
        "/memories",
        {
            "memory": "likes tea",
            "topics": ["food"],
            "user_id": "u",
            "agent_id": "a",
            "team_id": "t",
        },
    ),
    (
        lambda o: o.memories.update("m", MemoryPatch("new")),
        "PATCH",
        "/memories/m",
        {"memory": "new"},
    ),
    (
        lambda o: o.memories.update("m", MemoryPatch(None, ())),
        "PATCH",
        "/memories/m",
        {"topics": []},
    ),
    (lambda o: o.memories.delete(ODD), "DELETE", f"/memories/{ODD_QUOTED}", None),
    (
        lambda o: o.memories.delete_several(MemoryDeletion(("a", "b"), "u")),
        "DELETE",
        "/memories",
        {"memory_ids": ["a", "b"], "user_id": "u"},
    ),
    (
        lambda o: o.memories.delete_several(MemoryDeletion(user_id="u", all=True)),
        "DELETE",
        "/memories",
        {"user_id": "u", "all": True},
    ),
    (
        lambda o: o.accounts.create(NewAccount("n", (Grant("a:b"), Grant("c", "deny")))),
        "POST",
        "/service-accounts",
        {
            "name": "n",
            "scopes": [{"scope": "a:b", "effect": "allow"}, {"scope": "c", "effect": "deny"}],
        },
    ),
    (
        lambda o: o.accounts.create(NewAccount("n", (), 7, True, True)),
        "POST",
        "/service-accounts",
        {
            "name": "n",
            "scopes": [],
            "expires_in_days": 7,
            "never_expires": True,
            "allow_privileged_scopes": True,
        },
    ),
    (lambda o: o.accounts.revoke(ODD), "DELETE", f"/service-accounts/{ODD_QUOTED}", None),
    (
        lambda o: o.webhooks.redeliver(ODD),
        "POST",
        f"/webhooks/deliveries/{ODD_QUOTED}/redeliver",
        None,
    ),
    (lambda o: o.webhooks.test(ODD), "POST", f"/webhooks/{ODD_QUOTED}/test", None),
    (lambda o: o.webhooks.enable(ODD), "POST", f"/webhooks/{ODD_QUOTED}/enable", None),
    (
        lambda o: o.halts.create(NewHalt("agent", "why", "a", "2030-01-01T00:00:00Z", True)),
        "POST",
        "/halts",
        {
            "scope": "agent",
            "reason": "why",
            "scope_id": "a",
            "until": "2030-01-01T00:00:00Z",
            "stop_running": True,
        },
    ),
    (lambda o: o.halts.end(ODD), "DELETE", f"/halts/{ODD_QUOTED}", None),
]


async def read_export(parts: AsyncIterator[bytes]) -> Document[Any]:
    return Document(b"".join([part async for part in parts]))


def _call(url: str, call: Call, token: str | None = None) -> Any:
    async def run() -> Any:
        async with RemoteOperations(url, token) as operations:
            return await call(operations)

    return asyncio.run(run())


@pytest.mark.parametrize(("call", "target"), READS, ids=[target for _, target in READS])
def test_reads_send_the_expected_request(serve: Serve, call: Call, target: str) -> None:
    arrays = (
        "/models",
        "/agents",
        "/teams",
        "/sessions/s/runs",
        "/memory_topics",
        "/webhooks",
        "/budgets",
    )
    raw = b' [1, "\xc3\xbc"]' if target.partition("?")[0] in arrays else b'{"a" : "\xc3\xbc"}'
    server = serve(answer(body=raw))
    assert _call(server.url, call).raw == raw
    (seen,) = server.seen
    assert (seen.method, seen.target, seen.body) == ("GET", target, b"")
    assert "authorization" not in seen.headers


@pytest.mark.parametrize(("call", "method", "target", "body"), WRITES)
def test_writes_send_the_expected_request(
    serve: Serve, call: Call, method: str, target: str, body: dict[str, Any] | None
) -> None:
    server = serve(answer(204, b"") if method == "DELETE" else answer(201, b'{"id":1}'))
    document = _call(server.url, call)
    assert document is None if method == "DELETE" else document.raw == b'{"id":1}'
    (seen,) = server.seen
    assert (seen.method, seen.target) == (method, target)
    assert (json.loads(seen.body) if seen.body else None) == body


def test_prefix_and_token_are_sent(serve: Serve) -> None:
    server = serve(answer(body=b"[]"))
    _call(server.url + "/mounted/here/", lambda o: o.components.list("team"), "a.b.c")
    (seen,) = server.seen
    assert seen.target == "/mounted/here/teams"
    assert seen.headers["authorization"] == "Bearer a.b.c"
    assert seen.headers["user-agent"].startswith("agentctl/")


def test_loopback_requests_use_no_proxy(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = serve(answer(500))
    server = serve(answer())
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.setenv("ALL_PROXY", "nonsense://x")
    assert _call(server.url, lambda o: o.system.get_info(), "a.b.c").raw == b"{}"
    assert not proxy.seen


def test_every_operation_is_tested() -> None:
    named = {
        find_address(method)
        for family in FAMILIES
        for method in vars(family).values()
        if hasattr(method, "declared")
    }
    calls = [call for call, _ in READS] + [call for call, *_ in WRITES]
    tried = {".".join(pair) for call in calls for pair in pairwise(call.__code__.co_names)}
    assert named - tried == {
        "runs.stream", "runs.stream_continued", "runs.stream_retried", "runs.stream_forked",
        "runs.resume", "runs.follow",
        # tests/contract/test_changes.py, tests/server/test_files.py
        "files.upload", "files.get", "files.list", "files.get_content", "files.delete",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("info", "is_refused"),
    [
        (b'{"agno_version": "3.1.10", "auth_mode": "none"}', True),
        # A server of agentctl with `server.compatibility`.
        (b'{"agno_version": "2.7.2", "interface_version": "2.7.2"}', False),
        (b"[]", False),
    ],
)
def test_server_of_agentos_is_refused_once_it_is_opened(
    serve: Serve, info: bytes, *, is_refused: bool
) -> None:
    server = serve(answer(body=info))

    async def open_server() -> None:
        async with open_remote(server.url, None):
            pass

    if not is_refused:
        asyncio.run(open_server())
        return
    with pytest.raises(errors.UsageError) as caught:
        asyncio.run(open_server())
    assert caught.value.detail == f"{server.url} is a server of AgentOS, not of agentctl"
    assert "agnoctl" in (caught.value.hint or "")
    assert [request.target for request in server.seen] == ["/info"]
