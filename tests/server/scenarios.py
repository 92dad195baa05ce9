"""A table of requests and expected responses, one row for each request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from agentctl import __version__

__all__ = ["SCENARIOS", "Scenario"]


@dataclass(frozen=True)
class Scenario:
    """A request and its expected response.

    Attributes:
        operation: operation id.
        request: method and path with query; `{name}` is replaced by a seeded id.
        who: a caller of `seeds`.
        status: the expected status.
        has: text that the body must contain.
        lacks: text that the body must not contain.
        json: JSON body of the request.
        form: form body of the request.
        headers: further header fields.
    """

    operation: str
    request: str
    who: str
    status: int
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    json: Any = None
    form: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.operation} {self.request} as {self.who}: {self.status}"


NOT_FOUND = ('"error_code":"NOT_FOUND"',)
REFUSED = ('"error_code":"VALIDATION_ERROR"',)
FORBIDDEN = ('"error_code":"FORBIDDEN"', '"required_scopes":[')
RUN = {"message": "hello", "stream": False}


def _sign_in() -> Iterator[Scenario]:
    key = {"Agentctl-Console-Key": "k" * 43}
    place = "/console/sign-in"
    for operation, method, own in (
        ("keep_console_token", "POST", 204),
        ("restore_console_token", "GET", 404),
        ("forget_console_token", "DELETE", 204),
    ):
        fields = {name: value.replace("k", operation[0]) for name, value in key.items()}
        yield Scenario(operation, f"{method} {place}/token", "me", own, headers=fields)
        yield Scenario(operation, f"{method} {place}/token", "me", 400, ("no key of a page",))
    yield Scenario("keep_console_token", f"POST {place}/token", "nobody", 401, headers=key)
    has_code = ('"code":"', '"expires_in":60')
    yield Scenario("create_sign_in_link", f"POST {place}/links", "me", 200, has_code)
    yield Scenario("create_sign_in_link", f"POST {place}/links", "nobody", 401)
    code = {"code": "unknown"}
    yield Scenario("use_sign_in_link", f"POST {place}/link", "nobody", 400, json=code, headers=key)
    yield Scenario("use_sign_in_link", f"POST {place}/link", "nobody", 400, json=code)
    yield Scenario("use_sign_in_link", f"POST {place}/link", "nobody", 422, REFUSED, json={})
    page = {"redirect_uri": "https://agents.example/console"}
    end = {**page, "code": "c", "code_verifier": "v", "nonce": "n"}
    for name, body in (("start", page), ("finish", end)):
        operation = f"{name}_console_sign_in"
        yield Scenario(operation, f"POST {place}/{name}", "nobody", 404, NOT_FOUND, json=body)
        wrong = {**body, "redirect_uri": 1}
        yield Scenario(operation, f"POST {place}/{name}", "nobody", 422, REFUSED, json=wrong)


def _system() -> Iterator[Scenario]:
    public = {
        "get_api": ("/", f'"version":"{__version__}"'),
        "get_health": ("/health", '{"status":"ok"}'),
        "get_readiness": ("/ready", '"status":"ready"'),
        "get_info": ("/info", '"os_id":"world"'),
        "get_docs": ("/docs", "swagger-ui-bundle.js"),
        "get_redoc": ("/redoc", "redoc.standalone.js"),
        "get_openapi": ("/openapi.json", '"openapi":"3.1.0"'),
        "get_oauth2_redirect": ("/docs/oauth2-redirect", "<script>"),
        "get_docs_asset": ("/docs/assets/docs.js", "SwaggerUIBundle"),
    }
    for operation, (path, text) in public.items():
        for who in ("nobody", "bad", "me"):
            yield Scenario(operation, f"GET {path}", who, 200, (text,), ("://cdn.",))
    for who in ("nobody", "bad", "me"):
        for page in ("console", "chat"):
            shown = ("console/assets/", f"<title>agentctl {page}</title>")
            yield Scenario(f"get_{page}", f"GET /{page}", who, 200, shown, ("://",))
        asset = "GET {console_assets}/app/main.js"
        yield Scenario("get_console_asset", asset, who, 200, ("import ",), ("://",))
    for place in ("{console_assets}/app/nothing.js", "/console/assets/0/app/main.js"):
        yield Scenario("get_console_asset", f"GET {place}", "nobody", 404, NOT_FOUND)
    for name in ("nothing.js", "__init__.py"):
        yield Scenario("get_docs_asset", f"GET /docs/assets/{name}", "nobody", 404, NOT_FOUND)
    yield from _sign_in()
    yield Scenario("get_config", "GET /config", "me", 200, ('"databases":["main","second"]',))
    yield Scenario("get_config", "GET /config", "admin", 200, ('"crew"',), ("sqlite", "127.0.0.1"))
    yield Scenario("get_config", "GET /config", "powerless", 403, FORBIDDEN)
    yield Scenario("get_models", "GET /models", "me", 200, ('{"id":"echo","provider":"openai"}',))
    yield Scenario("get_models", "GET /models", "one agent", 403, FORBIDDEN)
    yield Scenario("get_me", "GET /auth/me", "me", 200, ('"principal":"me"', '"admin":false'))
    yield Scenario("get_me", "GET /auth/me", "powerless", 200, ('"scopes":[]',))
    yield Scenario("get_me", "GET /auth/me", "admin", 200, ('"admin":true',))


def _explanations() -> Iterator[Scenario]:
    operation = "explain_auth"
    path = "POST /auth/explain"
    asked = {"method": "GET", "path": "/agents/echo"}
    own = ('"allowed":true', '"operation":"get_agent"', '"principal":"boss"')
    yield Scenario(operation, path, "admin", 200, own, ("eyJ",), json=asked)
    bad = ('"allowed":false', '"status":401', '"decided_by":"form"', '"principal":null')
    yield Scenario(operation, path, "admin", 200, bad, ("a.b",), json=asked | {"token": "a.b"})
    nobody = ('"decided_by":"credential"', '"status":401')
    yield Scenario(operation, path, "admin", 200, nobody, json=asked | {"token": ""})
    unknown = ('"status":404', '"decided_by":"route"', '"operation":null')
    yield Scenario(operation, path, "admin", 200, unknown, json=asked | {"path": "/nothing"})
    there = asked | {"path": "/sessions/mine?user_id=other#x"}
    yield Scenario(operation, path, "admin", 200, ('"decided_by":"data"',), json=there)
    for wrong in ({"method": "G T"}, {"path": "agents"}, {"path": 1}, {"token": 1}, {"url": "x"}):
        yield Scenario(operation, path, "admin", 422, REFUSED, json=asked | wrong)
    yield Scenario(operation, path, "admin", 422, ("path",), json={"method": "GET"})
    long = asked | {"path": f"/agents?{'x=1&' * 101}"}
    yield Scenario(operation, path, "admin", 422, ("more than 100 fields",), json=long)
    for who in ("me", "powerless"):
        yield Scenario(operation, path, who, 403, (*FORBIDDEN, "[]"), json={"method": 1})


FAMILIES = (
    ("agent", "/agents", "echo", "mine", '"agent_id":"echo"'),
    ("team", "/teams", "desk", "mine-team", '"team_id":"desk"'),
    ("workflow", "/workflows", "line", "mine-workflow", '"workflow_id":"line"'),
)


def _families() -> Iterator[Scenario]:
    for kind, path, name, session_id, text in FAMILIES:
        one = f"{path}/{name}"
        run = f"{path}/{name}/runs/{{{kind}_run}}"
        yield from _reads(kind, path, one, text)
        yield from _starts(kind, path, one, session_id, text)
        yield from _runs(kind, path, one, run, session_id)
        yield from _cancels(kind, path, one, run, session_id)
        yield from _resumes(kind, one, run, session_id)
        yield from _repeats(kind, path, one, run)
        yield from _parts(kind, one, run, session_id)


def _reads(kind: str, path: str, one: str, text: str) -> Iterator[Scenario]:
    yield Scenario(f"get_{kind}s", f"GET {path}", "me", 200, (text, '"db_id"'))
    yield Scenario(f"get_{kind}s", f"HEAD {path}", "me", 200)
    yield Scenario(f"get_{kind}s", f"GET {path}?unknown=1", "me", 200)
    yield Scenario(f"get_{kind}s", f"GET {path}", "powerless", 403, FORBIDDEN)
    yield Scenario(f"get_{kind}", f"GET {one}", "me", 200, (text,))
    yield Scenario(f"get_{kind}", f"GET {one}", "powerless", 403, FORBIDDEN)
    yield Scenario(f"get_{kind}", f"GET {path}/nothing", "me", 404, NOT_FOUND)
    yield Scenario(f"get_{kind}", f"GET {path}/a%00b", "me", 404, NOT_FOUND, ("\\u0000",))
    for operation, place in (("versions", "versions"), ("version_diff", "versions/diff")):
        yield Scenario(f"get_{kind}_{operation}", f"GET {one}/{place}", "powerless", 403, FORBIDDEN)
        nothing = f"GET {path}/nothing/{place}"
        yield Scenario(f"get_{kind}_{operation}", nothing, "me", 404, NOT_FOUND)
    yield Scenario(f"get_{kind}_versions", f"GET {one}/versions", "me", 200)
    yield Scenario(f"get_{kind}_version_diff", f"GET {one}/versions/diff", "me", 200)


def _starts(kind: str, path: str, one: str, session_id: str, text: str) -> Iterator[Scenario]:
    operation = f"create_{kind}_run"
    runs = f"POST {one}/runs"
    inside = {**RUN, "session_id": session_id}
    yield Scenario(operation, runs, "me", 200, (text, "COMPLETED"), json=inside)
    event = {"agent": "RunStarted", "team": "TeamRunStarted", "workflow": "WorkflowStarted"}[kind]
    yield Scenario(operation, runs, "me", 200, (f"event: {event}\n",), form={"message": "hello"})
    yield Scenario(operation, runs, "me", 202, ('"status":"',), json=RUN | {"background": True})
    yield Scenario(operation, runs, "powerless", 403, FORBIDDEN, json={"message": 1})
    unknown = f"POST {path}/nothing/runs"
    yield Scenario(operation, unknown, "me", 404, NOT_FOUND, json={"message": 1})
    yield Scenario(operation, runs, "me", 404, NOT_FOUND, json={**RUN, "session_id": "theirs"})
    yield Scenario(operation, runs, "me", 422, ("message",), json={})
    yield Scenario(operation, runs, "me", 422, ("message",), form={"stream": "false"})
    yield Scenario(operation, runs, "me", 422, ("session_id",), json=RUN | {"session_id": "a b"})
    other = "mine-team" if kind == "agent" else "mine"
    yield Scenario(operation, runs, "me", 409, ("CONFLICT",), json={**RUN, "session_id": other})


def _runs(kind: str, path: str, one: str, run: str, session_id: str) -> Iterator[Scenario]:
    listed = f"list_{kind}_runs"
    got = f"get_{kind}_run"
    yield Scenario(listed, f"GET {one}/runs?limit=100", "me", 200, (f"{{{kind}_run}}", '"meta"'))
    yield Scenario(listed, f"GET {one}/runs", "other", 200, lacks=(f"{{{kind}_run}}",))
    yield Scenario(listed, f"GET {path}/nothing/runs", "me", 404, NOT_FOUND)
    yield Scenario(listed, f"GET {one}/runs?status=LOST", "me", 422, ("status must be one of",))
    yield Scenario(listed, f"GET {one}/runs?limit=many", "me", 422, ("limit",))
    yield Scenario(listed, f"GET {one}/runs?live=true", "me", 200, lacks=(f"{{{kind}_run}}",))
    yield Scenario(listed, f"GET {one}/runs?live=yes", "me", 422, ("live must be true or false",))
    yield Scenario(listed, f"GET {one}/runs", "powerless", 403, FORBIDDEN)
    yield Scenario(got, f"GET {run}", "me", 200, ('"status":"COMPLETED"', '"error":null'))
    yield Scenario(got, f"GET {run}?session_id={session_id}", "me", 200)
    yield Scenario(got, f"GET {run}?session_id=theirs", "me", 404, NOT_FOUND)
    yield Scenario(got, f"GET {run}", "other", 404, NOT_FOUND)
    yield Scenario(got, f"GET {one}/runs/nothing", "me", 404, NOT_FOUND)
    yield Scenario(got, f"GET {run}", "powerless", 403, FORBIDDEN)


def _cancels(kind: str, path: str, one: str, run: str, session_id: str) -> Iterator[Scenario]:
    operation = f"cancel_{kind}_run"
    cancel = f"POST {run}/cancel"
    final = ('"cancel":"already_final"', '"status":"COMPLETED"')
    yield Scenario(operation, f"{cancel}?session_id={session_id}", "me", 200, final)
    yield Scenario(operation, cancel, "admin", 200, final)
    yield Scenario(operation, cancel, "me", 400, ("BAD_REQUEST", "session_id"))
    yield Scenario(operation, f"{cancel}?session_id=theirs", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{cancel}?session_id={session_id}", "other", 404, NOT_FOUND)
    yield Scenario(operation, f"POST {one}/runs/no/cancel?session_id=x", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{cancel}?session_id={session_id}&wait=soon", "me", 422, ("wait",))
    yield Scenario(operation, f"{cancel}?session_id={session_id}&wait=31", "me", 422, ("wait",))
    yield Scenario(operation, cancel, "powerless", 403, FORBIDDEN)


def _resumes(kind: str, one: str, run: str, session_id: str) -> Iterator[Scenario]:
    operation = f"resume_{kind}_run_stream"
    resume = f"POST {run}/resume"
    inside = f"{resume}?session_id={session_id}"
    prefix = {"agent": "Run", "team": "TeamRun", "workflow": "Workflow"}[kind]
    content = f"event: {prefix}Content\n"
    end = f"event: {prefix}Completed\n"
    yield Scenario(operation, inside, "me", 200, (content, end, "id: 0\n", "id: 1\n"))
    yield Scenario(operation, resume, "admin", 200, (content, end))
    yield Scenario(operation, f"{inside}&last_event_index=0", "me", 200, (end,), (content,))
    yield Scenario(operation, f"{inside}&last_event_index=1", "me", 200, lacks=(content, end))
    both = {"session_id": session_id, "last_event_index": "0"}
    yield Scenario(operation, resume, "me", 200, (end,), (content,), form=both)
    yield Scenario(operation, inside, "me", 200, (end,), (content,), json={"last_event_index": 0})
    yield Scenario(operation, inside, "me", 200, (content,), form={"last_event_index": ""})
    yield Scenario(operation, inside, "me", 200, (content,), json={"last_event_index": None})
    yield Scenario(operation, resume, "me", 400, ("BAD_REQUEST", "session_id"))
    yield Scenario(operation, f"{resume}?session_id=theirs", "me", 404, NOT_FOUND)
    yield Scenario(operation, resume, "me", 404, NOT_FOUND, json={"session_id": "theirs"})
    yield Scenario(operation, inside, "other", 404, NOT_FOUND)
    yield Scenario(operation, f"POST {one}/runs/no/resume?session_id=x", "me", 404, NOT_FOUND)
    other = "/agents/hang" if kind == "agent" else "/agents/echo"
    yield Scenario(
        "resume_agent_run_stream",
        f"POST {other}/runs/{{{kind}_run}}/resume?session_id={session_id}",
        "me",
        404,
        NOT_FOUND,
    )
    for wrong in ("soon", "-2", "", "1e3", "1000000000000000000"):
        path = f"{inside}&last_event_index={wrong}"
        yield Scenario(operation, path, "me", 422, ("last_event_index",))
    for number in ("0", 1.0, True, -2, 10**18, 2**64):
        body = {"last_event_index": number}
        yield Scenario(operation, inside, "me", 422, ("last_event_index",), json=body)
    differing = {"last_event_index": "1"}
    path = f"{inside}&last_event_index=0"
    yield Scenario(operation, path, "me", 422, ("last_event_index",), form=differing)
    yield Scenario(operation, inside, "me", 422, ("session_id",), json={"session_id": "x"})
    yield Scenario(operation, inside, "me", 422, ("run is not known",), json={"run": 1})
    yield Scenario(operation, resume, "powerless", 403, FORBIDDEN)


def _repeats(kind: str, path: str, one: str, run: str) -> Iterator[Scenario]:
    at_zero = {"at": 0, "message": "again"}
    for verb, body in (("retry", {}), ("fork", at_zero)):
        operation = f"{verb}_{kind}_run"
        repeat = f"POST {run}/{verb}"
        whole = {**body, "stream": False}
        origin = (f'"origin_run_id":"{{{kind}_run}}"', f'"origin_kind":"{verb}"')
        yield Scenario(operation, repeat, "me", 200, ("COMPLETED", *origin), json=whole)
        yield Scenario(operation, repeat, "other", 404, NOT_FOUND, json=whole)
        yield Scenario(operation, f"POST {one}/runs/no/{verb}", "me", 404, NOT_FOUND, json=whole)
        unknown = f"POST {path}/nothing/runs/no/{verb}"
        yield Scenario(operation, unknown, "me", 404, NOT_FOUND, json=whole)
        wrong = {**whole, "confirm": 1}
        yield Scenario(operation, repeat, "me", 422, ("confirm", *REFUSED), json=wrong)
        yield Scenario(operation, repeat, "powerless", 403, FORBIDDEN, json=wrong)
    beyond = {**at_zero, "at": 1000, "stream": False}
    yield Scenario(f"fork_{kind}_run", f"POST {run}/fork", "me", 422, ("at must be",), json=beyond)


def _parts(kind: str, one: str, run: str, session_id: str) -> Iterator[Scenario]:
    operation = f"get_{kind}_run_events"
    events = f"GET {run}/events"
    prefix = {"agent": "Run", "team": "TeamRun", "workflow": "Workflow"}[kind]
    content = f"event: {prefix}Content\n"
    end = f"event: {prefix}Completed\n"
    yield Scenario(operation, events, "me", 200, (content, end, "id: 0\n", "id: 1\n"))
    inside = f"{events}?session_id={session_id}"
    yield Scenario(operation, f"{inside}&last_event_index=0", "me", 200, (end,), (content,))
    yield Scenario(operation, f"{events}?session_id=theirs", "me", 404, NOT_FOUND)
    yield Scenario(operation, events, "other", 404, NOT_FOUND)
    yield Scenario(operation, f"GET {one}/runs/no/events", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{events}?last_event_index=-2", "me", 422, ("last_event_index",))
    yield Scenario(operation, events, "powerless", 403, FORBIDDEN)
    operation = f"get_{kind}_run_tool_call"
    tool = f"GET {run}/tools/none"
    yield Scenario(operation, tool, "me", 404, ("NOT_FOUND", "Tool call not found"))
    yield Scenario(operation, f"{tool}?session_id=theirs", "me", 404, NOT_FOUND)
    yield Scenario(operation, tool, "other", 404, ("NOT_FOUND", "Run not found"))
    yield Scenario(operation, tool, "powerless", 403, FORBIDDEN)
    if kind == "team":
        made = f"GET {run}/tools/{{team_run_call}}"
        yield Scenario(operation, made, "me", 200, ("{team_run_call}", '"result":"hello"'))


def _lists() -> Iterator[Scenario]:
    operation = "get_sessions"
    whole = "GET /sessions?limit=100"
    yield Scenario(operation, whole, "me", 200, ('"mine"', '"meta"'), ('"theirs"',))
    yield Scenario(operation, whole, "admin", 200, ('"mine"', '"theirs"'))
    yield Scenario(operation, f"{whole}&user_id=other", "me", 200, ('"data":[]',))
    yield Scenario(
        operation, f"{whole}&type=team", "me", 200, ('"mine-team"',), ('"mine-workflow"',)
    )
    yield Scenario(operation, f"{whole}&session_name=HEL", "me", 200, ('"mine"',))
    yield Scenario(operation, f"{whole}&component_id=line", "me", 200, ('"mine-workflow"',))
    yield Scenario(operation, "GET /sessions?sort_by=updated_at&sort_order=asc", "me", 200)
    yield Scenario(operation, "GET /sessions?db_id=second", "me", 200, ('"data":[]',))
    yield Scenario(operation, "GET /sessions?db_id=nothing", "me", 404, NOT_FOUND)
    yield Scenario(operation, "GET /sessions?table=users", "me", 404, NOT_FOUND)
    for query in (
        "limit=0",
        "limit=101",
        "limit=x",
        "limit=",
        "page=0",
        "page=-1",
        "page=1e3",
        "limit=1_0",
        "type=user",
        "type=",
        "sort_by=user_id",
        "sort_order=up",
        "cursor=bogus",
        "limit=1&limit=2",
        "user_id=a%00",
        "user_id=%ff",
        "session_name=%ed%a0%80",
        "page=99999999999999999999",
    ):
        name = query.partition("=")[0]
        yield Scenario(operation, f"GET /sessions?{query}", "me", 422, (name, *REFUSED))
    yield Scenario(operation, "GET /sessions?page=600", "me", 422, ("cursor",))
    yield Scenario(operation, "GET /sessions", "powerless", 403, FORBIDDEN)


def _creations() -> Iterator[Scenario]:
    operation = "create_session"
    path = "POST /sessions"
    yield Scenario(operation, path, "me", 201, ('"session_name":""', '"chat_history":[]'), json={})
    yield Scenario(
        operation, f"{path}?type=team", "me", 201, ('"team_id":"crew"',), json={"team_id": "crew"}
    )
    yield Scenario(operation, path, "me", 201, ('"user_id":"me"',), json={"user_id": "me"})
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json={"user_id": "other"})
    yield Scenario(operation, path, "me", 409, ("CONFLICT",), json={"session_id": "mine"})
    yield Scenario(operation, path, "me", 409, ("CONFLICT",), json={"session_id": "theirs"})
    yield Scenario(operation, path, "me", 404, NOT_FOUND, json={"agent_id": "nothing"})
    yield Scenario(operation, f"{path}?db_id=nothing", "me", 404, NOT_FOUND, json={})
    bodies: tuple[Any, ...] = (
        {"session_id": "a/b"}, {"session_id": ""}, {"session_id": 1}, {"session_state": []},
        {"metadata": "x"},
        {"session_name": "\x00"}, {"metadata": {"a": ["\ud800"]}}, {"metadata": {"\x00": 1}},
        {"session_state": {"n": 2**64}}, {"team_id": "crew"}, {"owner": "me"}, [], "text", 1,
    )  # fmt: skip
    for body in bodies:
        yield Scenario(operation, path, "me", 422, REFUSED, json=body)
    yield Scenario(operation, f"{path}?type=user", "me", 422, ("type",), json={})
    yield Scenario(operation, path, "admin", 422, ("user_id",), json={"user_id": ""})
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN, json={"owner": 1})


def _one_session() -> Iterator[Scenario]:
    operation = "get_session_by_id"
    mine = ('"agent_session_id":"mine"', '"chat_history":[{', '"total_tokens":')
    yield Scenario(operation, "GET /sessions/mine", "me", 200, mine)
    yield Scenario(operation, "GET /sessions/mine", "one session", 200, mine)
    yield Scenario(operation, "HEAD /sessions/mine", "me", 200)
    yield Scenario(
        operation, "GET /sessions/mine?type=agent&user_id=me&db_id=main&table=sessions", "me", 200
    )
    yield Scenario(
        operation, "GET /sessions/mine-team", "me", 200, ('"team_data":{',), ('"agent_id"',)
    )
    yield Scenario(operation, "GET /sessions/mine-workflow", "me", 200, ('"session_data":{',))
    for path in (
        "nothing",
        "theirs",
        "mine?type=team",
        "mine?user_id=other",
        "mine?db_id=nothing",
        "mine?db_id=second",
        "mine?table=users",
        "MINE",
        "mi%6e",
    ):
        yield Scenario(operation, f"GET /sessions/{path}", "me", 404, NOT_FOUND, ("chat_history",))
    yield Scenario(operation, "GET /sessions/mine?type=user", "me", 422, ("agent, team, workflow",))
    yield Scenario(operation, "GET /sessions/mine%00", "me", 404, NOT_FOUND)
    yield Scenario(operation, "GET /sessions/theirs", "one session", 403, FORBIDDEN)
    yield Scenario(operation, "GET /sessions/mine?type=user", "powerless", 403, FORBIDDEN)


def _changes() -> Iterator[Scenario]:
    to_change = "/sessions/to-rename"
    operation = "update_session"
    path = f"PATCH {to_change}"
    yield Scenario(operation, path, "me", 200, ('"metadata":{"a":1}',), json={"metadata": {"a": 1}})
    yield Scenario(operation, path, "me", 200, ('"metadata":null',), json={"metadata": None})
    yield Scenario(operation, path, "writer", 200, json={"session_state": {}})
    yield Scenario(operation, path, "me", 422, ("owner",), json={"owner": "me"})
    yield Scenario(operation, path, "me", 422, ("session_name",), json={"session_name": None})
    yield Scenario(operation, "PATCH /sessions/nothing", "me", 404, NOT_FOUND, json={"owner": 1})
    yield Scenario(operation, "PATCH /sessions/theirs", "me", 404, NOT_FOUND, json={"metadata": {}})
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN, json={"owner": 1})
    operation = "rename_session"
    path = f"POST {to_change}/rename"
    renamed = {"session_name": "New name"}
    yield Scenario(operation, path, "me", 200, ('"session_name":"New name"',), json=renamed)
    yield Scenario(operation, path, "me", 422, ("session_name",), json={})
    yield Scenario(operation, "POST /sessions/theirs/rename", "me", 404, NOT_FOUND, json=renamed)
    yield Scenario(operation, "POST /sessions/nothing/rename", "me", 404, NOT_FOUND, json={})
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN, json=renamed)


def _summaries() -> Iterator[Scenario]:
    operation = "summarize_session"
    path = "POST /sessions"
    refused = ("BAD_REQUEST", "makes summaries")
    yield Scenario(operation, f"{path}/summed/summarize", "me", 200, ('"covered_runs":',))
    yield Scenario(operation, f"{path}/mine/summarize", "me", 400, refused)
    yield Scenario(operation, f"{path}/theirs/summarize", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/nothing/summarize", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/mine/summarize?type=team", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/mine/summarize", "powerless", 403, FORBIDDEN)


def _holds() -> Iterator[Scenario]:
    operation = "hold_session"
    path = "POST /sessions/summed/hold"
    held = {"reason": "claim 17"}
    wrong = {"reason": ""}
    yield Scenario(operation, path, "admin", 422, ("reason",), json=wrong)
    yield Scenario(operation, path, "admin", 200, ('"reason":"claim 17"',), json=held)
    yield Scenario(operation, path, "admin", 409, ("CONFLICT", "held already"), json=held)
    yield Scenario(operation, "POST /sessions/nothing/hold", "admin", 404, NOT_FOUND, json=held)
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json=held)
    held_ids = ("HELD", '"session_ids":["summed"]')
    yield Scenario("delete_session", "DELETE /sessions/summed", "me", 409, held_ids)
    operation = "release_session"
    path = "DELETE /sessions/summed/hold"
    yield Scenario(operation, path, "me", 403, FORBIDDEN)
    yield Scenario(operation, path, "admin", 204)
    yield Scenario(operation, path, "admin", 409, ("CONFLICT", "not held"))
    yield Scenario(operation, "DELETE /sessions/nothing/hold", "admin", 404, NOT_FOUND)


def _retention() -> Iterator[Scenario]:
    operation = "get_idle_sessions"
    path = "GET /retention/sessions"
    yield Scenario(operation, f"{path}?idle_days=1", "admin", 200, ('"data":[]',))
    yield Scenario(operation, f"{path}?idle_days=0", "admin", 422, ("idle_days",))
    yield Scenario(operation, path, "admin", 200, ('"data":[]',))
    yield Scenario(operation, f"{path}?idle_days=1", "me", 403, FORBIDDEN)
    operation = "prune_sessions"
    path = "POST /retention/sessions/prune"
    ids = {"idle_days": 1, "session_ids": ["mine", "nothing"]}
    kept = ('"removed":[]', '"used":["mine"]', '"missing":["nothing"]')
    yield Scenario(operation, path, "admin", 200, kept, json=ids)
    yield Scenario(operation, path, "admin", 422, ("session_ids",), json={**ids, "session_ids": []})
    yield Scenario(operation, path, "admin", 422, ("idle_days",), json={"session_ids": ["mine"]})
    yield Scenario(operation, f"{path}?db_id=none", "admin", 404, NOT_FOUND, json=ids)
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json=ids)


def _personal_data() -> Iterator[Scenario]:
    operation = "get_user_data"
    path = "GET /user-data"
    yield Scenario(operation, f"{path}?user_id=none", "admin", 200, ('"open_runs":0',))
    yield Scenario(operation, path, "admin", 422, ("user_id",))
    yield Scenario(operation, f"{path}?user_id=none", "me", 403, FORBIDDEN)
    operation = "get_user_rows"
    path = "GET /user-data/rows?user_id=none"
    yield Scenario(operation, f"{path}&part=usage", "admin", 200, ('"data":[]',))
    yield Scenario(operation, f"{path}&part=other", "admin", 422, ("part",))
    yield Scenario(operation, f"{path}&part=usage&db_id=none", "admin", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}&part=usage", "me", 403, FORBIDDEN)
    operation = "erase_user_data"
    path = "POST /user-data/erase"
    nobody = {"user_id": "none"}
    yield Scenario(operation, path, "admin", 200, ('"erased":[]',), json=nobody)
    yield Scenario(operation, path, "admin", 422, ("vacuum",), json={**nobody, "vacuum": "soon"})
    yield Scenario(operation, path, "admin", 422, ("user_id",), json={"user_id": ""})
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json=nobody)


def _deletions() -> Iterator[Scenario]:
    operation = "delete_session"
    yield Scenario(operation, "DELETE /sessions/to-delete?cancel=true", "me", 204)
    yield Scenario(operation, "DELETE /sessions/to-delete-twice", "me", 404, NOT_FOUND)
    yield Scenario(operation, "DELETE /sessions/theirs", "me", 404, NOT_FOUND)
    yield Scenario(operation, "DELETE /sessions/mine?cancel=perhaps", "me", 422, ("cancel",))
    yield Scenario(operation, "DELETE /sessions/mine", "writer", 403, FORBIDDEN)
    operation = "delete_sessions"
    path = "DELETE /sessions"
    yield Scenario(operation, path, "me", 204, json={"session_ids": ["bulk-1", "bulk-2"]})
    yield Scenario(operation, path, "me", 404, NOT_FOUND, json={"session_ids": ["mine", "theirs"]})
    for ids in ([], ["a"] * 101, [1], "mine", None):
        yield Scenario(operation, path, "me", 422, ("session_ids",), json={"session_ids": ids})
    yield Scenario(operation, path, "writer", 403, FORBIDDEN, json={"session_ids": []})


def _runs_of_sessions() -> Iterator[Scenario]:
    operation = "get_session_runs"
    path = "GET /sessions/mine/runs"
    yield Scenario(operation, path, "me", 200, ("{agent_run}",))
    yield Scenario(operation, f"{path}?limit=1", "me", 200, ("{agent_run}",))
    itself = ('"run_id":"{agent_run}"',)  # its retry, which follows, names it as the origin
    yield Scenario(operation, f"{path}?after={{agent_run}}", "me", 200, lacks=itself)
    yield Scenario(operation, f"{path}?after=nothing", "me", 422, ("after",))
    yield Scenario(operation, f"{path}?limit=0", "me", 422, ("limit",))
    yield Scenario(operation, "GET /sessions/theirs/runs", "me", 404, NOT_FOUND)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)
    yield Scenario(operation, f"{path}?view=items", "me", 200, ('"items":[{',), ('"messages"',))
    yield Scenario(operation, f"{path}?view=phase", "me", 200, ('"words":"completed"',))
    yield Scenario(operation, f"{path}?view=none", "me", 422, ("view",))
    operation = "export_session"
    path = "GET /sessions/mine/export"
    yield Scenario(operation, path, "me", 200, ('{"session":{', "{agent_run}"))
    yield Scenario(operation, f"{path}?format=markdown", "me", 200, ("\n## 1. me, ",))
    yield Scenario(operation, f"{path}?format=xml", "me", 422, ("format",))
    yield Scenario(operation, "GET /sessions/theirs/export", "me", 404, NOT_FOUND)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)
    operation = "get_session_run"
    path = "GET /sessions/mine/runs/{agent_run}"
    yield Scenario(operation, path, "me", 200, ("{agent_run}",))
    yield Scenario(operation, f"{path}?type=workflow", "me", 404, NOT_FOUND)
    yield Scenario(operation, "GET /sessions/mine/runs/{their_run}", "me", 404, NOT_FOUND)
    yield Scenario(operation, "GET /sessions/theirs/runs/{their_run}", "me", 404, NOT_FOUND)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)
    operation = "get_runs"
    path = "GET /runs"
    yield Scenario(operation, f"{path}?limit=100", "me", 200, ("{team_run}",), ("{their_run}",))
    yield Scenario(operation, f"{path}?limit=100", "admin", 200, ("{team_run}", "{their_run}"))
    filters = "status=COMPLETED&component_type=workflow&component_id=line&session_id=mine-workflow"
    yield Scenario(operation, f"{path}?{filters}", "me", 200, ("{workflow_run}",), ("{agent_run}",))
    yield Scenario(operation, f"{path}?component_type=x", "me", 422, ("component_type",))
    every = f"{path}?limit=100"
    live = f"{every}&live=true"
    yield Scenario(operation, live, "admin", 200, ('"meta"',), ("{agent_run}",))
    yield Scenario(operation, f"{live}&status=RUNNING", "me", 422, ("live and status",))
    yield Scenario(operation, f"{every}&live=false&status=COMPLETED", "me", 200, ("{agent_run}",))
    since = f"{every}&created_after="
    until = f"{every}&created_before="
    for past in ("2001-01-01T00:00:00Z", "2001-01-01t00:00:00.5%2B02:00"):
        yield Scenario(operation, since + past, "me", 200, ("{agent_run}",))
        yield Scenario(operation, until + past, "me", 200, ('"data":[]',))
    for text in ("", "now", "1", "2001-01-01", "2001-02-30T00:00:00Z", "2001-01-01T00:00:00"):
        yield Scenario(operation, since + text, "me", 422, ("created_after", "RFC 3339"))
        yield Scenario(operation, until + text, "me", 422, ("created_before", "RFC 3339"))
    ended = f"{every}&finished_after="
    yield Scenario(operation, f"{ended}2001-01-01T00:00:00Z", "me", 200, ("{agent_run}",))
    yield Scenario(operation, f"{ended}2999-01-01T00:00:00Z", "me", 200, ('"data":[]',))
    yield Scenario(operation, f"{ended}now", "me", 422, ("finished_after", "RFC 3339"))
    yield Scenario(operation, f"{every}&at_work=true", "me", 200, ('"data":[]',))
    before = f"{every}&finished_before="
    yield Scenario(operation, f"{before}2001-01-01T00:00:00Z", "me", 200, ('"data":[]',))
    yield Scenario(operation, f"{before}now", "me", 422, ("finished_before", "RFC 3339"))
    yield Scenario(operation, f"{every}&parent=none", "me", 200, ("{agent_run}",))
    yield Scenario(operation, f"{every}&parent=some", "me", 422, ("parent",))
    yield Scenario(operation, f"{every}&error_code=NONE", "me", 200, ('"data":[]',))
    yield Scenario(operation, f"{every}&model=echo", "me", 422, ("model needs",))
    yield Scenario(operation, f"{ended}2001-01-01T00:00:00Z&model=no", "me", 200, ('"data":[]',))
    yield Scenario(operation, f"{path}?db_id=nothing", "me", 404, NOT_FOUND)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)
    operation = "get_run"
    path = "GET /runs/{agent_run}"
    yield Scenario(operation, path, "me", 200, ("{agent_run}",))
    yield Scenario(operation, "GET /runs/{their_run}", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}?db_id=second", "me", 404, NOT_FOUND)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)


def _granting(*scopes: str, **more: Any) -> dict[str, Any]:
    grants = [{"scope": scope, "effect": "allow"} for scope in scopes]
    return {"name": "new", "scopes": grants, **more}


def _accounts() -> Iterator[Scenario]:
    operation = "create_service_account"
    path = "POST /service-accounts"
    told = ('"token":"agentctl_pat_', '"name":"new"', '"created_by":"max"', '"state":"active"')
    body = _granting("agents:echo:read")
    yield Scenario(operation, path, "manager", 201, told, json=body)
    taken = body | {"name": "kept"}
    yield Scenario(operation, path, "manager", 409, ("CONFLICT",), ("_pat_",), json=taken)
    plain = {"name": "plain", "scopes": [{"scope": "agents:read"}], "expires_in_days": None}
    yield Scenario(operation, path, "manager", 201, ('"effect":"allow"',), json=plain)
    unheld = (*FORBIDDEN, '"agents:run"', "do not have: agents:run")
    yield Scenario(operation, path, "manager", 403, unheld, json=_granting("agents:run"))
    admin = _granting("agent_os:admin", allow_privileged_scopes=True)
    yield Scenario(operation, path, "manager", 403, FORBIDDEN, json=admin)
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN, json={"name": 1})
    privileged = _granting("agents:read", "service_accounts:read")
    unmeant = ("BAD_REQUEST", "allow_privileged_scopes: service_accounts:read")
    yield Scenario(operation, path, "manager", 400, unmeant, json=privileged)
    meant = privileged | {"name": "meant", "allow_privileged_scopes": True, "never_expires": True}
    yield Scenario(operation, path, "manager", 201, ('"expires_at":null',), json=meant)
    near = ("scopes[0].scope", "did you mean agents:read")
    yield Scenario(operation, path, "manager", 422, near, json=_granting("agents:raed"))
    yield Scenario(operation, path, "admin", 422, ("form",), ("<b>",), json=_granting("<b>:read"))
    for text, wrong in _wrong_accounts(body):
        yield Scenario(operation, path, "manager", 422, (text, *REFUSED), ("_pat_",), json=wrong)
    yield Scenario(operation, path, "manager", 415, ("application/json",), form={"name": "x"})
    operation = "list_service_accounts"
    path = "GET /service-accounts"
    seeded = ("{kept_account}", '"token_hint"', '"meta"')
    yield Scenario(operation, f"{path}?limit=100", "manager", 200, seeded, ("_pat_", "token_hash"))
    yield Scenario(operation, f"{path}?name=kept", "admin", 200, ("{kept_account}",), ('"doomed"',))
    first = f"{path}?limit=1&sort_order=asc"
    yield Scenario(operation, first, "manager", 200, ('"kept"', '"next_cursor":"'))
    for query in ("limit=0", "limit=101", "page=0", "cursor=x", "sort_order=up", "name=%00"):
        name = query.partition("=")[0]
        yield Scenario(operation, f"{path}?{query}", "manager", 422, (name, *REFUSED))
    yield Scenario(operation, f"{path}?limit=x", "powerless", 403, FORBIDDEN)
    operation = "revoke_service_account"
    path = "DELETE /service-accounts"
    yield Scenario(operation, f"{path}/{{doomed_account}}", "manager", 204)
    yield Scenario(operation, f"{path}/nothing", "manager", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/kept", "manager", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/{{kept_account}}", "me", 403, FORBIDDEN)


def _wrong_accounts(body: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield part of the error message and the invalid body."""
    grant = {"scope": "agents:read"}
    yield "name", {"scopes": [grant]}
    for name in ("", "a b", "x" * 65, ["x"], None):
        yield "name", body | {"name": name}
    yield "scopes", {"name": "x"}
    for scopes in ([], "agents:read", [grant] * 257, None):
        yield "scopes", body | {"scopes": scopes}
    yield "scopes[0] must", body | {"scopes": ["agents:read"]}
    yield "scopes[1].scope", body | {"scopes": [grant, {}]}
    yield "scopes[0].scope", body | {"scopes": [{"scope": 1}]}
    yield "scopes[0].id is not known", body | {"scopes": [grant | {"id": 1}]}
    for effect in ("deny", None, "", 1):
        yield "scopes[0].effect", body | {"scopes": [grant | {"effect": effect}]}
    for days in (0, -1, 3651, "90", 1.5, True):
        yield "expires_in_days", body | {"expires_in_days": days}
    yield "never_expires", body | {"never_expires": 1}
    yield "never_expires", body | {"expires_in_days": 1, "never_expires": True}
    yield "token is not known", body | {"token": "agentctl_pat_x"}


def _memories() -> Iterator[Scenario]:
    operation = "get_memories"
    path = "GET /memories"
    who = "rememberer"
    mine = ('"Likes green tea"', '"user_id":"me"')
    theirs = ("black", "{their_memory}")
    for query in ("", "?user_id=me", "?topics=food", "?search_content=LIKES+tea", "?limit=100"):
        yield Scenario(operation, f"{path}{query}", who, 200, mine, theirs)
    none = ('{"data":[],"meta":{',)
    for query in (
        "user_id=other",
        "topics=food,pets",
        "topics=secret",
        "search_content=black",
        "agent_id=echo",
        "team_id=desk",
    ):
        yield Scenario(operation, f"{path}?{query}", who, 200, none)
    yield Scenario(operation, f"{path}?user_id=other", "admin", 200, ('"Likes black tea"',))
    yield Scenario(operation, f"{path}?search_content=tea", "admin", 200, (*mine, "black"))
    for query in (
        "limit=0",
        "page=0",
        "cursor=x",
        "sort_by=memory",
        "search_content=%21",
        "topics=%00",
        "user_id=%00",
    ):
        name = query.partition("=")[0]
        yield Scenario(operation, f"{path}?{query}", who, 422, (name, *REFUSED))
    yield Scenario(operation, path, "me", 403, ("memories:read", *FORBIDDEN))
    operation = "get_memory"
    path = "GET /memories"
    yield Scenario(operation, f"{path}/{{my_memory}}", who, 200, ('"topics":["food"]', *mine))
    yield Scenario(operation, f"{path}/{{their_memory}}", who, 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/nothing", who, 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/{{their_memory}}", "admin", 200, ('"user_id":"other"',))
    yield Scenario(operation, f"{path}/{{my_memory}}", "me", 403, ("memories:read", *FORBIDDEN))
    operation = "get_memory_topics"
    path = "GET /memory_topics"
    yield Scenario(operation, path, who, 200, ('"food"',), ("secret",))
    yield Scenario(operation, f"{path}?user_id=other", who, 200, ("[]",))
    yield Scenario(operation, f"{path}?user_id=other", "admin", 200, ('["secret"]',))
    yield Scenario(operation, path, "me", 403, FORBIDDEN)
    operation = "create_memory"
    path = "POST /memories"
    body = {"memory": "Plays chess", "topics": ["games", "games"]}
    made = ('"topics":["games"]', '"user_id":"me"', '"run_id":null')
    yield Scenario(operation, path, who, 201, made, json=body)
    yield Scenario(operation, path, who, 403, FORBIDDEN, json=body | {"user_id": "other"})
    own = body | {"user_id": "me", "agent_id": "echo"}
    yield Scenario(operation, path, who, 201, ('"user_id":"me"', '"agent_id":"echo"'), json=own)
    yield Scenario(
        operation, path, "admin", 201, ('"user_id":"zoe"',), json=body | {"user_id": "zoe"}
    )
    yield Scenario(operation, path, "nameless", 400, ("no subject",), json=body)
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json={})
    for text, wrong in _wrong_memories():
        yield Scenario(operation, path, who, 422, (text, *REFUSED), json=wrong)
    operation = "update_memory"
    path = "PATCH /memories"
    changed = ('"memory":"Lives in Oslo"', '"topics":["home"]')
    body = {"memory": "Lives in Oslo", "topics": ["home"]}
    yield Scenario(operation, f"{path}/{{old_memory}}", who, 200, changed, json=body)
    yield Scenario(operation, f"{path}/{{old_memory}}", who, 422, ("memory",), json={"memory": ""})
    for json in (body, {"memory": 1}):
        yield Scenario(operation, f"{path}/{{their_memory}}", who, 404, NOT_FOUND, json=json)
    yield Scenario(operation, f"{path}/{{my_memory}}", "me", 403, FORBIDDEN, json=body)
    operation = "delete_memories"
    path = "DELETE /memories"
    both = {"memory_ids": ["{bulk_memory}", "{their_memory}"]}
    yield Scenario(operation, path, who, 404, NOT_FOUND, json=both)
    wrong_user = {"memory_ids": ["{bulk_memory}"], "user_id": "other"}
    yield Scenario(operation, path, "admin", 404, NOT_FOUND, json=wrong_user)
    yield Scenario(operation, path, who, 204, json={"memory_ids": ["{bulk_memory}"]})
    yield Scenario(operation, path, who, 403, FORBIDDEN, json={"user_id": "other", "all": True})
    # Before all memories of the user are deleted.
    yield Scenario("delete_memory", f"{path}/{{old_memory}}", who, 204)
    yield Scenario(operation, path, who, 204, json={"user_id": "me", "all": True})
    yield Scenario(operation, path, "admin", 204, json={"user_id": "zoe", "all": True})
    yield Scenario(operation, path, "admin", 422, ("user_id is required",), json={"all": True})
    for wrong in ({}, {"memory_ids": []}, {"memory_ids": ["x"], "all": True}, {"all": False}):
        yield Scenario(operation, path, who, 422, ("memory_ids", *REFUSED), json=wrong)
    yield Scenario(operation, path, "me", 403, FORBIDDEN, json=both)
    operation = "delete_memory"
    path = "DELETE /memories"
    yield Scenario(operation, f"{path}/{{their_memory}}", who, 404, NOT_FOUND)
    yield Scenario(operation, f"{path}/{{my_memory}}", "me", 403, FORBIDDEN)
    their_own = '"memory":"Likes black tea"'
    yield Scenario("get_memory", "GET /memories/{their_memory}", "admin", 200, (their_own,))


def _files() -> Iterator[Scenario]:
    operation = "get_files"
    path = "GET /files"
    yield Scenario(operation, path, "me", 200, ("my_file.txt", "{my_file}"), ("{their_file}",))
    yield Scenario(operation, f"{path}?user_id=other", "me", 200, ('{"data":[],',))
    yield Scenario(operation, f"{path}?user_id=other", "admin", 200, ("{their_file}",))
    yield Scenario(operation, f"{path}?session_id=none", "me", 200, ('{"data":[],',))
    for query in ("limit=0", "cursor=x", "session_id=%00"):
        name = query.partition("=")[0]
        yield Scenario(operation, f"{path}?{query}", "me", 422, (name, *REFUSED))
    yield Scenario(operation, f"{path}?db_id=none", "me", 404, NOT_FOUND)
    for operation, method, rest in (
        ("get_file", "GET", ""),
        ("get_file_content", "GET", "/content"),
        ("delete_file", "DELETE", ""),
    ):
        for file_id in ("{their_file}", "nothing"):
            yield Scenario(operation, f"{method} /files/{file_id}{rest}", "me", 404, NOT_FOUND)
        yield Scenario(operation, f"{method} /files/{{my_file}}{rest}", "powerless", 403, FORBIDDEN)
        unknown = f"{method} /files/{{my_file}}{rest}?db_id=second"
        yield Scenario(operation, unknown, "me", 404, NOT_FOUND)
    yield Scenario("get_files", path, "powerless", 403, ("sessions:read", *FORBIDDEN))
    yield Scenario("get_file", "GET /files/{my_file}", "me", 200, ('"origin":"upload"',))
    content = "GET /files/{my_file}/content"
    yield Scenario("get_file_content", content, "me", 200, ("my_file",))
    part = {"range": "bytes=3-"}
    yield Scenario("get_file_content", content, "me", 206, ("file",), ("my_file",), headers=part)
    beyond = {"range": "bytes=99-"}
    yield Scenario("get_file_content", content, "me", 416, ("7 bytes",), headers=beyond)
    operation = "upload_file"
    path = "POST /files"
    made = ('"media_type":"application/json"', '"user_id":"me"', '"session_id":null')
    yield Scenario(operation, f"{path}?name=a.json", "me", 201, made, json={"a": 1})
    yield Scenario(operation, f"{path}?name=a.json", "powerless", 403, FORBIDDEN, json={"a": 1})
    yield Scenario(operation, path, "me", 422, ("name", *REFUSED), json={"a": 1})
    yield Scenario(operation, f"{path}?name=a.json", "me", 415, ("not JSON",), form={"a": "b"})
    yield Scenario("delete_file", "DELETE /files/{old_file}", "me", 204)


def _wrong_memories() -> Iterator[tuple[str, Any]]:
    """Yield part of the error message and the invalid body."""
    yield "memory", {}
    for memory in ("", "  ", "x" * 4001, "a\0b", 1, None):
        yield "memory", {"memory": memory}
    for topics in ("food", ["x" * 65], ["a,b"], [""], [f"t{n}" for n in range(17)], [1]):
        yield "topic", {"memory": "x", "topics": topics}
    yield "memory_id is not known", {"memory": "x", "memory_id": "x"}


def _lists_by_scope() -> Iterator[Scenario]:
    yield Scenario("get_agents", "GET /agents", "one agent", 200, ('"echo"',), ('"apart"',))
    yield Scenario("get_agent", "GET /agents/apart", "one agent", 403, ("agents:apart:read",))
    yield Scenario("get_teams", "GET /teams", "one agent", 403, FORBIDDEN)


def _known_documents() -> Iterator[Scenario]:
    """Yield reads by callers that have the document, or pretend to."""
    known = {"If-None-Match": "*"}
    for operation, path in (
        ("get_sessions", "/sessions"),
        ("get_session_by_id", "/sessions/mine"),
        ("get_session_runs", "/sessions/mine/runs"),
        ("get_session_run", "/sessions/mine/runs/{agent_run}"),
        ("get_runs", "/runs"),
        ("get_run", "/runs/{agent_run}"),
        ("get_agents", "/agents"),
        ("get_agent", "/agents/echo"),
        ("list_agent_runs", "/agents/echo/runs"),
        ("get_agent_run", "/agents/echo/runs/{agent_run}"),
    ):
        yield Scenario(operation, f"GET {path}", "me", 304, headers=known)
        yield Scenario(operation, f"GET {path}", "powerless", 403, FORBIDDEN, headers=known)
        yield Scenario(operation, f"GET {path}", "bad", 401, headers=known)
        if "mine" in path or "{agent_run}" in path:
            yield Scenario(operation, f"GET {path}", "other", 404, NOT_FOUND, headers=known)


def _audit() -> Iterator[Scenario]:
    operation = "get_audit"
    path = "GET /audit"
    mine = f"{path}?principal=me&limit=100"
    made = ('"operation":"create_agent_run"', '"resource":"agent:echo,session:only,run:{only_run}"')
    once = f"{path}?principal=once&operation=create_agent_run"
    yield Scenario(operation, once, "admin", 200, made)
    yield Scenario(operation, mine, "auditor", 200, ('"principal":"me"',), ('"principal":"other"',))
    yield Scenario(operation, f"{path}?limit=1", "auditor", 200, ('"next_cursor":"',))
    yield Scenario(operation, f"{path}?principal=nobody", "auditor", 200, ('{"data":[],"meta":{',))
    denied = f"{path}?outcome=denied"
    yield Scenario(operation, denied, "auditor", 200, ('"meta":{',), ('"allowed"',))
    late = f"{path}?since=2999-01-01T00:00:00Z"
    yield Scenario(operation, late, "auditor", 200, ('"data":[]', '"next_cursor":null'))
    yield Scenario(operation, f"{path}?outcome=lost", "auditor", 422, ("allowed, denied, failed",))
    for query in ("limit=0", "limit=101", "limit=x", "since=now", "since=1", "cursor=x", "cursor="):
        name = query.partition("=")[0]
        yield Scenario(operation, f"{path}?{query}", "auditor", 422, (name, *REFUSED))
    yield Scenario(operation, path, "me", 403, ("audit:read", *FORBIDDEN))
    yield Scenario(operation, f"{path}?limit=0", "powerless", 403, FORBIDDEN)
    operation = "get_audit_heads"
    path = "GET /audit/heads"
    yield Scenario(operation, path, "auditor", 200, ('{"data":[],"meta":{"next_cursor":null}}',))
    for query in ("limit=0", "limit=101", "limit=x", "cursor=x", "cursor="):
        name = query.partition("=")[0]
        yield Scenario(operation, f"{path}?{query}", "auditor", 422, (name, *REFUSED))
    yield Scenario(operation, path, "me", 403, ("audit:read", *FORBIDDEN))
    yield Scenario(operation, path, "nobody", 401)


def _approvals() -> Iterator[Scenario]:
    """Yield requests about approvals and pauses, of which the scenarios have none."""
    path = "GET /approvals"
    who = "approver"
    yield Scenario("get_approvals", path, who, 200, ('"data":[]', '"total_count":0'))
    for query in ("status=maybe", "kind=x", "limit=0", "cursor=x", "created_after=now"):
        wrong = (query.partition("=")[0], *REFUSED)
        yield Scenario("get_approvals", f"{path}?{query}", who, 422, wrong)
    yield Scenario("get_approvals", f"{path}?db_id=nowhere", who, 404, NOT_FOUND)
    yield Scenario("get_approvals", path, "me", 403, ("approvals:read", *FORBIDDEN))
    yield Scenario("get_approvals", path, "nobody", 401)
    components = {"agent": "agents/echo", "team": "teams/desk", "workflow": "workflows/line"}
    for kind, component in components.items():
        one = f"/{component}/approvals/none"
        get = "get"
        decide = "decide"
        hint = f"approvals:{component.partition('/')[2]}:"
        for verb, request in ((get, f"GET {one}"), (decide, f"POST {one}/decide")):
            operation = f"{verb}_{kind}_approval"
            scope = "read" if verb == get else "write"
            for body in ({"decision": "reject"}, {"decision": 1}, {}):
                json = body if verb == decide else None
                yield Scenario(operation, request, who, 404, NOT_FOUND, json=json)
                yield Scenario(
                    operation, request, "me", 403, (f"{hint}{scope}", *FORBIDDEN), json=json
                )
            yield Scenario(operation, request, "bad", 401)
        operation = f"get_{kind}_approval_receipt"
        receipt = f"GET {one}/receipt"
        yield Scenario(operation, receipt, who, 404, NOT_FOUND)
        yield Scenario(operation, receipt, "me", 403, (f"{hint}read", *FORBIDDEN))
        yield Scenario(operation, receipt, "bad", 401)
        operation = f"continue_{kind}_run"
        resume = f"POST /{component}/runs/{{{kind}_run}}/continue"
        has_ended = ("CONFLICT", "The run has ended as COMPLETED already")
        yield Scenario(operation, resume, "me", 409, has_ended)
        yield Scenario(operation, resume, "me", 409, has_ended, json={"stream": False})
        yield Scenario(operation, resume, "me", 422, ("decisions",), json={"decisions": 1})
        yield Scenario(operation, resume, "other", 404, NOT_FOUND, json={"decisions": 1})
        yield Scenario(operation, f"POST /{component}/runs/no/continue", "me", 404, NOT_FOUND)
        yield Scenario(operation, resume, "powerless", 403, FORBIDDEN)


def _webhooks() -> Iterator[Scenario]:
    """Yield requests about webhooks, of which the scenarios have none."""
    yield Scenario("get_webhooks", "GET /webhooks", "admin", 200, ("[]",))
    yield Scenario("get_webhooks", "GET /webhooks", "me", 403, ("webhooks:read", *FORBIDDEN))
    operation = "get_webhook_deliveries"
    path = "GET /webhooks/deliveries"
    yield Scenario(operation, path, "admin", 200, ('"data":[]', '"total_count":0'))
    for query in ("state=maybe", "limit=0", "cursor=x", "created_after=now", "id_prefix=short"):
        wrong = (query.partition("=")[0], *REFUSED)
        yield Scenario(operation, f"{path}?{query}", "admin", 422, wrong)
    yield Scenario(operation, path, "me", 403, ("webhooks:read", *FORBIDDEN))
    for operation, path in (
        ("redeliver_webhook", "POST /webhooks/deliveries/none/redeliver"),
        ("test_webhook", "POST /webhooks/none/test"),
        ("enable_webhook", "POST /webhooks/none/enable"),
    ):
        yield Scenario(operation, path, "admin", 404, NOT_FOUND)
        yield Scenario(operation, path, "me", 403, ("webhooks:write", *FORBIDDEN))
        yield Scenario(operation, path, "nobody", 401)


def _halts() -> Iterator[Scenario]:
    """Yield requests about halts. The created one stops a user who starts nothing here."""
    halt = {"scope": "user", "scope_id": "nobody-at-all", "reason": "a test"}
    yield Scenario("create_halt", "POST /halts", "admin", 201, ('"state":"active"',), json=halt)
    for name, value in (("scope", "crowd"), ("scope_id", None), ("reason", ""), ("until", "now")):
        wrong = (name, *REFUSED)
        yield Scenario(
            "create_halt", "POST /halts", "admin", 422, wrong, json={**halt, name: value}
        )
    forbidden = ("halts:write", *FORBIDDEN)
    yield Scenario("create_halt", "POST /halts", "me", 403, forbidden, json=halt)

    yield Scenario("get_halts", "GET /halts", "admin", 200, ('"total_count":',))
    yield Scenario("get_halts", "GET /halts?state=maybe", "admin", 422, ("state", *REFUSED))
    yield Scenario("get_halts", "GET /halts", "me", 403, ("halts:read", *FORBIDDEN))

    yield Scenario("get_halt", "GET /halts/none", "admin", 404, NOT_FOUND)
    yield Scenario("get_halt", "GET /halts/none", "me", 403, ("halts:read", *FORBIDDEN))
    yield Scenario("end_halt", "DELETE /halts/none", "admin", 404, NOT_FOUND)
    yield Scenario("end_halt", "DELETE /halts/none", "me", 403, forbidden)


def _usage() -> Iterator[Scenario]:
    """Yield requests for usage and an overview."""
    for operation, path in (("get_usage", "/usage"), ("get_usage_overview", "/usage/overview")):
        yield Scenario(operation, f"GET {path}", "admin", 200, ('"total":{"runs":',))
        yield Scenario(operation, f"GET {path}?user_id=absent", "admin", 200, ('"groups":',))
        for query in ("limit=0", "limit=1001", "since=now", "before=1", "by=week", "model=%00"):
            wrong = (query.partition("=")[0], *REFUSED)
            yield Scenario(operation, f"GET {path}?{query}", "admin", 422, wrong)
        yield Scenario(operation, f"GET {path}?db_id=nothing", "admin", 404, NOT_FOUND)
        yield Scenario(operation, f"GET {path}", "me", 403, ("usage:read", *FORBIDDEN))
        yield Scenario(operation, f"GET {path}", "nobody", 401)


def _budgets_and_causes() -> Iterator[Scenario]:
    """Yield requests for budgets and for the causes of failures."""
    yield Scenario("get_budgets", "GET /budgets", "admin", 200, ("[]",))
    yield Scenario("get_budgets", "GET /budgets?user_id=%00", "admin", 422, ("user_id", *REFUSED))
    yield Scenario("get_budgets", "GET /budgets", "me", 403, ("usage:read", *FORBIDDEN))
    yield Scenario("get_budgets", "GET /budgets", "nobody", 401)
    operation = "get_deployment"
    path = "GET /deployment"
    yield Scenario(operation, path, "admin", 200, ('"workers":[', "are free on its disk"))
    yield Scenario(operation, path, "me", 403, FORBIDDEN)
    yield Scenario(operation, path, "nobody", 401)
    operation = "get_run_causes"
    path = "GET /runs/{agent_run}/causes"
    yield Scenario(operation, path, "admin", 200, ("{agent_run}", '"causes":[]'))
    yield Scenario(operation, "GET /runs/absent/causes", "admin", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}?db_id=second", "admin", 404, NOT_FOUND)
    yield Scenario(operation, path, "me", 403, ("runs:debug", *FORBIDDEN))
    yield Scenario(operation, path, "nobody", 401)
    operation = "get_failures"
    path = "GET /failures"
    yield Scenario(operation, path, "admin", 200, ('"data":[', '"total_count"'))
    yield Scenario(operation, f"{path}?limit=0", "admin", 422, ("limit", *REFUSED))
    yield Scenario(operation, f"{path}?db_id=nothing", "admin", 404, NOT_FOUND)
    yield Scenario(operation, path, "me", 403, ("runs:debug", *FORBIDDEN))
    yield Scenario(operation, path, "nobody", 401)


def _messages() -> Iterator[Scenario]:
    """Yield requests for the messages to a run."""
    operation = "get_run_messages"
    path = "GET /runs/{agent_run}/messages"
    yield Scenario(operation, path, "me", 200, ("{agent_run}", '"messages":[]', '"total":0'))
    yield Scenario(operation, "GET /runs/absent/messages", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}?after=absent", "me", 404, NOT_FOUND)
    yield Scenario(operation, f"{path}?limit=0", "me", 422, ("limit", *REFUSED))
    yield Scenario(operation, path, "powerless", 403, FORBIDDEN)
    yield Scenario(operation, path, "nobody", 401)

    operation = "send_message"
    path = "POST /runs/{agent_run}/messages"
    body = {"message": "hello", "late": "refuse"}
    ended = "The run had ended as COMPLETED"
    yield Scenario(operation, path, "me", 409, (ended,), json=body)
    yield Scenario(operation, path, "me", 422, ("message", *REFUSED), json={"message": " "})
    yield Scenario(operation, path, "me", 422, ("late", *REFUSED), json={**body, "late": "never"})
    yield Scenario(operation, path, "me", 422, REFUSED, json={})
    yield Scenario(operation, "POST /runs/absent/messages", "me", 404, NOT_FOUND, json=body)
    yield Scenario(operation, path, "other", 404, NOT_FOUND, json=body)
    yield Scenario(operation, path, "powerless", 403, ("agents:echo:run", *FORBIDDEN), json=body)
    yield Scenario(operation, path, "nobody", 401, json=body)


def _model_calls() -> Iterator[Scenario]:
    """Yield requests for the model calls of a run."""
    path = "GET /runs/{agent_run}/model-calls"
    for operation, place, known in (
        ("get_run_model_calls", path, '"total":1'),
        ("get_run_model_call", f"{path}/model-1", '"state":"complete"'),
    ):
        yield Scenario(operation, place, "me", 200, ("{agent_run}", known))
        yield Scenario(operation, f"{place}?db_id=second", "me", 404, NOT_FOUND)
        yield Scenario(operation, place, "powerless", 403, FORBIDDEN)
        yield Scenario(operation, place, "nobody", 401)
    yield Scenario("get_run_model_calls", "GET /runs/absent/model-calls", "me", 404, NOT_FOUND)
    yield Scenario("get_run_model_calls", f"{path}?after=model-2", "me", 404, NOT_FOUND)
    yield Scenario("get_run_model_calls", f"{path}?limit=0", "me", 422, ("limit", *REFUSED))
    yield Scenario("get_run_model_call", f"{path}/model-2", "me", 404, NOT_FOUND)
    yield Scenario("get_run_model_call", f"{path}/model-1?cut=0", "me", 422, ("cut", *REFUSED))


SCENARIOS = [
    *_system(), *_explanations(), *_families(), *_lists(), *_creations(), *_one_session(),
    *_changes(), *_deletions(), *_runs_of_sessions(), *_lists_by_scope(), *_known_documents(),
    *_audit(),
    *_accounts(), *_memories(), *_files(), *_summaries(), *_holds(), *_retention(), *_approvals(),
    *_personal_data(),
    *_webhooks(), *_halts(), *_usage(), *_messages(),
    *_budgets_and_causes(), *_model_calls(),
]  # fmt: skip
