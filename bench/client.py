"""A client with little overhead: plain HTTP/1.1 over one connection, one request at a time."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

__all__ = ["Client", "build_message"]


def build_message(words: int, size: int = 8, seconds: float = 0, *, hold: bool = False) -> str:
    """Build the message that controls the stub of a model (`bench.paced`)."""
    return json.dumps({"words": words, "size": size, "seconds": seconds, "hold": hold})


class Client:
    """A connection to a server on this machine, as a context manager."""

    def __init__(self, port: int, headers: Mapping[str, str]) -> None:
        self._headers = dict(headers)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __enter__(self) -> Client:
        self._connection.connect()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._connection.close()

    def get(self, path: str) -> bytes:
        """Return the body of a successful GET."""
        return self._body("GET", path, None)

    def run(self, agent: str, session_id: str | None = None) -> dict[str, Any]:
        """Create a run of a few words, wait for its end and return the record."""
        body = self._body("POST", f"/agents/{agent}/runs", encode_form(session_id, stream=False))
        answer: dict[str, Any] = json.loads(body)
        assert answer["status"] == "COMPLETED", answer
        return answer

    def start(self, agent: str, session_id: str, message: str) -> dict[str, Any]:
        """Start a run in the background and return its record."""
        fields = {
            "message": message,
            "session_id": session_id,
            "background": "true",
            "stream": "false",
        }
        answer = self._body("POST", f"/agents/{agent}/runs", urlencode(fields))
        record: dict[str, Any] = json.loads(answer)
        return record

    def first_word(self, path: str, body: str, kind: str, mark: bytes) -> float:
        """Return the seconds from the request until the streamed response contains `mark`."""
        start = time.perf_counter()
        self._request_document("POST", path, body, kind)
        answer = self._connection.getresponse()
        took = None
        seen = b""
        assert answer.status == 200, answer.read()
        while data := answer.read1(65_536):
            seen += data
            if took is None and mark in seen:
                took = time.perf_counter() - start
        assert took is not None, seen
        return took

    def _body(self, method: str, path: str, body: str | None) -> bytes:
        self._request_document(method, path, body, "application/x-www-form-urlencoded")
        answer = self._connection.getresponse()
        text = answer.read()
        assert answer.status < 300, (path, answer.status, text)
        return text

    def _request_document(self, method: str, path: str, body: str | None, kind: str) -> None:
        headers = self._headers | ({} if body is None else {"Content-Type": kind})
        self._connection.request(method, path, body, headers)


def encode_form(session_id: str | None = None, *, stream: bool, words: int = 3) -> str:
    """Encode the body of a request for a run; both servers accept it."""
    fields = {"message": build_message(words), "stream": str(stream).lower()}
    return urlencode(fields | ({} if session_id is None else {"session_id": session_id}))
