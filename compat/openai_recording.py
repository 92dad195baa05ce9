"""Record what programs send to the interface of OpenAI, for tests/server/test_openai_recordings.py.

python -m compat.openai_recording [PROGRAM...]    run them, and write their recordings

Each operation of a program runs alone, through a proxy that keeps the requests and the answers.
Recorded are the operations whose outcome is that of `openai_results.json`. Left out are those that
break a connection, use another credential than the given key, or send something other than JSON:
sent again they would be another request.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import jwt

from compat.openai_suite import PROGRAMS, Host, read_results, serve
from tests.kit.model import start_endpoint
from tests.server.openai_recordings import (
    FOLDER,
    KEPT_HEADERS,
    Exchange,
    list_ids,
    mark_ids,
    summarize,
)

RECORDED = (
    "openai-python",
    "openai-node",
    "vercel-ai",
    "langchain",
    "pydantic-ai",
    "litellm",
    "openai-agents",
    "llm",
    "instructor",
    "llama-index",
)
"""The programs that most others are built of."""

_NOT_FORWARDED = {"host", "connection", "content-length", "accept-encoding", "transfer-encoding"}


@dataclass
class Kept:
    """A request that has passed the proxy.

    Attributes:
        exchange: the request as it was sent; the summary of its answer is not known yet.
        answer: the text of the answer.
        problem: why the request cannot be sent again; empty if it can.
    """

    exchange: Exchange
    answer: str = ""
    problem: str = ""


class Proxy(ThreadingHTTPServer):
    """Forwards requests to a server, and keeps them in the order of their arrival."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target = target
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.kept: list[Kept] = []

    def find_problem(self) -> str:
        """Return why the requests cannot be sent again; empty if they can."""
        if not self.kept:
            return "no request"
        return next((kept.problem for kept in self.kept if kept.problem), "")

    def take_operation(self) -> list[Exchange]:
        """Return the requests with summaries of their answers, and with the places of ids."""
        ids = [list_ids(kept.answer) for kept in self.kept]
        return [
            {
                **kept.exchange,
                "path": mark_ids(kept.exchange["path"], ids[:number]),
                "body": mark_ids(kept.exchange["body"], ids[:number]),
                "answer": summarize(kept.answer),
            }
            for number, kept in enumerate(self.kept)
        ]


class _Handler(BaseHTTPRequestHandler):
    server: Proxy

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange: Exchange = {
            "method": self.command,
            "path": self.path,
            "headers": {name: headers[name] for name in KEPT_HEADERS if name in headers},
            "body": body.decode("utf-8", "replace"),
            "status": 0,
            "answer": None,
        }
        kept = Kept(exchange)
        if read_subject(headers.get("authorization", "")) != "ada":
            kept.problem = "another credential"
        if body and "json" not in headers.get("content-type", ""):
            kept.problem = "no JSON"
        self.server.kept.append(kept)
        sent = {name: value for name, value in headers.items() if name not in _NOT_FORWARDED}
        try:
            self._answer(kept, body, sent)
        except httpx2.TransportError:
            # The program has stopped the server or its run.
            kept.problem = "no whole answer"
            self.close_connection = True

    def _answer(self, kept: Kept, body: bytes, sent: dict[str, str]) -> None:
        """Send a request to the server, and pass its answer on."""
        with httpx2.stream(
            self.command, self.server.target + self.path, content=body, headers=sent, timeout=None
        ) as answer:
            kept.exchange["status"] = answer.status_code
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                if name not in _NOT_FORWARDED and name != "content-encoding":
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            text = b""
            try:
                for piece in answer.iter_bytes():
                    # Before the program sees it: the program may end with the last piece.
                    text += piece
                    kept.answer = text.decode("utf-8", "replace")
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                kept.problem = "a broken connection"

    do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = _forward  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


def read_subject(authorization: str) -> str:
    """Return the subject of a bearer token; empty if it is no token."""
    try:
        claims = jwt.decode(
            authorization.removeprefix("Bearer "), options={"verify_signature": False}
        )
    except jwt.InvalidTokenError:
        return ""
    return str(claims["sub"])


@contextlib.contextmanager
def run_proxy(target: str) -> Iterator[Proxy]:
    """Run a proxy of a server."""
    with Proxy(target) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.shutdown()


def record(name: str, host: Host, proxy: Proxy) -> dict[str, list[Exchange]]:
    """Run each operation of a program alone; return the requests that can be sent again."""
    through_proxy = Host(proxy.url, host.deployment)
    recorded: dict[str, list[Exchange]] = {}
    for operation, outcome in read_results()[name].items():
        if outcome not in ("right", "due"):
            continue
        proxy.kept = []
        found = through_proxy.run(name, operation)
        problem = proxy.find_problem()
        if found[operation].outcome != outcome:
            problem = f"{found[operation].outcome}: {found[operation].text}"
        if problem:
            print(f"{name}: {operation}: left out: {problem[:200]}", flush=True)
        else:
            recorded[operation] = proxy.take_operation()
    return recorded


def _main(names: list[str]) -> None:
    endpoint = start_endpoint()
    try:
        folder = Path(tempfile.mkdtemp(prefix="openai-recording-"))
        with serve(folder, endpoint.base_url) as host, run_proxy(host.url) as proxy:
            for name in names or RECORDED:
                operations = record(name, host, proxy)
                recording = {"title": PROGRAMS[name].title, "operations": operations}
                text = json.dumps(recording, indent=1, ensure_ascii=False)
                FOLDER.mkdir(parents=True, exist_ok=True)
                (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")
                print(f"{name}: {len(operations)} operations, {len(text)} characters", flush=True)
    finally:
        endpoint.stop()


if __name__ == "__main__":
    _main(sys.argv[1:])
