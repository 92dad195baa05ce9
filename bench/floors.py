"""Floors: the rates of the same uvicorn with almost no work, as a process.

python -m bench.floors PORT DATABASE SESSION MODEL_URL

/bare         a constant response from bare ASGI
/fastapi      a constant response from a FastAPI route
/point        bare ASGI that reads one session and its history with apsw
/point/NAME   the same for another session
/stream       POST: a call of the model whose stream is passed through, with Starlette and httpx2
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from typing import Any

import apsw
import httpx2
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

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


model = httpx2.AsyncClient(
    timeout=60, limits=httpx2.Limits(max_connections=None), headers={"Accept-Encoding": "identity"}
)


@api.post("/stream")
async def pass_through(request: Request) -> Response:
    call = model.build_request(
        "POST",
        f"{sys.argv[4]}/chat/completions",
        content=await request.body(),
        headers={"Content-Type": "application/json"},
    )
    answer = await model.send(call, stream=True)

    async def read() -> AsyncIterator[bytes]:
        async for data in answer.aiter_raw():
            yield data
        await answer.aclose()

    return StreamingResponse(read(), media_type="text/event-stream")


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
