"""One request in FastAPI's router and parser, next to those of agentctl.

`python -m tests.benchmarks.reasons.routing` calls both ASGI applications in process, in turns: a
route with a path parameter and five typed query parameters among fifty routes. Printed are the CPU
microseconds of a request, the median of the rounds, and their ratio.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Annotated, Any

import fastapi
from starlette.responses import Response

from agentctl.interface.declarations import Query
from agentctl.records.routes import Route, RouteTable
from agentctl.server.requests import Parameters

ROUTES = 50
REQUESTS = 2_000
ROUNDS = 9
QUERY = b"limit=20&page=2&cut=5&sort=name&full=true"
SCOPE: dict[str, Any] = {
    "type": "http", "method": "GET", "path": "/things40/x", "raw_path": b"/things40/x",
    "query_string": QUERY, "headers": [(b"host", b"x")], "root_path": "", "http_version": "1.1",
    "scheme": "http", "server": ("x", 80), "client": ("y", 1),
}  # fmt: skip
TYPES: dict[str, type] = {"limit": int, "page": int, "cut": int, "sort": str, "full": bool}

Application = Callable[[Any, Any, Any], Awaitable[None]]


def build_fastapi() -> Application:
    """Return an application with the routes."""
    app = fastapi.FastAPI(openapi_url=None)
    for number in range(ROUTES):

        @app.get(f"/things{number}/{{thing_id}}")
        async def get_thing(
            thing_id: str,
            limit: int = 20,
            page: int = 1,
            cut: int = 0,
            sort: str = "",
            full: bool = False,
        ) -> Response:
            return Response(b"{}")

    return app


def build_agentctl() -> Application:
    """Return an application with the routes, the router and the parser of agentctl."""
    table = RouteTable(
        {
            f"get_thing{number}": Route("GET", f"/things{number}/{{thing_id}}")
            for number in range(50)
        }
    )
    declared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind, Query("")],
        )
        for name, kind in TYPES.items()
    ]
    parameters = Parameters(declared, {})

    async def app(scope: Any, receive: Any, send: Any) -> None:
        match = table.find(scope["method"], scope["path"])
        assert match is not None
        values, error = parameters.read(match.path_params, scope["query_string"], scope["headers"])
        assert error is None
        assert values["page"] == 2
        await Response(b"{}")(scope, receive, send)

    return app


async def measure(app: Application) -> float:
    """Return the CPU microseconds of a request."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    start = time.process_time()
    for _ in range(REQUESTS):
        await app(dict(SCOPE), receive, send)
    return (time.process_time() - start) * 1e6 / REQUESTS


async def compare() -> None:
    """Print both medians and the median of the ratios of the rounds."""
    apps = [build_fastapi(), build_agentctl()]
    rounds = [[await measure(app) for app in apps] for _ in range(ROUNDS)]
    theirs, ours = (median(values) for values in zip(*rounds, strict=True))
    ratio = median(mine / other for other, mine in rounds)
    print(f"FastAPI {theirs:.0f} us, agentctl {ours:.0f} us, ratio {ratio:.2f}")


if __name__ == "__main__":
    asyncio.run(compare())
