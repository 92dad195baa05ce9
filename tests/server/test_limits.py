"""The tables of docs/limits.md: each default is that of the code, each outcome that of a server."""

from __future__ import annotations

import base64
import json
import pkgutil
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import jwt
import pytest

import agentctl
from agentctl.config.quotas import Quotas
from agentctl.config.settings import Limits, Runs, Settings
from agentctl.config.tables import ENTRY_TABLES, SECTIONS
from agentctl.server.transport.protocol import build_protocol_class
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.documents import page
from tests.kit.process import base_environment
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.runtime.provider_scripts import build_call, build_chunk, encode_event, script
from tests.server.raw_http import open_raw_connection


class Row(NamedTuple):
    """A row of the page.

    Attributes:
        name: the key of a setting, or the place of a constant.
        longest: the longest time for which its worst input keeps other requests waiting, such as
            `5 ms`; `-` if it orders no work.
    """

    bound: str
    default: str
    name: str
    outcome: str
    longest: str


def read_rows() -> list[Row]:
    found = []
    for line in page("docs/limits.md").text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 5 and cells[2].startswith("`"):
            found.append(Row(cells[0], cells[1], cells[2].strip("`"), *cells[3:]))
    return found


ROWS = read_rows()

NOT_LISTED = {
    "agentctl.auth.tokens.mint.MAXIMUM_LIFETIME",
    "agentctl.auth.oidc.MAXIMUM_NAME_LENGTH",
    "agentctl.runs.engine.versions.MAXIMUM_CHANGES",
    "agentctl.runs.engine.versions.MAXIMUM_VALUE",
    "agentctl.auth.keys.keyring.MAXIMUM_POLLS",
    "agentctl.auth.keys.remote.MAXIMUM_RETRY_SECONDS",
    "agentctl.auth.tokens.account_tokens.MAXIMUM_CACHED",
    "agentctl.auth.tokens.account_tokens.MAXIMUM_CACHED_UNKNOWN",
    "agentctl.work.child_processes.MAXIMUM_DESCENDANTS",
    "agentctl.interop.agentos.server.operation.MAXIMUM_BYTES",
    "agentctl.interop.agentos.server.operation.MAXIMUM_ENTRY_BYTES",
    "agentctl.remote.connection.MAXIMUM_PROBE_BYTES",
    "agentctl.records.run_spec.MAXIMUM_SHOWN_ARGUMENTS",
    "agentctl.records.run_spec.MAXIMUM_SHOWN_CALLS",
    "agentctl.runtime.models.stream_transport.MAXIMUM_IDLE",
    "agentctl.runtime.runners.langgraph_space.MAXIMUM_ARGUMENTS",
    "agentctl.server.processes.metrics_endpoint.MAXIMUM_PENDING_REQUESTS",
    "agentctl.server.processes.supervisor.MAXIMUM_PAUSE",
    "agentctl.admin.runs_doctor.find.MAXIMUM_NAMES_SHOWN",
    "agentctl.service.documents.session_documents.MAXIMUM_BYTES",
    "agentctl.store.database.MAXIMUM_COMPILED",
    "agentctl.admin.imports.records.MAXIMUM_COST",
    "agentctl.interface.requests.halts.MAXIMUM_SCOPE_ID_LENGTH",
    "agentctl.runs.gate.budget_periods.MAXIMUM_AMOUNT",
    "agentctl.service.documents.session_documents.MAXIMUM_TEXT_BYTES",
    "agentctl.store.listing.MAXIMUM_STATEMENTS",
    "agentctl.store.totals.MAXIMUM_LISTS",
    "agentctl.store.totals.MAXIMUM_SECONDS",
    "agentctl.store.listing.MAXIMUM_SURPLUS",
    "agentctl.store.postgres.listener.MAXIMUM_MESSAGE",
    "agentctl.store.repositories.events.MAXIMUM_BATCHES",
    "agentctl.store.repositories.events.MAXIMUM_FOLLOWED",
    "agentctl.store.repositories.events.MAXIMUM_FOLLOWED_ROWS",
    "agentctl.store.repositories.search_pages.MAXIMUM_LEAVES",
    "agentctl.store.sqlite.inspect.MAXIMUM_DAMAGES",
}
"""Sizes of caches and of batches, pauses, and names that are drawn: no caller meets them."""


def find_value(name: str) -> object:
    """Return the default of a setting, or the value of a constant below `agentctl`."""
    place, _, last = name.rpartition(".")
    table = {**SECTIONS, **ENTRY_TABLES}.get(place)
    if table is None:
        return getattr(import_module(f"agentctl.{place}"), last)
    (field,) = [field for field in fields(table) if field.name == last]
    assert field.default is not MISSING, name
    return field.default


@every_row("row", ROWS)
def test_default_on_the_page_is_that_of_the_code(row: Row) -> None:
    stated = re.match(r"[\d,.]+", row.default)
    assert stated is not None, row
    assert float(stated[0].replace(",", "")) == float(str(find_value(row.name)))


@every_row("row", ROWS)
def test_longest_time_on_the_page_is_at_most_100_ms(row: Row) -> None:
    assert row.longest in ("-", "1 ms", "2 ms", "5 ms", "10 ms", "20 ms", "50 ms", "100 ms")


def test_every_bound_has_one_row() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    for table, kind in (("limits", Limits), ("quotas", Quotas), ("runs", Runs)):
        bounds = {f"{table}.{field.name}" for field in fields(kind)} - {
            "runs.on_change",
            "runs.on_halt",
        }
        assert bounds <= set(names)
    constants = set()
    for module in pkgutil.walk_packages(agentctl.__path__, "agentctl."):
        # Commands draw on a terminal: their bounds are widths and numbers of lines.
        if not module.name.startswith(("agentctl.cli", "agentctl.transcripts")):
            constants |= {f"{module.name}.{name}" for name in find_maximums(module.name)}
    listed = {f"agentctl.{name}" for name in names}
    assert constants - listed == NOT_LISTED


def find_maximums(module: str) -> list[str]:
    """Return the constants of a module without those that it imports. It is not executed: the
    library that it needs may be missing here."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return re.findall(r"^(MAXIM\w*)\b[^=\n]* = ", Path(spec.origin).read_text(), re.MULTILINE)


CODE = '''
from agentctl import RunContext


async def large(message: str, context: RunContext) -> str:
    return "x" * int(message)


async def stateful(message: str, context: RunContext) -> str:
    context.state["a"] = "x" * int(message)
    return "done"


async def reporting(message: str, context: RunContext) -> str:
    for number in range(int(message)):
        context.progress("x" * 1_500)
    return "done"


async def recalling(message: str, context: RunContext) -> str:
    await context.memories.recall("x", limit=int(message))
    return "done"


def blob(size: int) -> str:
    """Return a text of a size."""
    return "x" * size
'''

DEFAULT = """
[openai]
enabled = true

[[models]]
id = "script"
provider = "openai"
model = "script"
base_url = "{url}"

[[agents]]
id = "script"
model = "script"
"""

SMALL = """
[limits]
concurrent_runs = 1
followed_runs = 1
run_bytes = 20_000
tool_result_bytes = 2_000
state_bytes = 1_000

[runs]
timeout_seconds = 8
tool_timeout_seconds = 2

[console]
oidc_issuer = "http://127.0.0.1:9"
oidc_client_id = "console"

[quotas]
sessions_per_user = 1
memories_per_user = 1
bytes_per_user = 10_000

[[models]]
id = "blob"
provider = "openai"
model = "tool:blob"
base_url = "{url}"

[[agents]]
id = "blob"
model = "blob"
tools = ["probed_agents:blob"]

[[agents]]
id = "large"
object = "probed_agents:large"

[[agents]]
id = "reporting"
object = "probed_agents:reporting"

[[agents]]
id = "recalling"
object = "probed_agents:recalling"

[[agents]]
id = "stateful"
object = "probed_agents:stateful"
"""


class Servers(NamedTuple):
    """A server with the default bounds, and one with small ones."""

    default: ThreadedServer
    small: ThreadedServer


@pytest.fixture(scope="module")
def servers(deploy: Deploy) -> Iterator[Servers]:
    default = deploy(DEFAULT.format(url=deploy.url))
    small = deploy(SMALL.format(url=deploy.url), files={"probed_agents.py": CODE})
    http = build_protocol_class(header_seconds=2, body_seconds=2)
    with serve_in_thread(default) as first, serve_in_thread(small, http=http) as second:
        yield Servers(first, second)


def ask(served: ThreadedServer, request: str, body: Any = None, **headers: str) -> httpx2.Response:
    """Send a request of an administrator."""
    method, path = request.split(" ", 1)
    sent = {**served.bearer("root", ADMIN), **headers}
    return served.client.request(method, path, json=body, headers=sent)


def ask_when_free(send: Callable[[], httpx2.Response]) -> httpx2.Response:
    """Start the only run of a server once the slot of the last one is free, soon after its end."""

    def answer() -> httpx2.Response | None:
        answered = send()
        is_full = answered.status_code == 429
        is_full = is_full and answered.json()["error_code"] == "TOO_MANY_REQUESTS"
        return None if is_full else answered

    answered: httpx2.Response = wait_for(answer)
    return answered


Probe = Callable[[Servers], str]


def refuse(request: str, body: Any = None, **headers: str) -> Probe:
    """Build a probe: a request to the server with the default bounds, and its status."""
    return lambda servers: str(ask(servers.default, request, body, **headers).status_code)


def run(message: str, **fields: Any) -> dict[str, Any]:
    return {"message": message, "stream": False, **fields}


def nest(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def send_token(**claims: Any) -> Probe:
    """Build a probe: a token with a claim, which is signed with the key of the server."""

    def probe(servers: Servers) -> str:
        settings: Settings = servers.default.deployment.settings
        given = {"sub": "ada", "scopes": [ADMIN], **claims}
        token = jwt.encode(given, settings.signing.key_file.read_bytes(), "RS256")
        headers = {"Authorization": f"Bearer {token}"}
        return str(servers.default.client.get("/sessions", headers=headers).status_code)

    return probe


def start_with_long_message(servers: Servers) -> str:
    ran = ask(servers.default, f"POST {RUNS}", run("x" * 100)).json()
    found = ask(servers.default, f"GET /sessions/{ran['session_id']}").json()
    return "cut" if found["session_name"] == "x" * 59 + "…" else ""


def send_slowly(beginning: bytes) -> Probe:
    def probe(servers: Servers) -> str:
        with open_raw_connection(servers.small.port) as connection:
            connection.send(beginning)
            connection.socket.settimeout(PATIENCE)
            while connection.socket.recv(4_096):
                pass
        return "closed"

    return probe


def fail_run(agent: str, message: str) -> Probe:
    """Build a probe: a run on the server with small bounds, and the code of its failure."""

    def probe(servers: Servers) -> str:
        user = f"user-of-{agent}"
        headers = servers.small.bearer(user, "agents:run", "sessions:delete")
        body = run(message, session_id=f"s-{agent}")
        small = servers.small.client
        path = f"/agents/{agent}/runs"
        answered = ask_when_free(lambda: small.post(path, json=body, headers=headers))
        assert answered.status_code == 200, answered.text
        return str(answered.json()["error"]["code"])

    return probe


def call_tool(agent: str, arguments: Any) -> Probe:
    """Build a probe: a tool call on the server with small bounds."""

    def probe(servers: Servers) -> str:
        headers = servers.small.bearer(f"user-of-{agent}", "agents:run")
        body = run(json.dumps(arguments))
        small = servers.small.client
        path = f"/agents/{agent}/runs"
        answered = ask_when_free(lambda: small.post(path, json=body, headers=headers))
        assert answered.status_code == 200, answered.text
        call = answered.json()["tools"][0]
        if call["tool_call_error"]:
            return "fails"
        assert len(call["result"].encode()) == 2_000
        return "cut"

    return probe


def cancel_run(parameter: str) -> Probe:
    """Build a probe: a cancel of a run that has ended, with a parameter."""

    def probe(servers: Servers) -> str:
        ran = ask(servers.default, f"POST {RUNS}", run("x")).json()
        path = f"{RUNS}/{ran['run_id']}/cancel?session_id={ran['session_id']}&{parameter}"
        return str(ask(servers.default, f"POST {path}").status_code)

    return probe


def report_progress(servers: Servers) -> list[str]:
    """Return the texts of the progress events of a run that reports 1,005 times."""
    headers = servers.small.bearer("reporter", "agents:run")
    body = {"message": "1005", "stream": True, "session_id": "reports"}
    path = "/agents/reporting/runs"
    small = servers.small.client
    texts = []
    answered = ask_when_free(lambda: small.post(path, json=body, headers=headers))
    for line in answered.iter_lines():
        data = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
        if data.get("event") == "RunProgress":
            texts.append(data["text"])
    return texts


def count_progress(servers: Servers) -> str:
    return "dropped" if len(report_progress(servers)) == 1_000 else ""


def measure_progress(servers: Servers) -> str:
    return "cut" if {len(text) for text in report_progress(servers)} == {1_000} else ""


def recall_too_many(servers: Servers) -> str:
    return "error" if fail_run("recalling", "51")(servers) == "AGENT_FAILED" else ""


def resume_late(servers: Servers) -> str:
    ran = ask(servers.default, f"POST {RUNS}", run("x")).json()
    path = f"{RUNS}/{ran['run_id']}/events?last_event_index={10**18}"
    return str(ask(servers.default, f"GET {path}").status_code)


def read_large_key_file(servers: Servers) -> str:
    deployment = servers.small.deployment
    large = deployment.folder / "large.pem"
    large.write_bytes(b"x" * 1_048_577)
    ended = run_command(
        "keys",
        "list",
        "--config",
        str(deployment.path),
        environment=base_environment() | {"JWT_JWKS_FILE": str(large)},
        folder=deployment.folder,
    )
    assert "1048576 bytes" in ended.stderr
    return "rejected" if ended.code == 2 else ""


def answer_with(*events: object) -> Probe:
    """Build a probe: a run whose model answers with events, and the code of its failure."""

    def probe(servers: Servers) -> str:
        message = script(*events, build_chunk({}, "stop"))
        ended = ask(servers.default, "POST /agents/script/runs", run(message)).json()
        return str(ended["error"]["code"])

    return probe


def summarize_long_answers(servers: Servers) -> str:
    for _ in range(2):
        body = run("x" * 4_000, session_id="long")
        assert ask(servers.default, "POST /agents/summed/runs", body).status_code == 200
    return str(ask(servers.default, "POST /sessions/long/summarize").status_code)


def follow_two_runs(servers: Servers) -> str:
    small = servers.small
    body = run("x", background=True, user_id="follower")
    began = ask_when_free(lambda: ask(small, "POST /agents/hang/runs", body)).json()
    path = f"/agents/hang/runs/{began['run_id']}"
    query = f"session_id={began['session_id']}"
    headers = small.bearer("root", ADMIN)
    with small.client.stream("GET", f"{path}/events?{query}", headers=headers) as followed:
        assert followed.status_code == 200
        refused = ask(small, f"GET {path}/events?{query}")
        other = small.bearer("other", ADMIN)
        with small.client.stream("GET", f"{path}/events?{query}", headers=other) as answered:
            assert answered.status_code == 200
        assert ask(small, f"POST {path}/cancel?{query}&wait=30").json()["status"] == "CANCELLED"
    assert refused.headers["retry-after"] == "1"
    return str(refused.status_code)


def keep_token(servers: Servers, tab: int, *scopes: str) -> httpx2.Response:
    """Keep the token of a tab of the console."""
    key = base64.urlsafe_b64encode(bytes([tab]) * 32).decode().rstrip("=")
    headers = servers.default.bearer("tabs", *scopes) | {"agentctl-console-key": key}
    kept = servers.default.client.post("/console/sign-in/token", headers=headers)
    assert kept.status_code == 204
    return kept


def create_sign_in_links(servers: Servers) -> str:
    """Create links for more tokens than the server keeps; return what became of the oldest one."""
    client = servers.default.client
    codes = [
        client.post(
            "/console/sign-in/links", headers=servers.default.bearer(f"linked-{number}")
        ).json()["code"]
        for number in range(101)
    ]

    def use(code: str) -> int:
        headers = {"Agentctl-Console-Key": "k" * 43}
        answer = client.post("/console/sign-in/link", json={"code": code}, headers=headers)
        client.cookies.clear()
        return answer.status_code

    return "forgotten" if [use(code) for code in codes[:2]] == [400, 200] else ""


def keep_long_token(servers: Servers) -> str:
    # Random names: a cookie has compressed bytes.
    names = (secrets.token_urlsafe(24) for _ in range(110))
    kept = keep_token(servers, 0, *(f"agents:{name}:run" for name in names))
    return "" if "set-cookie" in kept.headers else "not"


def keep_tokens_of_tabs(servers: Servers) -> str:
    first, *others = (keep_token(servers, tab) for tab in range(5))
    servers.default.client.cookies.clear()
    name = first.headers["set-cookie"].partition("=")[0]
    assert not any("Max-Age=0" in kept.headers["set-cookie"] for kept in others[:-1])
    return "forgotten" if f"{name}=; Max-Age=0" in others[-1].headers["set-cookie"] else ""


def start_two_runs(servers: Servers) -> str:
    small = servers.small
    body = run("x", background=True)
    began = ask_when_free(lambda: ask(small, "POST /agents/hang/runs", body)).json()
    refused = ask(small, "POST /agents/hang/runs", run("x", user_id="someone"))
    path = f"/agents/hang/runs/{began['run_id']}/cancel?session_id={began['session_id']}&wait=30"
    assert ask(small, f"POST {path}").json()["status"] == "CANCELLED"
    assert refused.json()["error_code"] == "TOO_MANY_REQUESTS"
    return str(refused.status_code)


def exceed_quota(path: str, *bodies: dict[str, Any]) -> Probe:
    def probe(servers: Servers) -> str:
        for body in bodies:
            sent = {"user_id": f"quota-{path}", **body}
            last = ask_when_free(lambda sent=sent: ask(servers.small, f"POST {path}", sent))  # type: ignore[misc]
        assert last.json()["error_code"] == "QUOTA_EXCEEDED"
        return str(last.status_code)

    return probe


RUNS = "/agents/echo/runs"
ACCOUNT: dict[str, Any] = {"name": "a", "scopes": [{"scope": "agents:run"}]}

PROBES: dict[str, Probe] = {
    "server.transport.guard.MAXIMUM_HEAD_BYTES": refuse("GET /health", **{"X-Long": "x" * 17_000}),
    "server.transport.guard.MAXIMUM_FIELDS": refuse(
        "GET /health", **{f"X-{n}": "x" for n in range(101)}
    ),
    "server.transport.connection.HEADER_SECONDS": send_slowly(
        b"GET /health HTTP/1.1\r\nHost: x\r\n"
    ),
    "server.transport.connection.BODY_SECONDS": send_slowly(
        b"POST /sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
    ),
    "limits.body_bytes": refuse("POST /sessions?type=agent", {"metadata": {"a": "x" * 1_048_576}}),
    "auth.tokens.algorithms.MAXIMUM_TOKEN": refuse(
        "GET /sessions", Authorization=f"Bearer {'a' * 8_193}"
    ),
    "server.content.MAXIMUM_PAIRS": refuse(f"GET /sessions?{'a=1&' * 101}"),
    "records.strict.MAXIMUM_VALUES": refuse("POST /sessions?type=agent", {"a": [0] * 70_000}),
    "runtime.models.provider.MAXIMUM_EVENT_LINES": answer_with(
        encode_event('{"choices": []\ndata: }' + "\nx" * 4_096)
    ),
    "runtime.models.calls.MAXIMUM_ARGUMENT_BYTES": answer_with(
        build_chunk(build_call("{")),
        [encode_event(build_chunk(build_call("x" * 50_000, name=None, call_id=None))), 21],
    ),
    "runtime.models.openai_answer.MAXIMUM_DETAILS": answer_with(
        [encode_event(build_chunk({"reasoning_details": [{"type": "t"}] * 1_024})), 65]
    ),
    "runtime.transcript.history.MAXIMUM_SUMMARY": summarize_long_answers,
    "limits.followed_runs": follow_two_runs,
    "server.routes.console.MAXIMUM_TOKEN_BYTES": keep_long_token,
    "server.routes.console.MAXIMUM_TABS": keep_tokens_of_tabs,
    "server.sign_in_links.MAXIMUM_LINKS": create_sign_in_links,
    "server.routes.console.MAXIMUM_FIELD_LENGTH": lambda servers: str(
        servers.small.client.post(
            "/console/sign-in/start", json={"redirect_uri": "http://" + "x" * 4_096}
        ).status_code
    ),
    "records.text.MAXIMUM_DEPTH": refuse("POST /sessions?type=agent", {"metadata": nest(65)}),
    "records.strict.MAXIMUM_DEPTH": send_token(deep=nest(9)),
    "auth.tokens.claims._MAXIMUM_AUDIENCES": send_token(aud=[f"a{n}" for n in range(17)]),
    "service.operations.authorization._MAXIMUM_PATH": refuse(
        "POST /auth/explain", {"method": "GET", "path": "/" + "x" * 8_192}
    ),
    "runs.life.admission.SESSION_NAME_LENGTH": start_with_long_message,
    "records.authorization.MAXIMUM_SCOPES": refuse(
        "POST /service-accounts",
        {**ACCOUNT, "scopes": [{"scope": f"agents:a{n}:run"} for n in range(257)]},
    ),
    "interface.requests.administration.MAXIMUM_ACCOUNT_DAYS": refuse(
        "POST /service-accounts", {**ACCOUNT, "expires_in_days": 3_651}
    ),
    "interface.requests.MAXIMUM_USER_ID_LENGTH": refuse(
        "POST /sessions?type=agent", {"user_id": "u" * 256}
    ),
    "interface.requests.MAXIMUM_SESSION_NAME_LENGTH": refuse(
        "POST /sessions?type=agent", {"session_name": "n" * 256}
    ),
    "interface.requests.MAXIMUM_REASON_LENGTH": cancel_run(f"reason={'r' * 501}"),
    "interface.requests.MAXIMUM_CANCEL_WAIT": cancel_run("wait=31"),
    "interface.requests.MAXIMUM_LIMIT": refuse("GET /sessions?limit=101"),
    "interface.requests.lists.MAXIMUM_PAIRS": refuse(
        f"GET /sessions?{'&'.join(['metadata=a%3Db'] * 5)}"
    ),
    "interface.requests.lists.MAXIMUM_TAGS": refuse(f"GET /runs?{'&'.join(['tag=a'] * 5)}"),
    "interface.requests.lists.MAXIMUM_KEY_LENGTH": refuse(f"GET /runs?metadata={'k' * 65}%3Db"),
    "interface.requests.lists.MAXIMUM_VALUE_LENGTH": refuse(f"GET /sessions?tag={'t' * 257}"),
    "interface.requests.lists.MAXIMUM_ERROR_LENGTH": refuse(f"GET /sessions?error={'e' * 201}"),
    "interface.requests.administration.MAXIMUM_GROUPS": refuse("GET /usage?limit=1001"),
    "service.operations.usage.MAXIMUM_POINTS": refuse(
        "GET /usage/overview?since=2001-01-01T00:00:00Z"
    ),
    "interface.requests.MAXIMUM_OFFSET": refuse("GET /sessions?limit=100&page=102"),
    "interface.requests.MAXIMUM_CUT": refuse("GET /runs?cut=1000001"),
    "interface.requests.MAXIMUM_DELETED_SESSIONS": refuse(
        "DELETE /sessions", {"session_ids": [f"s{n}" for n in range(101)]}
    ),
    "interface.requests.administration.MAXIMUM_PRUNED": refuse(
        "POST /retention/sessions/prune",
        {"idle_days": 9, "session_ids": [f"s{n}" for n in range(101)]},
    ),
    "interface.requests.administration.MAXIMUM_IDLE_DAYS": refuse(
        "GET /retention/sessions?idle_days=36501"
    ),
    "interface.requests.memories.MAXIMUM_MEMORIES_DELETED": refuse(
        "DELETE /memories", {"memory_ids": [f"m{n}" for n in range(101)]}
    ),
    "interface.requests.MAXIMUM_EVENT_NUMBER": resume_late,
    "runtime.context.MAXIMUM_PROGRESS_EVENTS": count_progress,
    "runtime.context.MAXIMUM_PROGRESS_LENGTH": measure_progress,
    "store.repositories.memories.MAXIMUM_FOUND": recall_too_many,
    "auth.keys.files.MAXIMUM_KEY_FILE": read_large_key_file,
    "limits.message_bytes": refuse(f"POST {RUNS}", run("x" * 262_145)),
    "limits.state_bytes": refuse(f"POST {RUNS}", run("x", metadata={"a": "x" * 65_536})),
    "limits.concurrent_runs": start_two_runs,
    "runs.timeout_seconds": fail_run("hang", "x"),
    "runs.tool_timeout_seconds": call_tool("tool-wait", {"seconds": 60}),
    "limits.run_bytes": fail_run("large", "30000"),
    "limits.tool_result_bytes": call_tool("blob", {"size": 3_000}),
    "runtime.json_schema.MAXIMUM_SUBSCHEMAS": refuse(
        f"POST {RUNS}", run("x", output_schema={"type": "object", "anyOf": [{}] * 1_001})
    ),
    "interface.requests.MAXIMUM_CLIENT_TOOLS": refuse(
        f"POST {RUNS}", run("x", client_tools=[{"name": f"t{n}"} for n in range(129)])
    ),
    "runtime.tools.external.MAXIMUM_TOOLS_BYTES": refuse(
        f"POST {RUNS}", run("x", client_tools=[{"name": "t", "description": "x" * 262_144}])
    ),
    "records.memories.MAXIMUM_MEMORY_LENGTH": refuse(
        "POST /memories", {"memory": "x" * 4_001, "user_id": "ada"}
    ),
    "records.memories.MAXIMUM_TOPICS": refuse(
        "POST /memories", {"memory": "x", "user_id": "ada", "topics": [f"t{n}" for n in range(17)]}
    ),
    "records.memories.MAXIMUM_TOPIC_LENGTH": refuse(
        "POST /memories", {"memory": "x", "user_id": "ada", "topics": ["t" * 65]}
    ),
    "quotas.sessions_per_user": exceed_quota("/sessions?type=agent", {}, {}),
    "quotas.memories_per_user": exceed_quota("/memories", {"memory": "a"}, {"memory": "b"}),
    "quotas.bytes_per_user": exceed_quota(RUNS, run("x" * 11_000)),
    "interop.openai.parameters.MAXIMUM_MESSAGES": refuse(
        "POST /v1/chat/completions",
        {"model": "echo", "messages": [{"role": "user", "content": "x"}] * 2_049},
    ),
    "interop.openai.face.MAXIMUM_REFERENCES": refuse(
        "POST /v1/responses",
        {
            "model": "echo",
            "input": [
                *[{"type": "item_reference", "id": "msg_1"}] * 101,
                {"role": "user", "content": "x"},
            ],
        },
    ),
}


@pytest.mark.parametrize("name", PROBES)
def test_caller_beyond_a_bound_gets_what_the_page_states(servers: Servers, name: str) -> None:
    (row,) = [row for row in ROWS if row.name == name]
    assert PROBES[name](servers) in re.findall(r"\w+", row.outcome)


def test_values_at_a_bound_are_accepted(servers: Servers) -> None:
    at_bound = send_token(aud=[f"a{n}" for n in range(16)], deep=nest(6))
    assert at_bound(servers) == "200"
    assert refuse("GET /sessions?limit=100")(servers) == "200"
    assert refuse(f"POST {RUNS}", run("x" * 262_144))(servers) == "200"
    memory = {"memory": "x" * 4_000, "user_id": "ada", "topics": ["t" * 64] * 16}
    assert refuse("POST /memories", memory)(servers) == "201"


def test_state_of_code_beyond_its_bound_fails_the_run(servers: Servers) -> None:
    (row,) = [row for row in ROWS if row.name == "limits.state_bytes"]
    assert fail_run("stateful", "2000")(servers) in re.findall(r"\w+", row.outcome)
