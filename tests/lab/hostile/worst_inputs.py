"""The worst input that each bound of docs/limits.md allows, for a server with all interfaces.

A case is sent to a running server while `/health` is watched from another process
(`tests.lab.hostile.health`). The suite asserts the answers; `make bench-hostile` prints the waits.
"""

from __future__ import annotations

import json
import os
import shutil
import socketserver
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import start_endpoint
from tests.kit.process import serve_config
from tests.lab.hostile import endpoint, mcp_program
from tests.lab.hostile.health import Target

CODE = Path(__file__).parent / "agents.py"
"""Agents in code. Their module has texts of 300 MB: only the server imports it."""

AGENTS = (
    "long_text", "long_bytes", "long_failure", "many_lists", "storable_text", "many_calls",
    "large_arguments", "large_results", "much_progress", "fitting_model",
)  # fmt: skip

MCP = ("lines", "log", "large-text", "many-parts", "many-tools", "large-schemas")

SESSIONS = 50
"""Sessions with metadata that filters are compared with, times `scale`."""

TEXTS = 5
"""Runs that a search finds, times `scale`."""

LONG_RUNS = 9
"""Runs of the longest session, times `scale`."""

OK = b"HTTP/1.1 200"
TOO_LARGE = b"The run exceeded its maximum size"

Act = Callable[["World"], bytes]


class World(NamedTuple):
    """A running server with data, and the peers that it calls.

    Attributes:
        target: the server, and the token of an administrator.
        scoped: a token with as many scopes as it may have.
        read: set when the receiver of webhooks is no longer read.
    """

    target: Target
    scoped: str
    read: threading.Event

    def post(self, path: str, body: object) -> bytes:
        return self.target.send(path, json.dumps(body).encode())

    def run(self, agent: str, **fields: object) -> bytes:
        """Run an agent to its end."""
        body = {"message": "go", "stream": False, **fields}
        return self.post(f"/agents/{agent}/runs", body)


class Case(NamedTuple):
    """An input, a part of its response, and the rows whose bound it reaches."""

    act: Act
    expected: bytes
    rows: tuple[str, ...]


def get(path: str) -> Act:
    return lambda world: world.target.get(path)


def post(path: str, body: object) -> Act:
    return lambda world: world.post(path, body)


def run(agent: str, **fields: object) -> Act:
    return lambda world: world.run(agent, **fields)


def send_heads(count: int) -> Act:
    """Return an act that sends requests with the largest header sections on one connection."""
    fields = b"".join(b"x-%d: %b\r\n" % (number, b"x" * 150) for number in range(97))

    def act(world: World) -> bytes:
        with world.target.connect() as connection:
            more = b"GET /health HTTP/1.1\r\nHost: x\r\n%b\r\n" % fields
            last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            connection.sendall(more * (count - 1) + last)
            found = bytearray()
            while data := connection.recv(65_536):
                found += data
        assert found.count(OK) == count
        return bytes(found)

    return act


def list_with_scopes(world: World) -> bytes:
    return world.target._replace(token=world.scoped).get("/agents")


def fetch_keys(world: World) -> bytes:
    """Send a token with an unknown key: the server fetches the key set again."""
    head, _, rest = world.target.token.partition(".")
    unknown = world.target._replace(token=f"{UNKNOWN_HEAD}.{rest}")
    assert head != UNKNOWN_HEAD
    return unknown.get("/sessions")


def complete_hooked(world: World) -> bytes:
    """End a run about which a receiver is notified, and wait until it is no longer read."""
    answered = world.run("a-storable_text")
    assert world.read.wait(PATIENCE)
    return answered


def nest(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


UNKNOWN_HEAD = "eyJhbGciOiJSUzI1NiIsImtpZCI6InVua25vd24iLCJ0eXAiOiJKV1QifQ"
CHECKED = {"type": "object", "properties": {"a": {"pattern": "(?=.*a)(?=.*b)^(a|b|ab)*$"}}}
"""A schema whose check takes the longest that is done in the event loop."""

OPTIONS = [{"const": -number} for number in range(1, 481)]
WIDE = {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": OPTIONS}}}}
PATTERNS = {f"a{number}": {"pattern": "[ab]*a[ab]{900}c"} for number in range(100)}
TOOLS = [
    {"name": f"t{number}", "parameters": {"type": "object", "properties": {"a": {"enum": names}}}}
    for number in range(128)
    for names in [[f"{number}-{each}" for each in range(180)]]
]
MESSAGES = [{"role": ("user", "assistant")[n % 2], "content": "x" * 400} for n in range(2_047)]
LAST = {"role": "user", "content": "x"}
FILTERS = "&".join(
    [f"metadata={'k' * 63}{number}%3D{'v' * 256}" for number in range(4)]
    + [f"tag={'t' * 255}{number}" for number in range(4)]
)
WORDS = quote(" ".join(f"w{number}{'o' * 25}*" for number in range(16)))

CASES: dict[str, Case] = {
    "header fields": Case(
        send_heads(2),
        OK,
        ("server.transport.guard.MAXIMUM_HEAD_BYTES", "server.transport.guard.MAXIMUM_FIELDS"),
    ),
    "pipelined requests": Case(
        send_heads(16), OK, ("server.transport.protocol.MAXIMUM_PIPELINED",)
    ),
    "file": Case(
        lambda world: world.target.send(
            f"/files?name={'n' * 250}.json", b'"' + b"x" * 26_214_398 + b'"'
        ),
        b'"size":26214400',
        ("files.item_bytes", "records.files.MAXIMUM_NAME_LENGTH"),
    ),
    "files of a message": Case(
        run("echo", files=[f"{number:0128}" for number in range(16)]),
        b"File not found",
        ("interface.requests.MAXIMUM_RUN_FILES",),
    ),
    "body of escaped text": Case(
        lambda world: world.target.send(
            "/sessions?type=agent", b'{"metadata":{"a":"' + b"\\u00e9" * 170_000 + b'"}}'
        ),
        b"HTTP/1.1 201",
        ("limits.body_bytes",),
    ),
    "body of many values": Case(
        post("/sessions?type=agent", {"metadata": {"a": [[]] * 32_000}}),
        b"HTTP/1.1 201",
        ("records.strict.MAXIMUM_VALUES",),
    ),
    "deep body": Case(
        post("/sessions?type=agent", {"metadata": {"a": [nest(60)] * 1_000}}),
        b"HTTP/1.1 201",
        ("records.text.MAXIMUM_DEPTH",),
    ),
    "token with many scopes": Case(
        list_with_scopes,
        OK,
        ("auth.tokens.algorithms.MAXIMUM_TOKEN", "records.authorization.MAXIMUM_SCOPES"),
    ),
    "parameters": Case(
        get("/sessions?" + "&".join(f"{'%41' * 20}{n}={'%42' * 20}" for n in range(100))),
        OK,
        ("server.content.MAXIMUM_PAIRS",),
    ),
    "path to explain": Case(
        post("/auth/explain", {"method": "GET", "path": "/" + "a/" * 4_095}),
        b"HTTP/1.1 ",
        ("service.operations.authorization._MAXIMUM_PATH",),
    ),
    "search": Case(
        get(f"/sessions?limit=100&search={WORDS}"),
        OK,
        (
            "store.search.MAXIMUM_SEARCH_LENGTH",
            "store.search.MAXIMUM_WORDS",
            "store.search.MAXIMUM_TEXT",
            "store.repositories.search_pages.MAXIMUM_READ",
        ),
    ),
    "filters by metadata and tags": Case(
        get(f"/sessions?limit=100&{FILTERS}"),
        OK,
        (
            "store.compared.MAXIMUM_READ",
            "store.repositories.lists.MAXIMUM_METADATA",
            "interface.requests.lists.MAXIMUM_PAIRS",
            "interface.requests.lists.MAXIMUM_TAGS",
            "interface.requests.lists.MAXIMUM_KEY_LENGTH",
            "interface.requests.lists.MAXIMUM_VALUE_LENGTH",
        ),
    ),
    "filter by error": Case(
        get(f"/runs?limit=100&error={'x' * 200}"),
        OK,
        ("store.compared.MAXIMUM_COMPARED", "interface.requests.lists.MAXIMUM_ERROR_LENGTH"),
    ),
    "page of a list": Case(
        get("/sessions?limit=100"),
        OK,
        (
            "interface.requests.MAXIMUM_LIMIT",
            "store.listing.MAXIMUM_TOTAL",
            "interface.requests.MAXIMUM_OFFSET",
        ),
    ),
    "overview": Case(
        get("/usage/overview?interval=hour&since=2026-01-01T00:00:00Z&until=2026-02-11T00:00:00Z"),
        b"HTTP/1.1 ",
        ("service.operations.usage.MAXIMUM_POINTS",),
    ),
    "groups of usage": Case(
        get("/usage?limit=1000"),
        OK,
        (
            "interface.requests.administration.MAXIMUM_GROUPS",
            "store.repositories.usage_reads.MAXIMUM_GROUPS",
        ),
    ),
    "usage by session": Case(
        get("/usage?by=session&limit=1000"), OK, ("store.repositories.usage_reads.MAXIMUM_RUNS",)
    ),
    "long session": Case(
        get("/sessions/history"),
        OK,
        ("server.answers.RESPONSE_BYTES", "interface.requests.MAXIMUM_CUT"),
    ),
    "message": Case(run("echo", message="é" * 131_072), OK, ("limits.message_bytes",)),
    "metadata": Case(run("echo", metadata={"a": [[]] * 21_000}), OK, ("limits.state_bytes",)),
    "history": Case(
        run("m-echo", session_id="history"), OK, ("runs.life.supervision.HISTORY_BYTES",)
    ),
    "text of an agent": Case(run("a-long_text"), TOO_LARGE, ()),
    "bytes of an agent": Case(run("a-long_bytes"), TOO_LARGE, ()),
    "lists of an agent": Case(run("a-many_lists"), TOO_LARGE, ()),
    "text of an agent that fits": Case(run("a-storable_text"), OK, ("limits.run_bytes",)),
    "result of a tool": Case(run("a-large_results"), OK, ("limits.tool_result_bytes",)),
    "tool calls of one answer": Case(
        run("m-checked-calls", client_tools=[{"name": "check", "parameters": CHECKED}]),
        b"are not valid",
        ("runtime.failures.MAXIMUM_CALLS",),
    ),
    "parts of one answer": Case(run("m-parts"), OK, ("runtime.failures.MAXIMUM_PARTS",)),
    "large events": Case(run("m-large-text"), OK, ("runtime.models.provider.MAXIMUM_EVENT_BYTES",)),
    "events of many values": Case(
        run("m-event-of-values"), OK, ("runtime.models.provider.MAXIMUM_EVENT_VALUES",)
    ),
    "events of many lines": Case(
        run("m-data-lines"), OK, ("runtime.models.provider.MAXIMUM_EVENT_LINES",)
    ),
    "arguments of a call": Case(
        run("m-arguments-surrogates"), OK, ("runtime.models.calls.MAXIMUM_ARGUMENT_BYTES",)
    ),
    "details of thinking": Case(
        run("m-details"), OK, ("runtime.models.openai_answer.MAXIMUM_DETAILS",)
    ),
    "header fields of a model endpoint": Case(
        run("m-head-fields"), OK, ("runtime.models.stream_transport.MAXIMUM_HEAD_BYTES",)
    ),
    "interim responses of a model endpoint": Case(
        run("m-interim"), OK, ("runtime.models.stream_transport.MAXIMUM_INTERIM",)
    ),
    "structured answer": Case(
        run("m-structured", output_schema=WIDE),
        OK,
        ("runtime.models.structured_output.MAXIMUM_ANSWER_BYTES",),
    ),
    "tools of the caller": Case(
        run("m-echo", client_tools=TOOLS),
        b"HTTP/1.1 ",
        ("interface.requests.MAXIMUM_CLIENT_TOOLS", "runtime.tools.external.MAXIMUM_TOOLS_BYTES"),
    ),
    "subschemas": Case(
        run("m-echo", output_schema={"type": "object", "allOf": [{"title": "x"}] * 990}),
        OK,
        ("runtime.json_schema.MAXIMUM_SUBSCHEMAS",),
    ),
    "patterns": Case(
        run("m-echo", output_schema={"type": "object", "properties": PATTERNS}),
        OK,
        ("runtime.json_schema.MAXIMUM_PATTERN_COST",),
    ),
    "progress events": Case(
        run("a-much_progress"),
        OK,
        ("runtime.context.MAXIMUM_PROGRESS_EVENTS", "runtime.context.MAXIMUM_PROGRESS_LENGTH"),
    ),
    "calls of an agent": Case(
        run("a-many_calls"), OK, ("runtime.runners.hosted_run.MAXIMUM_CALLS",)
    ),
    "model of an agent": Case(
        run("a-fitting_model"), OK, ("runtime.json_values.MAXIMUM_MODEL_VALUES",)
    ),
    "arguments of calls of an agent": Case(
        run("a-large_arguments"),
        b"A tool call has too many arguments",
        (
            "runtime.runners.hosted_run.MAXIMUM_ARGUMENTS",
            "runtime.runners.hosted_run.ARGUMENT_CHARACTERS",
        ),
    ),
    "failure with a long text": Case(
        run("a-long_failure"),
        b"The code of the agent failed",
        ("runtime.failures.MESSAGE_CHARACTERS", "telemetry.log.MAXIMUM_TEXT_LENGTH"),
    ),
    "memory": Case(
        post(
            "/memories",
            {
                "memory": " ".join(f"w{n}" for n in range(800))[:4_000],
                "user_id": "ada",
                "topics": [f"{n}{'t' * 60}" for n in range(16)],
            },
        ),
        b"HTTP/1.1 201",
        (
            "records.memories.MAXIMUM_MEMORY_LENGTH",
            "records.memories.MAXIMUM_TOPICS",
            "records.memories.MAXIMUM_TOPIC_LENGTH",
            "records.memories._MAXIMUM_WORDS",
        ),
    ),
    "summary": Case(
        post("/sessions/summed/summarize", {}),
        b"HTTP/1.1 ",
        (
            "runtime.transcript.history.MAXIMUM_INPUT",
            "runs.life.background.MAXIMUM_TURNS",
            "runtime.transcript.history.MAXIMUM_TURN",
        ),
    ),
    "messages of OpenAI's API": Case(
        post("/v1/chat/completions", {"model": "echo", "messages": [*MESSAGES, LAST]}),
        OK,
        ("interop.openai.parameters.MAXIMUM_MESSAGES",),
    ),
    "messages of AG-UI": Case(
        post(
            "/agui/agents/echo",
            {
                "threadId": "t",
                "runId": "r",
                "tools": [],
                "context": [{"description": "d", "value": "x" * 1_000}] * 64,
                "messages": [{"id": str(n), **m} for n, m in enumerate([*MESSAGES, LAST])],
            },
        ),
        OK,
        ("interop.pages.request.MAXIMUM_MESSAGES", "interop.agui.face.MAXIMUM_CONTEXT"),
    ),
    "parts of a message of the AI SDK": Case(
        post(
            "/ai/agents/echo",
            {
                "id": "t",
                "messages": [
                    *MESSAGES[:2_047],
                    {"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}] * 2_048},
                ],
            },
        ),
        OK,
        ("interop.ai_sdk.face.MAXIMUM_PARTS",),
    ),
    "result of an MCP server": Case(run("mcp-many-parts"), OK, ()),
    "list of an MCP server": Case(
        run("mcp-many-tools"),
        OK,
        ("runtime.mcp.definitions.MAXIMUM_TOOLS", "runtime.mcp.definitions.MAXIMUM_LISTED"),
    ),
    "schemas of an MCP server": Case(
        run("mcp-large-schemas"),
        OK,
        (
            "runtime.mcp.definitions.SCHEMA_BYTES",
            "runtime.mcp.definitions.SCHEMA_DEPTH",
            "runtime.mcp.definitions.DESCRIPTION_BYTES",
        ),
    ),
    "lines of an MCP server": Case(run("mcp-lines"), OK, ()),
    "message of an MCP server": Case(
        run("mcp-large-text"), OK, ("runtime.mcp.stdio.MAXIMUM_MESSAGE_BYTES",)
    ),
    "log of an MCP server": Case(run("mcp-log"), OK, ("runtime.mcp.guard.LOGGED_LINES",)),
    "response of a webhook receiver": Case(
        complete_hooked,
        OK,
        ("webhooks.bounded_client.MAXIMUM_RESPONSE", "webhooks.facts.MAXIMUM_BODY"),
    ),
    "key set of a URL": Case(fetch_keys, b"HTTP/1.1 401", ("auth.keys.remote.MAXIMUM_BYTES",)),
}


def build_config(url: str, peer: str) -> str:
    """Return the agents, MCP servers and receivers of the cases."""
    parts = [_format_agent(f"m-{name}", name, url) for name in endpoint.SCRIPTS]
    parts += [f'[[agents]]\nid = "a-{name}"\nobject = "hostile_agents:{name}"\n' for name in AGENTS]
    for name in MCP:
        model = f"call:{name.replace('-', '_')}_start"
        parts += [
            _format_agent(f"mcp-{name}", model, url, f'tools = ["mcp:{name}.start"]\n'),
            f'[[mcp_servers]]\nid = "{name}"\ncommand = "{sys.executable}"\n'
            f'args = ["{mcp_program.__file__}", "{name}", "1"]\ncall_seconds = 20\n',
        ]
    return "".join(
        [
            "[runs]\ntimeout_seconds = 60\n[openai]\nenabled = true\n[agui]\nenabled = true\n",
            "[ai_sdk]\nenabled = true\n[search]\nenabled = true\n",
            *parts,
            f'[[webhooks]]\nid = "hook"\nurl = "{peer}/hook"\nevents = ["run.completed"]\n'
            'secret_env = "HOOK"\nagents = ["a-storable_text"]\ncontent = true\n'
            "allow_private = true\n",
        ]
    )


def _format_agent(name: str, model: str, url: str, tools: str = "") -> str:
    return (
        f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "{model}"\nretries = 0\n'
        f'base_url = "{url}"\n[[agents]]\nid = "{name}"\nmodel = "{name}"\n{tools}'
    )


@contextmanager
def serve_world(folder: Path, scale: int = 1) -> Iterator[World]:
    """Start a server in an empty folder, with the peers and the data of all cases.

    Args:
        scale: 20 for as much data as the bounds of lists and searches allow to read.
    """
    shutil.copy(CODE, folder / "hostile_agents.py")
    read = threading.Event()
    model = start_endpoint("tests.lab.hostile.endpoint")
    try:
        with _serve_peer(read) as peer:
            url = model.base_url
            deployment = create_deployment(folder, url, extra=build_config(url, peer))
            text = deployment.path.read_text()
            keys = f'[authorization]\njwks_url = "{peer}/keys"\n'
            deployment.path.write_text(text.replace("[authorization]\n", keys, 1))
            scopes = [f"agents:a{number}:read" for number in range(255)]
            environment = {**os.environ, "HOOK": f"whsec_{'a' * 32}"}
            with serve_config(deployment.path, environment=environment) as server:
                target = Target(server, deployment.token("hostile", ADMIN, seconds=3_600))
                world = World(target, deployment.token("scoped", *scopes), read)
                _seed(world, scale)
                yield world
    finally:
        model.stop()


def _seed(world: World, scale: int) -> None:
    text = " ".join(f"w{number % 16}{'o' * 25}{number}" for number in range(8_000))
    for _ in range(LONG_RUNS * scale):
        _check(world.run("echo", message=text[:262_000], session_id="history"))
    for number in range(TEXTS * scale):
        _check(world.run("echo", message=text[:32_000], session_id=f"text-{number}"))
    for _ in range(20):
        _check(world.run("summed", message=text[:4_000], session_id="summed"))
    metadata = {f"{'k' * 63}{number}": "w" * 2_000 for number in range(4)}
    for _ in range(SESSIONS * scale):
        _check(world.post("/sessions?type=agent", {"metadata": metadata}))


def _check(answer: bytes) -> None:
    assert answer.startswith((OK, b"HTTP/1.1 201")), answer[:1_000]


class _Peer(socketserver.StreamRequestHandler):
    """A provider of keys, and a receiver whose response has no end."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, _PeerServer)
        with suppress(OSError):
            path = self.rfile.readline().split(b" ")[1]
            while self.rfile.readline().strip():
                pass
            if path == b"/keys":
                head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
                self.wfile.write(head + b"Content-Length: %d\r\n\r\n" % len(KEY_SET) + KEY_SET)
                return
            self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(100_000):
                self.wfile.write(b"1\r\nx\r\n" * 100)
        server.read.set()


class _PeerServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    read: threading.Event


KEY_SET = json.dumps(
    {"keys": [{"kty": "oct", "kid": f"k{n}", "x": [{}] * 20} for n in range(8_000)]}
).encode()


@contextmanager
def _serve_peer(read: threading.Event) -> Iterator[str]:
    with _PeerServer(("127.0.0.1", 0), _Peer) as server:
        server.read = read
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
