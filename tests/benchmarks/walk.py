"""The walk of a request through the files of the package.

`python -m tests.benchmarks.walk [--files]` starts the application in this process with the
configuration of the demo: SQLite, and models that need no endpoint. It sends each request several
times, and counts per request, as medians:

- the files of agentctl that it enters,
- the calls of functions in them; a coroutine that goes on after a wait is entered again,
- the moves: the calls from a function in one file of agentctl to a function in another file.

Work that a request leaves behind counts until it has ended. Jobs of the server that run at the same
time, such as sweeps, do not count. `--files` also lists the files of each request.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import httpx2

import agentctl
from agentctl.auth.tokens import mint
from agentctl.cli.demo import create_demo
from agentctl.config import load_settings
from agentctl.server import running
from agentctl.server.app import create_app
from tests.benchmarks.measure import format_columns

__all__ = ["Walk", "main", "measure_walks"]

PACKAGE = str(Path(agentctl.__file__).parent)

WARM_UP = 4
REPEATS = 9

QUIET_SECONDS = 0.05
"""Time after a response in which the work that it leaves behind ends."""

_counted: ContextVar[object] = ContextVar("counted", default=None)
"""The walk that the present task belongs to."""


@dataclass
class Walk:
    """The counts of one request."""

    calls: int = 0
    moves: int = 0
    files: set[str] = field(default_factory=set)


class Profile:
    """Counts the calls of the package on all threads that start while it is installed.

    The threads of the databases have no context: their calls belong to the present walk.
    """

    def __init__(self) -> None:
        self._walk: Walk | None = None
        self._loop_thread = threading.get_ident()

    @contextmanager
    def installed(self) -> Iterator[None]:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    async def count(self, send: Callable[[], Awaitable[object]]) -> Walk:
        """Return the counts of one request."""
        walk = Walk()
        _counted.set(walk)
        self._walk = walk
        await asyncio.create_task(_await(send))
        await asyncio.sleep(QUIET_SECONDS)
        self._walk = None
        _counted.set(None)
        return walk

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or (walk := self._walk) is None or not _is_ours(frame):
            return
        if threading.get_ident() == self._loop_thread and _counted.get() is not walk:
            return
        file = frame.f_code.co_filename
        caller = frame.f_back
        walk.calls += 1
        walk.files.add(file)
        if caller is not None and _is_ours(caller):
            walk.moves += caller.f_code.co_filename != file


async def _await(send: Callable[[], Awaitable[object]]) -> None:
    await send()


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(PACKAGE)


class Client:
    """A client of the application with the rights of a user and of an approver."""

    def __init__(self, http: httpx2.AsyncClient, token: str) -> None:
        self._http = http
        self._headers = {"Authorization": f"Bearer {token}"}

    async def get(self, path: str) -> Any:
        return self._read(await self._http.get(path, headers=self._headers))

    async def post(self, path: str, **fields: str) -> Any:
        return self._read(await self._http.post(path, headers=self._headers, json=fields))

    async def run(self, agent: str, message: str, *, stream: bool = False) -> Any:
        """Start a run in a new session, and return its record; the text of its stream."""
        fields = {"message": message, "stream": str(stream).lower()}
        path = f"/agents/{agent}/runs"
        return self._read(await self._http.post(path, headers=self._headers, data=fields))

    @staticmethod
    def _read(response: httpx2.Response) -> Any:
        if response.is_error:
            raise SystemExit(f"{response.request.url}: {response.status_code} {response.text}")
        is_json = response.headers["content-type"].startswith("application/json")
        return response.json() if is_json else response.text


Request = Callable[[], Awaitable[object]]


async def _prepare_plain(client: Client) -> Request:
    return lambda: client.run("echo", "hello")


async def _prepare_stream(client: Client) -> Request:
    return lambda: client.run("echo", "hello", stream=True)


async def _prepare_pause(client: Client) -> Request:
    return lambda: client.run("clerk", "refund 7")


async def _prepare_decision(client: Client) -> Request:
    run = await client.run("clerk", "refund 7")
    (approval,) = run["approvals"]
    path = f"/agents/clerk/approvals/{approval['approval_id']}/decide"
    shown = approval["arguments_hash"]
    return lambda: client.post(path, decision="approve", arguments_hash=shown)


async def _prepare_cancel(client: Client) -> Request:
    run = await client.run("clerk", "refund 7")
    return lambda: client.post(f"/agents/clerk/runs/{run['run_id']}/cancel")


async def _prepare_session(client: Client) -> Request:
    run = await client.run("echo", "hello")
    return lambda: client.get(f"/sessions/{run['session_id']}")


REQUESTS: dict[str, Callable[[Client], Awaitable[Request]]] = {
    "`POST` of a run": _prepare_plain,
    "`POST` of a run, streamed": _prepare_stream,
    "`POST` of a run that pauses": _prepare_pause,
    "decision, the run goes on": _prepare_decision,
    "cancel of a paused run": _prepare_cancel,
    "`GET` of a session": _prepare_session,
}


async def measure_walks(folder: Path) -> dict[str, list[Walk]]:
    """Send each request several times, and return its walks after the first ones.

    Args:
        folder: an empty folder for the demo.
    """
    profile = Profile()
    with profile.installed():
        async with _serve(folder) as client:
            walks: dict[str, list[Walk]] = {}
            for name, prepare in REQUESTS.items():
                for _ in range(WARM_UP):
                    await (await prepare(client))()
                walks[name] = [await profile.count(await prepare(client)) for _ in range(REPEATS)]
            return walks


@asynccontextmanager
async def _serve(folder: Path) -> AsyncIterator[Client]:
    settings = load_settings(create_demo(folder), {})
    token = mint.mint_token(settings, "walker", ["agent_os:admin"])
    app = create_app(settings)
    transport = httpx2.ASGITransport(app=app)
    async with (
        running(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        yield Client(http, token)


def format_walks(walks: dict[str, list[Walk]]) -> str:
    """Format the medians as a table."""
    lines = [["request", "files", "calls", "moves"]]
    for name, counted in walks.items():
        figures = zip(*((len(walk.files), walk.calls, walk.moves) for walk in counted), strict=True)
        lines.append([name, *(f"{median(each):.0f}" for each in figures)])
    return format_columns(lines)


def main(arguments: list[str] | None = None) -> None:
    """Print the table, and the files if they are wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", action="store_true", help="List the files of each request")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        walks = asyncio.run(measure_walks(Path(folder) / "demo"))
    print(format_walks(walks))
    if options.files:
        for name, counted in walks.items():
            print(f"\n{name}")
            usual = set.intersection(*(walk.files for walk in counted))
            print("\n".join(f"  {file.removeprefix(PACKAGE)[1:]}" for file in sorted(usual)))


if __name__ == "__main__":
    main()
