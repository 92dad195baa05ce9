"""Report each operation of a program as a line of JSON.

A program defines its operations as functions in the order of use, and ends with `report()`. A
function that returns has seen the right answer. An operation that is `due` has seen the error that
its request deserves.

The environment has the URL of the server and a token as OPENAI_BASE_URL and OPENAI_API_KEY.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
import signal
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

URL = os.environ["OPENAI_BASE_URL"]
KEY = os.environ["OPENAI_API_KEY"]
ADMIN_KEY = os.environ["ADMIN_KEY"]

SECONDS = 60
"""Maximum duration of an operation."""

_operations: list[tuple[Callable[[], Any], str]] = []


def operation(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add an operation whose answer is right."""
    _operations.append((function, "right"))
    return function


def due(function: Callable[[], Any]) -> Callable[[], Any]:
    """Add an operation whose error is right."""
    _operations.append((function, "due"))
    return function


def report() -> None:
    """Execute all operations, or those that the command line names; print a line for each."""
    # Some libraries keep their connections for later operations, which need the same loop.
    with asyncio.Runner() as runner:
        for function, outcome in _operations:
            if sys.argv[1:] and function.__name__ not in sys.argv[1:]:
                continue
            line = {"operation": function.__name__, "outcome": outcome}
            try:
                with _limit_time():
                    if inspect.iscoroutinefunction(function):
                        runner.run(function())
                    else:
                        function()
            except Exception as error:
                line |= _describe(error)
            print(json.dumps(line), flush=True)


@contextmanager
def _limit_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TimeoutError(f"not finished after {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def _describe(error: BaseException) -> dict[str, object]:
    """Return the outcome of an error: `refused` if the server refused the request."""
    status = None
    place = ""
    for cause in _iterate_causes(error):
        found = re.search(r"Error code: (4\d\d)", str(cause))
        status = status or getattr(cause, "status_code", None) or (found and int(found[1]))
    if not status:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" (line {frame.lineno}: {frame.line})"
    refused = status is not None and 400 <= status < 500 and not isinstance(error, AssertionError)
    text = f"{type(error).__name__}: {error}"[:600] + place
    return {"outcome": "refused" if refused else "wrong", "status": status, "text": text}


def _iterate_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def expect(condition: object, seen: object = "") -> None:
    """Fail an operation whose result is not the right one."""
    if not condition:
        raise AssertionError(repr(seen))


@contextmanager
def expect_error(kind: type[Exception], text: str = "") -> Iterator[None]:
    """Expect an error with a text in it."""
    try:
        yield
    except kind as error:
        expect(text in str(error), str(error))
    else:
        raise AssertionError("no error")


def ask_as_administrator(path: str, method: str = "GET") -> Any:
    """Return the response of a route of the server, outside `/v1`."""
    request = urllib.request.Request(URL.removesuffix("/v1") + path, method=method)
    request.add_header("Authorization", f"Bearer {ADMIN_KEY}")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def wait_for_status(session_id: str, status: str) -> dict[str, Any]:
    """Wait until the newest run of a session has a status; return the run."""
    deadline = time.monotonic() + 30
    while True:
        try:
            runs = ask_as_administrator(f"/sessions/{session_id}/runs")
        except OSError:
            runs = []
        if runs and runs[-1]["status"] == status:
            return runs[-1]  # type: ignore[no-any-return]
        if time.monotonic() > deadline:
            raise AssertionError(f"{session_id} has {[run['status'] for run in runs]}")
        time.sleep(0.05)


def wait_for_live_run(component_id: str) -> str:
    """Wait until a component works on a run; return the id of its session."""
    deadline = time.monotonic() + 30
    while True:
        path = f"/runs?live=true&component_id={component_id}&limit=1"
        if found := ask_as_administrator(path)["data"]:
            return str(found[0]["session_id"])
        if time.monotonic() > deadline:
            raise AssertionError(f"{component_id} has no run")
        time.sleep(0.05)


WEATHER = 'How is it in {"city": "Rome"}?'
"""A message for which the agent `weather` calls the tool `get_weather`."""

SUNNY = "Rome: sunny"
"""The result of that tool, which is the answer of the agent then."""


def get_weather(city: str) -> str:
    """Return the weather of a city.

    Args:
        city: name of the city
    """
    return f"{city}: sunny"


async def expect_cancel(work: Callable[[], Any], component_id: str = "trickle") -> None:
    """Cancel work of a program, in which a component answers without end; its run must end."""
    task = asyncio.ensure_future(work())
    try:
        session_id = await asyncio.to_thread(wait_for_live_run, component_id)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(wait_for_status, session_id, "CANCELLED")
