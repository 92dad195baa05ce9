"""A receiver of webhooks: an HTTP server in a thread that keeps what it gets."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str]]


@dataclass(frozen=True)
class Received:
    """A request: its path, header fields with names in lower case, and body."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event_id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def event(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """A running receiver.

    Attributes:
        answers: the answer by path, called for each request; 204 without one.
        requests: all requests; `accepted` those with an answer of 200 to 299.
    """

    url: str = ""
    answers: dict[str, Callable[[Received], Answer]] = field(default_factory=dict)
    requests: list[Received] = field(default_factory=list)
    accepted: list[Received] = field(default_factory=list)
    most_at_once: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def about(self, run_id: str, path: str = "/all") -> list[Received]:
        """Return the accepted requests about a run."""
        with self.lock:
            return [
                got
                for got in self.accepted
                if got.path == path and run_id in (got.event["data"].get(n) for n in RUN_IDS)
            ]

    def types(self, run_id: str, path: str = "/all") -> list[str]:
        """Return the types of the accepted events of a run."""
        return [got.event["type"] for got in self.about(run_id, path)]


RUN_IDS = ("run_id", "root_run_id")


def answer_badly(got: Received) -> Answer:
    """Fail 30% of the requests, redirect some, and answer some slowly."""
    number = random.random()
    if number < 0.3:
        return random.choice([500, 502, 429]), {}
    if number < 0.35:
        return 302, {"Location": "http://127.0.0.1:1/"}
    if number < 0.45:
        time.sleep(random.uniform(0.05, 0.4))
    return 204, {}


@contextlib.contextmanager
def start_receiver() -> Iterator[Receiver]:
    """Receive on a free port of the loopback address."""
    receiver = Receiver()
    at_once = Counter[str]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length:
                return  # The sender was killed.
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Received(self.path, headers, body)
            with receiver.lock:
                receiver.requests.append(got)
                at_once[self.path] += 1
                most = receiver.most_at_once
                most[self.path] = max(most[self.path], at_once[self.path])
            answer = receiver.answers.get(self.path)
            status, fields = (204, {}) if answer is None else answer(got)
            with receiver.lock:
                at_once[self.path] -= 1
                if 200 <= status < 300:
                    receiver.accepted.append(got)
            with contextlib.suppress(OSError):
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                if status != 204:
                    self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore connections of senders that were killed."""

    server = Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
