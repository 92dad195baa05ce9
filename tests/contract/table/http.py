"""Rows that only a client of HTTP can ask: pages, forms, header fields, and wrong requests.

They are asked after the rows of all targets, on the data that those have left. Every wrong value
has one row: the operations themselves are tested in `tests/service`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.contract.rows import FORBIDDEN, INVALID, NOT_FOUND, Row

__all__ = ["HTTP_ROWS"]

RUNS = "POST /agents/echo/runs"
ABSENT = "01900000-0000-7000-8000-000000000000"

WHOLE = {"message": "hello", "stream": False}


def _refused(
    operation: str, request: str, text: str, body: Any = None, who: str = "me", **more: Any
) -> Row:
    """Return a row of an invalid request."""
    return Row(operation, request, None, who, 422, (text, *INVALID), body=body, **more)


def _public_rows() -> Iterator[Row]:
    """Yield pages and documents that need no credential, and do not notice a wrong one."""
    pages = {
        "get_api": ("/", '"version":"'),
        "get_health": ("/health", '{"status":"ok"}'),
        "get_readiness": ("/ready", '"status":"ready"'),
        "get_info": ("/info", '"os_id":"world"'),
        "get_docs": ("/docs", "swagger-ui-bundle.js"),
        "get_redoc": ("/redoc", "redoc.standalone.js"),
        "get_openapi": ("/openapi.json", '"openapi":"3.1.0"'),
        "get_oauth2_redirect": ("/docs/oauth2-redirect", "<script>"),
        "get_docs_asset": ("/docs/assets/docs.js", "SwaggerUIBundle"),
        "get_console": ("/console", "<title>agentctl console</title>"),
        "get_chat": ("/chat", "<title>agentctl chat</title>"),
        "get_console_asset": ("{console_assets}/app/main.js", "import "),
    }

    for operation, (path, text) in pages.items():
        for who in ("nobody", "bad"):
            yield Row(operation, f"GET {path}", None, who, has=(text,), lacks=("://cdn.",))
    for place in ("{console_assets}/app/nothing.js", "/console/assets/0/app/main.js"):
        yield Row("get_console_asset", f"GET {place}", None, "nobody", 404, NOT_FOUND)
    for name in ("nothing.js", "__init__.py"):
        yield Row("get_docs_asset", f"GET /docs/assets/{name}", None, "nobody", 404, NOT_FOUND)


def _sign_in_rows() -> Iterator[Row]:
    """Yield the tokens that a page of the console keeps, and its links and sign-ins."""
    place = "/console/sign-in"
    for operation, method, status in (
        ("keep_console_token", "POST", 204),
        ("restore_console_token", "GET", 404),
        ("forget_console_token", "DELETE", 204),
    ):
        request = f"{method} {place}/token"
        key = {"agentctl-console-key": operation[0] * 43}
        yield Row(operation, request, status=status, headers=key)
        yield Row(operation, request, status=400, has=("no key of a page",))

    key = {"agentctl-console-key": "k" * 43}
    yield Row("keep_console_token", f"POST {place}/token", None, "nobody", 401, headers=key)

    links = f"POST {place}/links"
    yield Row("create_sign_in_link", links, has=('"code":"', '"expires_in":60'))
    yield Row("create_sign_in_link", links, None, "nobody", 401)

    link = f"POST {place}/link"
    code = {"code": "unknown"}
    yield Row("use_sign_in_link", link, None, "nobody", 400, body=code, headers=key)
    yield Row("use_sign_in_link", link, None, "nobody", 400, body=code)
    yield _refused("use_sign_in_link", link, "code", {}, "nobody")

    page = {"redirect_uri": "https://agents.example/console"}
    end = {**page, "code": "c", "code_verifier": "v", "nonce": "n"}
    for name, body in (("start", page), ("finish", end)):
        operation = f"{name}_console_sign_in"
        request = f"POST {place}/{name}"
        yield Row(operation, request, None, "nobody", 404, NOT_FOUND, body=body)

        wrong = {**body, "redirect_uri": 1}
        yield _refused(operation, request, "redirect_uri", wrong, "nobody")


def _caller_rows() -> Iterator[Row]:
    """Yield what only the credential of a request decides."""
    asked = {"method": "GET", "path": "/agents"}
    own = ('"allowed":true', '"principal":"boss"')
    explain = "POST /auth/explain"
    yield Row("explain_auth", explain, None, "admin", has=own, lacks=("eyJ",), body=asked)
    for wrong in ({"method": 1}, {"path": "agents"}, {"path": 1}, {"token": 1}, {"url": "x"}):
        (name,) = wrong
        yield _refused("explain_auth", explain, name, {**asked, **wrong}, "admin")

    many = {**asked, "path": f"/agents?{'x=1&' * 101}"}
    yield _refused("explain_auth", explain, "more than 100 fields", many, "admin")
    yield Row("get_agents", "HEAD /agents")
    yield Row("get_agents", "GET /agents?unknown=1")
    yield Row("get_agent", "GET /agents/a%00b", status=404, has=NOT_FOUND, lacks=("\\u0000",))


def _start_rows() -> Iterator[Row]:
    """Yield starts of runs by forms and by wrong bodies."""
    operation = "create_agent_run"
    started = ("event: RunStarted\n",)
    yield Row(operation, RUNS, has=started, form={"message": "hello"})
    yield Row(operation, RUNS, has=("COMPLETED",), form={"message": "hello", "stream": "false"})
    yield Row(operation, RUNS, status=202, body={**WHOLE, "background": True})
    yield _refused(operation, RUNS, "message", {})
    yield _refused(operation, RUNS, "message", form={"stream": "false"})
    yield _refused(operation, RUNS, "message", {**WHOLE, "message": 1})
    yield _refused(operation, RUNS, "session_id", {**WHOLE, "session_id": "a b"})

    theirs = {**WHOLE, "session_id": "theirs"}
    yield Row(operation, RUNS, status=404, has=NOT_FOUND, body=theirs)

    # A missing component is reported before a wrong body, and a missing scope before both.
    wrong = {"message": 1}
    yield Row(operation, "POST /agents/no/runs", status=404, has=NOT_FOUND, body=wrong)
    yield Row(operation, RUNS, None, "powerless", 403, FORBIDDEN, body=wrong)

    for verb, body in (("retry", {}), ("fork", {"at": 0})):
        repeat = f"POST /agents/echo/runs/{{agent_run}}/{verb}"
        yield _refused(f"{verb}_agent_run", repeat, "confirm", {**body, "confirm": 1})

    wrong = {"decisions": 1}
    resume = "POST /agents/echo/runs/{agent_run}/continue"
    yield _refused("continue_agent_run", resume, "decisions", wrong)
    yield Row("continue_agent_run", resume, status=409, has=("CONFLICT",))

    cancel = "POST /agents/echo/runs/{agent_run}/cancel?session_id=mine"
    yield _refused("cancel_agent_run", f"{cancel}&wait=soon", "wait")

    send = "POST /runs/{agent_run}/messages"
    for wrong in ({"message": " "}, {"late": "never"}, {"session_id": "mine"}):
        (name,) = wrong
        yield _refused("send_message", send, name, {"message": "hello", **wrong})


def _position_rows() -> Iterator[Row]:
    """Yield the position of a resumed stream in the query, in a form and in JSON."""
    operation = "resume_agent_run_stream"
    resume = "POST /agents/echo/runs/{agent_run}/resume"
    inside = f"{resume}?session_id=mine"
    content = "event: RunContent\n"
    end = "event: RunCompleted\n"
    yield Row(operation, inside, has=(content, end, "id: 0\n", "id: 1\n"))
    yield Row(operation, f"{inside}&last_event_index=1", lacks=(content, end))

    both = {"session_id": "mine", "last_event_index": "0"}
    yield Row(operation, resume, has=(end,), lacks=(content,), form=both)
    yield Row(operation, inside, has=(end,), lacks=(content,), body={"last_event_index": 0})
    yield Row(operation, inside, has=(content,), form={"last_event_index": ""})
    yield Row(operation, inside, has=(content,), body={"last_event_index": None})
    for text in ("soon", "-2", "", "1e3", "1000000000000000000"):
        yield _refused(operation, f"{inside}&last_event_index={text}", "last_event_index")
    for number in ("0", 1.0, True, -2, 10**18, 2**64):
        yield _refused(operation, inside, "last_event_index", {"last_event_index": number})

    differing = {"last_event_index": "1"}
    yield _refused(operation, f"{inside}&last_event_index=0", "last_event_index", form=differing)
    yield _refused(operation, inside, "session_id", {"session_id": "x"})
    yield _refused(operation, inside, "run is not known", {"run": 1})


def _query_rows() -> Iterator[Row]:
    """Yield lists with wrong parameters; the first word of the error is the parameter."""
    wrong = {
        ("get_sessions", "/sessions", "me"): (
            "limit=0", "limit=101", "limit=x", "limit=", "page=0", "page=-1", "page=1e3",
            "limit=1_0", "type=user", "type=", "sort_by=user_id", "sort_order=up", "cursor=bogus",
            "limit=1&limit=2", "user_id=a%00", "user_id=%ff", "session_name=%ed%a0%80",
            "page=99999999999999999999",
        ),
        ("get_runs", "/runs", "me"): ("component_type=x", "parent=some", "error_code=%00"),
        ("list_agent_runs", "/agents/echo/runs", "me"): ("status=LOST", "limit=many", "live=yes"),
        ("get_session_runs", "/sessions/mine/runs", "me"): ("after=no", "limit=0", "view=none"),
        ("export_session", "/sessions/mine/export", "me"): ("format=xml",),
        ("list_service_accounts", "/service-accounts", "manager"): (
            "limit=0", "page=0", "cursor=x", "sort_order=up", "name=%00",
        ),
        ("get_memories", "/memories", "rememberer"): (
            "limit=0", "page=0", "cursor=x", "sort_by=memory", "search_content=%21", "topics=%00",
            "user_id=%00",
        ),
        ("get_files", "/files", "me"): ("limit=0", "cursor=x", "session_id=%00"),
        ("get_audit", "/audit", "auditor"): (
            "limit=0", "limit=101", "limit=x", "since=now", "since=1", "cursor=x", "cursor=",
            "outcome=lost",
        ),
        ("get_audit_heads", "/audit/heads", "auditor"): ("limit=101", "limit=x", "cursor="),
        ("get_approvals", "/approvals", "approver"): (
            "status=maybe", "kind=x", "limit=0", "cursor=x", "created_after=now",
        ),
        ("get_webhook_deliveries", "/webhooks/deliveries", "admin"): (
            "state=maybe", "limit=0", "cursor=x", "created_after=now", "id_prefix=short",
        ),
        ("get_halts", "/halts", "admin"): ("state=maybe",),
        ("get_usage", "/usage", "admin"): (
            "limit=0", "limit=1001", "since=now", "before=1", "by=week", "model=%00",
        ),
        ("get_usage_overview", "/usage/overview", "admin"): ("limit=0", "since=now", "by=week"),
        ("get_user_data", "/user-data", "admin"): ("user_id=",),
        ("get_user_rows", "/user-data/rows?user_id=none", "admin"): ("part=other",),
        ("get_failures", "/failures", "admin"): ("limit=0",),
        ("get_run_messages", "/runs/{agent_run}/messages", "me"): ("limit=0",),
        ("get_run_model_calls", "/runs/{agent_run}/model-calls", "me"): ("limit=0",),
        ("get_run_model_call", "/runs/{agent_run}/model-calls/model-1", "me"): ("cut=0",),
        ("delete_session", "/sessions/mine", "me"): ("cancel=perhaps",),
    }  # fmt: skip

    for (operation, path, who), queries in wrong.items():
        method = "DELETE" if operation == "delete_session" else "GET"
        mark = "&" if "?" in path else "?"
        for query in queries:
            name = query.partition("=")[0]
            yield _refused(operation, f"{method} {path}{mark}{query}", name, who=who)

    yield _refused("get_sessions", "GET /sessions?page=600", "cursor")


def _time_rows() -> Iterator[Row]:
    """Yield filters by time in every form of RFC 3339, and in others."""
    runs = "GET /runs?limit=100"
    none = ('"data":[]',)
    for past in ("2001-01-01T00:00:00Z", "2001-01-01t00:00:00.5%2B02:00"):
        yield Row("get_runs", f"{runs}&created_after={past}", has=("{agent_run}",))
        yield Row("get_runs", f"{runs}&created_before={past}", has=none)
    for text in ("", "now", "1", "2001-01-01", "2001-02-30T00:00:00Z", "2001-01-01T00:00:00"):
        for name in ("created_after", "created_before", "finished_after", "finished_before"):
            yield _refused("get_runs", f"{runs}&{name}={text}", f"{name} must be")
    yield Row("get_runs", f"{runs}&finished_after=2001-01-01T00:00:00Z", has=("{agent_run}",))
    yield Row("get_runs", f"{runs}&finished_before=2001-01-01T00:00:00Z", has=none)
    yield Row("get_runs", f"{runs}&finished_after=2001-01-01T00:00:00Z&model=no", has=none)
    yield Row("get_runs", f"{runs}&live=false&status=COMPLETED", has=("{agent_run}",))
    yield Row("get_runs", f"{runs}&at_work=true", has=none)
    yield Row("get_runs", f"{runs}&error_code=NONE", has=none)
    yield _refused("get_runs", f"{runs}&model=echo", "model needs")


def _session_rows() -> Iterator[Row]:
    operation = "create_session"
    path = "POST /sessions"
    theirs = {"session_id": "theirs"}
    yield Row(operation, path, None, "other", 201, body=theirs)
    yield Row(operation, path, status=409, has=("CONFLICT",), body=theirs)
    yield Row(operation, path, status=201)

    bodies: tuple[tuple[str, Any], ...] = (
        ("session_id", {"session_id": "a/b"}),
        ("session_id", {"session_id": ""}),
        ("session_id", {"session_id": 1}),
        ("session_state", {"session_state": []}),
        ("metadata", {"metadata": "x"}),
        ("session_name", {"session_name": "\x00"}),
        ("metadata", {"metadata": {"a": ["\ud800"]}}),
        ("metadata", {"metadata": {"\x00": 1}}),
        ("session_state", {"session_state": {"n": 2**64}}),
        ("team_id", {"team_id": "crew"}),
        ("owner", {"owner": "me"}),
        ("object", []),
        ("object", "text"),
    )

    for text, body in bodies:
        yield _refused(operation, path, text, body)
    yield _refused(operation, f"{path}?type=user", "type", {})
    yield _refused(operation, path, "user_id", {"user_id": ""}, "admin")

    yield _refused("update_session", "PATCH /sessions/mine", "owner", {"owner": "me"})

    wrong = {"session_name": None}
    yield _refused("update_session", "PATCH /sessions/mine", "session_name", wrong)
    yield _refused("rename_session", "POST /sessions/mine/rename", "session_name", {})

    many = ["a"] * 101
    for ids in ([], many, [1], "mine", None):
        wrong_ids = {"session_ids": ids}
        yield _refused("delete_sessions", "DELETE /sessions", "session_ids", wrong_ids)

    prune = "POST /retention/sessions/prune"
    yield _refused("prune_sessions", prune, "idle_days", {"session_ids": ["mine"]}, "admin")

    for path in ("MINE", "mine%00", "mine?user_id=other", "mine?db_id=second"):
        yield Row("get_session_by_id", f"GET /sessions/{path}", status=404, has=NOT_FOUND)
    yield Row("get_session_by_id", "GET /sessions/mi%6ee", has=('"mine"',))
    yield _refused("get_session_by_id", "GET /sessions/mine?type=user", "agent, team, workflow")


def _account_rows() -> Iterator[Row]:
    operation = "create_service_account"
    path = "POST /service-accounts"
    grant = {"scope": "agents:read"}
    body = {"name": "new", "scopes": [grant]}
    # `allow` is the default effect.
    yield Row(operation, path, None, "manager", 201, ('"effect":"allow"',), body=body)

    form = {"name": "x"}
    yield Row(operation, path, None, "manager", 415, ("application/json",), form=form)

    names: tuple[Any, ...] = ("", "a b", "x" * 65, ["x"], None)
    scopes: tuple[Any, ...] = ([], "agents:read", [grant] * 257, None)
    effects: tuple[Any, ...] = ("deny", None, "", 1)
    wrong: tuple[tuple[str, Any], ...] = (
        ("name", {"scopes": [grant]}),
        *(("name", {**body, "name": name}) for name in names),
        ("scopes", {"name": "x"}),
        *(("scopes", {**body, "scopes": several}) for several in scopes),
        ("scopes[0] must", {**body, "scopes": ["agents:read"]}),
        ("scopes[1].scope", {**body, "scopes": [grant, {}]}),
        ("scopes[0].scope", {**body, "scopes": [{"scope": 1}]}),
        ("form", {**body, "scopes": [{"scope": "<b>:read"}]}),
        ("scopes[0].id is not known", {**body, "scopes": [{**grant, "id": 1}]}),
        *(("effect", {**body, "scopes": [{**grant, "effect": effect}]}) for effect in effects),
        *(("expires_in_days", {**body, "expires_in_days": n}) for n in (-1, 3651, "90", 1.5, True)),
        ("never_expires", {**body, "never_expires": 1}),
        ("never_expires", {**body, "expires_in_days": 1, "never_expires": True}),
        ("token is not known", {**body, "token": "agentctl_pat_x"}),
    )

    for text, wrong_body in wrong:
        yield _refused(operation, path, text, wrong_body, "manager", lacks=("_pat_", "<b>"))


def _memory_rows() -> Iterator[Row]:
    who = "rememberer"
    create = "POST /memories"
    memories: tuple[Any, ...] = ("", "  ", "x" * 4001, "a\0b", 1, None)
    topics: tuple[Any, ...] = ("food", ["x" * 65], ["a,b"], [""], [f"t{n}" for n in range(17)], [1])
    yield _refused("create_memory", create, "memory", {}, who)
    for memory in memories:
        yield _refused("create_memory", create, "memory", {"memory": memory}, who)
    for several in topics:
        yield _refused("create_memory", create, "topic", {"memory": "x", "topics": several}, who)

    unknown = {"memory": "x", "memory_id": "x"}
    yield _refused("create_memory", create, "memory_id is not known", unknown, who)

    twice = {"memory": "Plays chess", "topics": ["games", "games"]}
    yield Row("create_memory", create, None, who, 201, ('"topics":["games"]',), body=twice)

    delete = "DELETE /memories"
    wrong: tuple[dict[str, Any], ...] = (
        {}, {"memory_ids": []}, {"memory_ids": ["x"], "all": True}, {"all": False},
    )  # fmt: skip
    for body in wrong:
        yield _refused("delete_memories", delete, "memory_ids", body, who)
    yield _refused("delete_memories", delete, "user_id is required", {"all": True}, "admin")


def _other_rows() -> Iterator[Row]:
    halt = {"scope": "user", "scope_id": "nobody-at-all", "reason": "a test"}
    for name, value in (("scope", "crowd"), ("scope_id", None), ("reason", ""), ("until", "now")):
        yield _refused("create_halt", "POST /halts", name, {**halt, name: value}, "admin")

    erase = "POST /user-data/erase"
    soon = {"user_id": "none", "vacuum": "soon"}
    yield _refused("erase_user_data", erase, "vacuum", soon, "admin")
    yield _refused("erase_user_data", erase, "user_id", {"user_id": ""}, "admin")

    decide = "POST /agents/payer/approvals/{continued_approval}/decide"
    for wrong, text in (
        ({"decision": 1}, "decision"),
        ({}, "decision"),
        (
            {"decision": "maybe"},
            "decision must be one of: approve, reject, answer, complete, fail, retry",
        ),
        ({"decision": "reject", "why": 1}, "why is not known; known fields:"),
    ):
        yield _refused("decide_agent_approval", decide, text, wrong, "approver")

    large = {"decision": "complete", "result": "x" * 1_100_000}
    too_large = ("The body is larger",)
    yield Row("decide_agent_approval", decide, None, "approver", 413, too_large, body=large)

    # An approval that the caller cannot see is unknown, whatever the decision is.
    hidden = f"POST /agents/payer/approvals/{ABSENT}/decide"
    nonsense = {"decision": "nonsense"}
    yield Row("decide_agent_approval", hidden, None, "approver", 404, NOT_FOUND, body=nonsense)

    resume = "POST /agents/payer/runs/{continued_run}/continue"
    extra = {"decisions": [{"decision": "approve", "amount": 1}]}
    yield _refused("continue_agent_run", resume, "decisions[0].amount is not known", extra)

    yield _refused("upload_file", "POST /files", "name", {"a": 1})

    form = {"a": "b"}
    json_type = ('"media_type":"application/json"',)
    upload = "POST /files?name=a.json"
    yield Row("upload_file", upload, status=415, has=("not JSON",), form=form)
    yield Row("upload_file", upload, status=201, has=json_type, body={"a": 1})

    part = {"range": "bytes=1-"}
    content = "GET /files/{loose_file}/content"
    yield Row("get_file_content", content, status=206, has=("b",), lacks=("a",), headers=part)
    # Each other form of a range is ignored (RFC 9110 14.2).
    for text in ("bytes=1-0", "bytes=0-0,1-1", "lines=0-1"):
        yield Row("get_file_content", content, has=("ab",), headers={"range": text})


def _known_document_rows() -> Iterator[Row]:
    """Yield reads by callers that have the document, or pretend to."""
    known = {"if-none-match": "*"}
    for operation, path in (
        ("get_sessions", "/sessions"),
        ("get_session_by_id", "/sessions/mine"),
        ("get_run", "/runs/{agent_run}"),
    ):
        yield Row(operation, f"GET {path}", status=304, headers=known)
        yield Row(operation, f"GET {path}", None, "powerless", 403, FORBIDDEN, headers=known)
        yield Row(operation, f"GET {path}", None, "bad", 401, headers=known)


HTTP_ROWS: list[Row] = [
    *_public_rows(),
    *_sign_in_rows(),
    *_session_rows(),
    *_caller_rows(),
    *_start_rows(),
    *_position_rows(),
    *_query_rows(),
    *_time_rows(),
    *_account_rows(),
    *_memory_rows(),
    *_other_rows(),
    *_known_document_rows(),
]
