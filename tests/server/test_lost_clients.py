"""Clients that disconnect while the server does not read from their connection."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Any

import orjson

from tests.kit.conditions import wait_for
from tests.kit.threaded_server import ThreadedServer
from tests.server.raw_http import open_raw_connection
from tests.server.seeds import as_caller
from tests.server.worker_server import WorkerServer

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
INVALID = b"nonsense\r\n\r\n"

KEEPALIVE = "02"
"""The timer of an idle connection with keep-alive in /proc/net/tcp."""


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


WAYS: dict[str, Any] = {
    "closed": (close, GET, False),
    "reset": (reset, GET, False),
    "half-closed": (half_close, GET, False),
    "rejected": (close, INVALID, False),
    "streamed": (close, GET, True),
}
"""The way to leave, the second request, and the form of the first one."""


def test_disconnect_after_a_second_request_cancels_the_run(server: ThreadedServer) -> None:
    headers = as_caller(server, "me")

    def statuses() -> set[str]:
        found = [server.client.get(f"/sessions/lost-{name}/runs", headers=headers) for name in WAYS]
        return {
            answer.json()[0]["status"] if answer.status_code == 200 and answer.json() else "none"
            for answer in found
        }

    with contextlib.ExitStack() as stack:
        connections = {name: stack.enter_context(open_raw_connection(server.port)) for name in WAYS}
        for name, raw in connections.items():
            message = {"message": "x", "session_id": f"lost-{name}", "stream": WAYS[name][2]}
            body = orjson.dumps(message)
            fields = {**headers, "Host": "x", "Content-Type": "application/json"}
            fields["Content-Length"] = str(len(body))
            lines = [f"{field}: {value}" for field, value in fields.items()]
            head = "\r\n".join(["POST /agents/hang/runs HTTP/1.1", *lines, "", ""])
            raw.send(head.encode() + body)
        wait_for(lambda: statuses() == {"RUNNING"})
        for name, raw in connections.items():
            raw.send(WAYS[name][1])
        # The server has read the second requests when it responds to a later one.
        assert server.client.get("/health").status_code == 200
        for name, raw in connections.items():
            WAYS[name][0](raw.socket)
        wait_for(lambda: statuses() == {"CANCELLED"})


def test_pipelined_requests_of_a_client_that_waits_are_served(server: ThreadedServer) -> None:
    headers = as_caller(server, "me")
    body = orjson.dumps({"message": '{"seconds": 2.5}', "stream": False})
    fields = {**headers, "Host": "x", "Content-Type": "application/json"}
    fields["Content-Length"] = str(len(body))
    lines = [f"{field}: {value}" for field, value in fields.items()]
    head = "\r\n".join(["POST /agents/tool-wait/runs HTTP/1.1", *lines, "", ""])
    with open_raw_connection(server.port) as raw:
        raw.send(head.encode() + body, GET)
        assert raw.answer().json["status"] == "COMPLETED"
        assert raw.answer().status == 200


def test_accepted_connections_have_keepalive(pair: WorkerServer) -> None:
    port = pair.served.port
    with open_raw_connection(port) as raw:
        raw.send(GET)
        assert raw.answer().status == 200
        here = raw.socket.getsockname()[1]
        wait_for(lambda: timer_of(port, here) == KEEPALIVE)


def timer_of(port: int, remote_port: int) -> str:
    """Return the active timer of a connection of this machine (proc(5))."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if local.endswith(f":{port:04X}") and remote.endswith(f":{remote_port:04X}"):
            return timer.partition(":")[0]
    raise AssertionError("there is no such connection")
