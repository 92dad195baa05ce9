"""The origin of a task or a thread: the code of a user, of a library, or of the server.

Decided by the files and modules of functions and of frames, so only in the code of runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import functools
import sysconfig
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from anyio._backends._asyncio import WorkerThread

_CONNECTION_LIBRARIES = (
    "aiohttp.connector.",
    "aiohttp.resolver.",
    "aiokafka.",
    "aiormq.",
    "asyncpg.",
    "langgraph.store.base.batch.",
    "nats.",
    "psycopg_pool.",
    "pymongo.",
    "redis.",
    "websockets.",
)
"""Modules whose tasks serve a connection or a pool that later runs use as well."""

_WAITING_MODULES = ("langgraph.pregel.main.",)
"""Modules whose tasks only wait.

LangGraph starts one such task for each part of a stream, which ends it. Tracking it as work of the
run would cost as much as the part itself, and protect nothing.
"""

_RUNNERS = "agentctl.runtime.runners"
"""The package whose tasks are work of a run; other tasks of the package belong to the server."""

_SERVER = str(Path(__file__).parents[1])

_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
"""The folder of the standard library: sysconfig takes a third of a millisecond to find it."""

_LIBRARIES = tuple(
    {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)

_MAXIMUM_NAME = 100
"""Characters of a name in a record."""

_PROCESS_POOLS = ("concurrent.futures.process", "multiprocessing.pool")


def is_shared(frame: FrameType | None) -> bool:
    """Return True if a task that is created now is no work of the current run.

    Args:
        frame: the caller of the task factory.
    """
    while frame is not None:
        shared = _creates_shared_tasks(str(frame.f_globals.get("__name__", "")))
        if shared is not None:
            return shared
        if frame.f_code.co_name in ("_run", "run"):
            # A callback of the event loop: no other code is on the stack.
            return False
        frame = frame.f_back
    return False


@functools.cache
def _creates_shared_tasks(module: str) -> bool | None:
    """Return True if the tasks of a module are shared; None for asyncio, whose caller decides.

    Cached: libraries that stream may create a task for each piece.
    """
    name = f"{module}."
    if name.startswith("asyncio."):
        return None
    if name.startswith("agentctl."):
        return not name.startswith(f"{_RUNNERS}.")
    return name.startswith((*_CONNECTION_LIBRARIES, *_WAITING_MODULES))


def is_started_by_library(thread: threading.Thread, frame: FrameType | None) -> bool:
    """Return True for a daemon thread that a library starts, such as an exporter of traces.

    Args:
        frame: the caller of the audit hook.
    """
    if not thread.daemon:
        return False
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_STANDARD_LIBRARY, "<")) or _is_installed(file):
            return _is_library(file)
        frame = frame.f_back
    return False


def is_pool_process(frame: FrameType | None) -> bool:
    """Return True if the process that starts now is a worker of a pool.

    A pool may be shared by runs: only its calls belong to a run.
    """
    while frame is not None:
        if frame.f_globals.get("__name__") in _PROCESS_POOLS:
            return True
        frame = frame.f_back
    return False


def is_pool_thread(thread: threading.Thread) -> bool:
    """Return True for a thread of a pool, or of AnyIO, that executes the calls of many runs."""
    if getattr(thread, "_target", None) is concurrent.futures.thread._worker:
        return True
    if hasattr(thread, "pending_work_items"):
        # The manager of a pool of processes.
        return True
    return isinstance(thread, WorkerThread)


def find_name(coroutine: Any) -> str | None:
    """Return the name of the function of a coroutine; None if it is not the code of a user."""
    code = getattr(coroutine, "cr_code", None)
    if code is None or _is_library(code.co_filename):
        return None
    return str(code.co_name)[:_MAXIMUM_NAME]


def is_closing(task: asyncio.Task[Any]) -> bool:
    """Return True for a task with which Python closes an asynchronous generator.

    It starts one when a generator that was not read to its end is deleted.
    """
    return type(task.get_coro()).__name__ == "async_generator_athrow"


@functools.cache
def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _SERVER, "<"))


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file
