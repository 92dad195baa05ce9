"""Commands on a server that sends what it should not (security cases U01 to U08)."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentctl.cli import follow, lists
from agentctl.remote import connection, events
from agentctl.remote.connection import Timeouts
from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE
from tests.remote.conftest import Serve, answer, serve, stream_head

__all__ = ["serve"]

COMMANDS = [
    "agents list", "agents get a", "teams list", "teams get a", "workflows list", "workflows get a",
    "sessions list", "sessions get s", "sessions runs s", "sessions rename s n",
    "runs list", "runs get r", "runs start --agent a -m x", "runs start --agent a -m x --no-stream",
    "runs start --team a -m x --background", "runs watch r", "runs watch r --agent a --session s",
    "runs cancel r", "runs cancel r q", "runs cancel r --agent a --session s --wait 0",
    "runs cancel --all --yes", "runs cancel --all --dry-run",
    "accounts list", "accounts create n --scope agents:run", "accounts revoke n --yes",
    "auth whoami", "auth can-i agents:run", "auth can-i get_runs", "auth explain GET /agents",
    "audit list", "audit export",
]  # fmt: skip
DOCUMENTS = [
    b"{}", b"[]", b"null", b"5", b'"x"', b"[1, 2]", b"[{}]", b"[null]", b"[[]]", b"nonsense",
    b'{"data": 5}', b'{"data": null, "meta": null}', b'{"data": [5], "meta": {}}',
    b'{"data": [{}], "meta": {}}', b'{"data": [], "meta": []}', b'{"data": [{}], "meta": 5}',
    b'{"data": [], "meta": {"next_cursor": {}}}', b'{"run_id": 5, "session_id": [], "status": {}}',
    b'{"error": 5, "metrics": [], "member_runs": 5, "tools": {}, "content": {}}',
    b'{"principal": 5, "scopes": 7, "admin": "x"}', b'{"scopes": [{}], "admin": 1}',
    b'{"allowed": [], "steps": 5}', b'{"members": [5], "tools": [5], "steps": ["x"]}',
]  # fmt: skip
EVENTS = [
    b"[1, 2]", b"5", b"nonsense", b"{}", b"null", b'{"run_id": 5}', b'{"run_id": "r", "error": 5}',
    b'{"run_id": "r", "tool": "x"}', b'{"run_id": "r", "metrics": [1]}',
    b'{"run_id": "r", "content": {"a": [1]}}', b'{"run_id": "r", "tool": {"tool_args": 5}}',
    b'{"run_id": "o", "agent_id": {}}', b'{"run_id": "o", "content": 5}',
]  # fmt: skip
NAMES = ["RunStarted", "RunContent", "ToolCallStarted", "ToolCallCompleted", "RunError"]


def _check(ended: Result) -> None:
    """Check that the command reports a fault of the server, not of agentctl."""
    assert "internal error" not in ended.stderr, ended.stderr
    assert ended.code in (0, 1, 5, 7, 8), ended.stderr
    if ended.code == 1 and "error:" in ended.stderr:  # without an error the answer is no
        assert "error: run" in ended.stderr or "error: 2 of 2 failed" in ended.stderr


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resume and retry at once, and only once."""
    monkeypatch.setattr("agentctl.cli.follow.RECONNECT_DELAYS", (0.0,))


@pytest.mark.parametrize("command", COMMANDS)
def test_json_of_another_shape_is_reported(agentctl: Agentctl, serve: Serve, command: str) -> None:
    # Two documents a command: each document is sent to two or three commands.
    first = 2 * COMMANDS.index(command) % len(DOCUMENTS)
    for body in (DOCUMENTS * 2)[first : first + 2]:
        check_document(agentctl, serve, command, body)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_document_of_another_shape_is_reported(
    agentctl: Agentctl, serve: Serve, command: str
) -> None:
    for body in DOCUMENTS:
        check_document(agentctl, serve, command, body)


def check_document(agentctl: Agentctl, serve: Serve, command: str, body: bytes) -> None:
    form = ("table", "tsv", "jsonl")[(COMMANDS.index(command) + DOCUMENTS.index(body)) % 3]
    shown = () if command.startswith(("audit export", "accounts revoke")) else ("-o", form)
    _check(agentctl(*command.split(), *shown, "--url", serve(answer(body=body)).url))


def test_a_list_of_another_shape_names_the_place(agentctl: Agentctl, serve: Serve) -> None:
    page = b'{"data": [{"run_id": "r", "session_id": "s", "status": 5}], "meta": {}}'
    ended = agentctl("runs", "list", "--url", serve(answer(body=page)).url)
    assert (ended.code, ended.stdout) == (7, "")
    assert ended.stderr == (
        "error: the response of the server is not what agentctl expects\n"
        "  cause: data[0].status is missing or of another type\n"
        "\nhint: check --url, including its path, and the version of the server\n"
    )


FOLLOWING = ("runs start --agent a -m x", "runs watch r --agent a")
"""Commands that read a stream."""


@pytest.mark.parametrize("data", EVENTS)
def test_events_of_another_shape_are_reported(
    agentctl: Agentctl, serve: Serve, data: bytes
) -> None:
    for number, command in enumerate(FOLLOWING, EVENTS.index(data)):
        check_event(agentctl, serve, command, NAMES[number % len(NAMES)], data)


@pytest.mark.parametrize("data", EVENTS)
@pytest.mark.parametrize("command", FOLLOWING)
def test_every_event_of_another_shape_is_reported(
    agentctl: Agentctl, serve: Serve, command: str, data: bytes
) -> None:
    for name in NAMES:
        check_event(agentctl, serve, command, name, data)


def check_event(agentctl: Agentctl, serve: Serve, command: str, name: str, data: bytes) -> None:
    form = "tsv" if (len(data) + NAMES.index(name)) % 2 else "jsonl"
    event = b"id: 1\nevent: " + name.encode() + b"\ndata: " + data + b"\n\n"
    server = serve(stream_head(), b"id: 0\nevent: RunStarted\ndata: {}\n\n" + event)
    ended = agentctl(*command.split(), "--session", "s", "-o", form, "--url", server.url)
    _check(ended)
    assert ended.code != 0


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a JSON value."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield (*path, key)
            yield from _places(inner, (*path, key))


def _change(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    """Return a copy with another value at a path; `...` removes it."""
    changed = json.loads(json.dumps(value))
    place = changed
    for key in path[:-1]:
        place = place[key]
    if other is ...:
        del place[path[-1]]
    else:
        place[path[-1]] = other
    return changed


@pytest.mark.parametrize(
    "command",
    [
        "agents list",
        "agents get echo",
        "teams list",
        "workflows list",
        "sessions list",
        "sessions get hostile",
        "sessions runs hostile",
        "runs list",
        "runs get RUN",
        "runs cancel RUN",
        "auth whoami",
        "auth can-i get_runs",
        "auth explain GET /agents",
        "audit list",
    ],
)
def test_changed_answers_of_a_real_server_are_reported(
    agentctl: Agentctl, demo: Demo, serve: Serve, command: str
) -> None:
    run_id = demo.run("hostile", "hello")
    words = command.replace("RUN", run_id).split()
    real = agentctl(*words, "-o", "json", "--url", demo.url, env={"AGENTCTL_TOKEN": demo.token})
    record = json.loads(real.raw)
    places = list(_places(record))
    changes = [*itertools.product(places, (..., None, 5, "x", [1], {"a": 1}, True))]
    if words[0] == "runs" and words[1] == "cancel":
        words += ["--agent", "echo", "--session", "hostile", "--wait", "0"]
    for path, other in random.Random(command).sample(changes, min(15, len(changes))):
        body = json.dumps(_change(record, path, other)).encode()
        _check(agentctl(*words, "-o", "table", "--url", serve(answer(body=body)).url))


def test_a_document_has_a_bound(
    agentctl: Agentctl, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MAXIMUM_DOCUMENT_BYTES", 1 << 20)
    head = answer().partition(b"Content-Length")[0] + b"Connection: close\r\n\r\n"
    for status in (b"200", b"404", b"500"):
        server = serve(head.replace(b"200", status), b"[", *[b'"' + b"x" * 65_536] * 4_000)
        ended = agentctl("agents", "list", "--url", server.url)
        assert ended.code == 7
        assert "cause: it is larger than 1 MB" in ended.stderr
        assert server.gone.wait(PATIENCE), "the rest was read"


def test_a_compressed_document_is_not_unpacked(agentctl: Agentctl, serve: Serve) -> None:
    bomb = gzip.compress(b"[" + b" " * 10_000_000 + b"]")
    for status, code in ((200, 7), (500, 1)):
        server = serve(answer(status, bomb, headers={"Content-Encoding": "gzip"}))
        ended = agentctl("agents", "list", "--url", server.url)
        assert ended.code == code, ended.stderr
        assert server.seen[0].headers["accept-encoding"] == "identity"
    stream = stream_head().replace(b"Connection", b"Content-Encoding: gzip\r\nConnection")
    server = serve(stream, gzip.compress(b"data: " + b" " * 10_000_000))
    ended = agentctl("runs", "start", "--agent", "a", "-m", "x", "--url", server.url)
    assert ended.code == 7
    assert "cause: it is compressed" in ended.stderr


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time for a whole response to a moment."""
    monkeypatch.setattr("agentctl.remote.client.DEFAULT_TIMEOUTS", Timeouts(whole=0.3))


@pytest.fixture
def trickle() -> Iterator[str]:
    """A server that sends a header and then a byte now and then, without end."""
    import socket

    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.02)
    threads = []

    def send(peer: socket.socket) -> None:
        with peer:
            streamed = b"event-stream" in peer.recv(65_536)
            head = answer().partition(b"Content-Length")[0] + b"Connection: close\r\n\r\n"
            peer.sendall(stream_head() + b"data: " if streamed else head)
            while not stop.wait(0.05):
                try:
                    peer.sendall(b"x")
                except OSError:
                    return

    def serve_all() -> None:
        while not stop.is_set():
            try:
                peer, _ = listener.accept()
            except TimeoutError:
                continue
            threads.append(threading.Thread(target=send, args=(peer,)))
            threads[-1].start()

    threads.append(threading.Thread(target=serve_all))
    threads[0].start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop.set()
    for thread in threads:
        thread.join()
    listener.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", ["agents list", "runs start --agent a -m x", "auth whoami"])
def test_a_whole_response_has_a_deadline(agentctl: Agentctl, trickle: str, command: str) -> None:
    ended = agentctl(*command.split(), "-o", "jsonl", "--url", trickle)
    assert ended.code == 7
    assert "error: the server did not respond in time" in ended.stderr


@pytest.mark.parametrize(
    "piece", [b"data: " + b"x" * 65_536, b"data: x\n" * 8_000, b"data\n" * 9_999]
)
def test_an_endless_event_is_not_resumed(
    agentctl: Agentctl, serve: Serve, monkeypatch: pytest.MonkeyPatch, piece: bytes
) -> None:
    monkeypatch.setattr(events, "MAXIMUM_EVENT_BYTES", 1 << 16)
    first = b'id: 0\nevent: RunStarted\ndata: {"run_id": "r"}\n\n'
    server = serve(stream_head(), first, *[piece] * 4_000)
    where = ("--agent", "a", "--session", "s", "--url", server.url)
    ended = agentctl("runs", "watch", "r", *where)
    assert ended.code == 7
    assert "cause: an event of the stream is larger than" in ended.stderr
    assert "resuming" not in ended.stderr
    followed = [seen for seen in server.seen if "/agents/a/runs/r/events" in seen.target]
    assert [seen.method for seen in followed] == ["GET"]
    assert server.gone.wait(PATIENCE)


@pytest.mark.parametrize("row", [b"", b'{"run_id": "r", "session_id": "s", "status": "RUNNING"}'])
def test_an_endless_list_is_reported(
    agentctl: Agentctl, serve: Serve, monkeypatch: pytest.MonkeyPatch, row: bytes
) -> None:
    monkeypatch.setattr(lists, "MAXIMUM_ROWS", 10)
    server = serve(answer(body=b'{"data": [' + row + b'], "meta": {"next_cursor": "c"}}'))
    ended = agentctl("runs", "cancel", "--all", "--yes", "--url", server.url)
    assert (ended.code, ended.stdout) == (7, "")
    assert "error: the list of the server has no end" in ended.stderr
    revoked = agentctl("accounts", "revoke", "n", "--yes", "--url", server.url)
    assert revoked.code == 7


NASTY = "a\x1b]0;title\x07b\x9b31mc\x85d\x7fe\u202ef\u2028g\r\x00h\u009c"


@pytest.fixture
def at_terminal(environment: dict[str, str], home: Path) -> Callable[..., str]:
    """Run `agentctl ARGUMENTS` with a terminal for stdout; return all that it writes."""

    def run(*arguments: str, encoding: str = "utf-8") -> str:
        place = {"environment": environment, "folder": home}
        ended = run_command(*arguments, **place, screen=True, encoding=encoding)
        return ended.stdout + ended.stderr

    return run


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "tsv", "name"])
def test_no_form_lets_data_control_the_terminal(
    at_terminal: Callable[..., str], serve: Serve, form: str
) -> None:
    run = {
        "run_id": NASTY, "session_id": NASTY, "agent_id": NASTY, "status": "COMPLETED",
        "content": NASTY, "input": NASTY, "messages": [{"role": "user", "content": NASTY}],
        "created_at": NASTY, "metrics": {}, "error": None,
    }  # fmt: skip
    body = json.dumps(run, ensure_ascii=False).encode()
    raw = body[:-1] + b"\x1b]0;bare\x07\xff\x9b}"
    event = b"event: RunCompleted\ndata: " + body + b"\n\n"
    bad = b'event: RunContent\ndata: {"run_id": "\x1b\x9b"}\n\n'
    start = ("runs", "start", "--agent", "a", "-m", "x")
    cases: list[tuple[tuple[str, ...], list[bytes]]] = [(("runs", "get", "r"), [answer(body=body)])]
    if form in ("json", "name"):
        cases.append((start, [answer(body=raw)]))
    else:
        cases.append(((*start, "--stream"), [stream_head(), bad if form == "jsonl" else event]))
    for words, pieces in cases:
        seen = at_terminal(*words, "-o", form, "--url", serve(*pieces).url)
        assert seen
        for control in "\x1b\x07\x9b\x85\x7f\u202e\u2028\r\x00\x9c":
            assert control not in seen, (words, seen)


@pytest.mark.parametrize(
    ("form", "encoding"), [("json", "utf-8"), ("jsonl", "utf-8"), ("json", "ascii")]
)
def test_json_at_a_terminal_is_the_same_json(
    at_terminal: Callable[..., str], serve: Serve, form: str, encoding: str
) -> None:
    record = {"principal": NASTY + "ü👍", "scopes": [], "admin": False, "auth_mode": "jwt"}
    body = json.dumps(record, ensure_ascii=False).encode()
    url = serve(answer(body=body)).url
    seen = at_terminal("auth", "whoami", "-o", form, "--url", url, encoding=encoding)
    assert json.loads(seen) == record


def test_json_off_a_terminal_is_unchanged(agentctl: Agentctl, serve: Serve) -> None:
    body = json.dumps({"principal": NASTY}, ensure_ascii=False).encode()
    ended = agentctl("auth", "whoami", "-o", "json", "--url", serve(answer(body=body)).url)
    assert ended.raw == body + b"\n"


def test_one_event_for_each_connection_does_not_watch_forever(agentctl: Agentctl) -> None:
    """A server sends one new event, and ends the stream, at each request."""
    numbers = itertools.count()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if "/agents/a/runs/r/events" not in self.path:
                self.send_error(404)
                return
            number = next(numbers)
            self.wfile.write(stream_head())
            data = b'data: {"run_id": "r"}\n\n'
            self.wfile.write(b"id: %d\nevent: RunProgress\n" % number + data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            ended = agentctl("runs", "watch", "r", "--agent", "a", "--session", "s", "--url", url)
        finally:
            server.shutdown()
            thread.join()
    assert ended.code == 7
    assert "the stream was interrupted and could not be resumed" in ended.stderr
    assert next(numbers) <= follow.MAXIMUM_SHORT_STREAMS + 2


def test_interim_responses_do_not_extend_the_time_of_a_command(agentctl: Agentctl) -> None:
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            while not ended.wait(0.02):
                self.wfile.write(b"HTTP/1.1 102 Processing\r\n\r\n")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            result = agentctl("sessions", "list", "--timeout", "0.5", "--url", url)
        finally:
            ended.set()
            server.shutdown()
            thread.join()
    assert result.code == 7, result.stderr
    assert "did not complete its response" in result.stderr
