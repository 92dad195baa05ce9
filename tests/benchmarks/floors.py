"""Floors: the rates of the same uvicorn with almost no work, as a process.

python -m tests.benchmarks.floors PORT DATABASE SESSION

/bare         a constant response from bare ASGI
/fastapi      a constant response from a FastAPI route
/point        bare ASGI that reads one session and its history with apsw
/point/NAME   the same for another session
"""

from __future__ import annotations

import sys
from typing import Any

import apsw
import uvicorn
from fastapi import FastAPI
from starlette.responses import Response

CONSTANT = b'{"answer":"' + b"x" * 1_000 + b'"}'

HEADERS = [(b"content-type", b"application/json")]

_SESSION = "SELECT * FROM sessions WHERE session_id = ?"
_HISTORY = (
    "SELECT history FROM runs WHERE session_id = ? AND parent_run_id IS NULL"
    " AND history IS NOT NULL ORDER BY seq"
)

api = FastAPI(openapi_url=None)


@api.get("/fastapi")
async def get_constant() -> Response:
    return Response(CONSTANT, media_type="application/json")


class Floors:
    """The ASGI application."""

    def __init__(self, path: str, session_id: str) -> None:
        self._database = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
        self._session_id = session_id

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path: str = scope["path"]
        if path == "/bare":
            await _respond(send, CONSTANT)
        elif path.startswith("/point"):
            await _respond(send, self._read(path.removeprefix("/point").strip("/")))
        else:
            await api(scope, receive, send)

    def _read(self, session_id: str) -> bytes:
        named = (session_id or self._session_id,)
        (row,) = self._database.execute(_SESSION, named).fetchall()
        histories = self._database.execute(_HISTORY, named).fetchall()
        texts = [value for value in row if isinstance(value, str)]
        return ",".join([*texts, *(history for (history,) in histories)]).encode()


async def _respond(send: Any, body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, length]})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        Floors(sys.argv[2], sys.argv[3]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        lifespan="off",
        access_log=False,
        log_level="warning",
    )
