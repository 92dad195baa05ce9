"""Work of every form, which agents start. The servers of the tests import this module.

Work that goes on adds lines to the file `LEDGER`: the tag of its run and the time in microseconds.
The message of a run is JSON: `tag`; `form`; `seconds`, the time after which the work ends on its
own; and `leave`, with which the agent returns at once and leaves the work. Work also ends when the
file `LEDGER.TAG` exists.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import anyio.to_thread

from agentctl import outside_run

LEDGER = os.environ["LEDGER"]
BEAT_SECONDS = 0.02

_shared_pool = ThreadPoolExecutor(64)

_shared_processes = ProcessPoolExecutor(8)

_warm_pool = ThreadPoolExecutor(2)
"""A pool whose threads no run has started."""

kept: list[Any] = []
"""Work that nothing else refers to."""


def write(tag: str) -> None:
    """Add a line to the ledger."""
    line = f"{tag} {time.time_ns() // 1_000}\n".encode()
    descriptor = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)


def goes_on(tag: str, deadline: float) -> bool:
    return time.monotonic() < deadline and not os.path.exists(f"{LEDGER}.{tag}")  # noqa: PTH110


async def work(tag: str, seconds: float) -> None:
    """Work until the end of the time, or a cancel."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        await asyncio.sleep(BEAT_SECONDS)


async def insist(tag: str, seconds: float) -> None:
    """Work until the end of the time, although cancelled."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        try:
            await asyncio.sleep(BEAT_SECONDS)
        except asyncio.CancelledError:
            continue


async def spread(tag: str, seconds: float) -> None:
    """Start a task for the work, and cancel nothing."""
    started = asyncio.create_task(work(tag, seconds))
    kept.append(started)
    await asyncio.wait([started])


def block(tag: str, seconds: float) -> None:
    """Work in a thread or process."""
    deadline = time.monotonic() + seconds
    while goes_on(tag, deadline):
        write(tag)
        time.sleep(BEAT_SECONDS)


def build_shell_line(tag: str, seconds: float) -> str:
    """Return a command that works for a time."""
    beats = int(seconds / 0.05) + 1
    return (
        f"i=0; while [ $i -lt {beats} -a ! -e '{LEDGER}.{tag}' ]; do i=$((i+1));"
        f" echo {tag} $(date +%s%6N) >> '{LEDGER}'; sleep 0.05; done"
    )


def build_spawning_line(tag: str, pause: str) -> str:
    """Return a command that starts a hundred commands, each of which lasts half a minute."""
    return (
        f"echo {tag} $(date +%s%6N) >> '{LEDGER}'; i=0; while [ $i -lt 100 ]; do i=$((i+1));"
        f" (sleep 30; : {tag}) & {pause} done; wait"
    )


def shell(line: str) -> list[str]:
    return ["/bin/sh", "-c", line]


async def start_task(tag: str, seconds: float) -> None:
    kept.append(asyncio.create_task(work(tag, seconds)))


async def start_insisting(tag: str, seconds: float) -> None:
    kept.append(asyncio.create_task(insist(tag, seconds)))


async def start_tree(tag: str, seconds: float) -> None:
    kept.append(asyncio.create_task(spread(tag, seconds)))


async def start_to_thread(tag: str, seconds: float) -> None:
    kept.append(asyncio.create_task(asyncio.to_thread(block, tag, seconds)))


async def start_anyio(tag: str, seconds: float) -> None:
    call = anyio.to_thread.run_sync(block, tag, seconds, abandon_on_cancel=True)
    kept.append(asyncio.create_task(call))


async def start_in_pool(tag: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    kept.append(loop.run_in_executor(_shared_pool, block, tag, seconds))


async def start_submit(tag: str, seconds: float) -> None:
    pool = ThreadPoolExecutor(1)
    kept.append((pool, pool.submit(block, tag, seconds)))


async def start_warm_submit(tag: str, seconds: float) -> None:
    kept.append(_warm_pool.submit(block, tag, seconds))


async def start_late_submit(tag: str, seconds: float) -> None:
    await _start_late(tag, lambda: ThreadPoolExecutor(1).submit(block, tag, seconds))


async def start_late_warm_submit(tag: str, seconds: float) -> None:
    await _start_late(tag, lambda: _warm_pool.submit(block, tag, seconds))


async def start_late_thread(tag: str, seconds: float) -> None:
    await _start_late(tag, threading.Thread(target=block, args=(tag, seconds)).start)


async def _start_late(tag: str, start_work: Callable[[], object]) -> None:
    """Start work as the last act of a cleanup that takes longer than the end of the run."""
    write(tag)
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0.5)
        kept.append(start_work())


async def start_process_pool(tag: str, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    kept.append(loop.run_in_executor(_shared_processes, block, tag, seconds))


async def start_warm_process_submit(tag: str, seconds: float) -> None:
    kept.append(_shared_processes.submit(block, tag, seconds))


async def start_process_submit(tag: str, seconds: float) -> None:
    pool = ProcessPoolExecutor(1)
    kept.append((pool, pool.submit(block, tag, seconds)))


async def start_thread(tag: str, seconds: float) -> None:
    threading.Thread(target=block, args=(tag, seconds), name="beat", daemon=True).start()


async def start_popen(tag: str, seconds: float) -> None:
    kept.append(subprocess.Popen(shell(build_shell_line(tag, seconds))))


async def start_exec(tag: str, seconds: float) -> None:
    line = shell(build_shell_line(tag, seconds))
    kept.append(await asyncio.create_subprocess_exec(*line))


class _SlowEnvironment(dict[str, str]):
    """Variables that take longer to read than the end of a run."""

    def items(self) -> Any:
        time.sleep(1)
        return super().items()


async def start_slow_popen(tag: str, seconds: float) -> None:
    write(tag)
    environment = _SlowEnvironment(os.environ)
    line = shell(build_shell_line(tag, seconds))
    kept.append(await asyncio.to_thread(subprocess.Popen, line, env=environment))


async def start_shells(tag: str, seconds: float) -> None:
    line = f"({build_shell_line(tag, seconds)}) & wait"
    kept.append(subprocess.Popen(shell(line), start_new_session=True))


async def start_deaf(tag: str, seconds: float) -> None:
    line = f"trap '' TERM; {build_shell_line(tag, seconds)}"
    kept.append(await asyncio.create_subprocess_exec(*shell(line)))


async def start_spawning(tag: str, seconds: float) -> None:
    kept.append(subprocess.Popen(shell(build_spawning_line(tag, pause=""))))


async def start_deaf_spawning(tag: str, seconds: float) -> None:
    line = f"trap '' TERM; {build_spawning_line(tag, pause='sleep 0.1;')}"
    kept.append(subprocess.Popen(shell(line)))


async def start_fork(tag: str, seconds: float) -> None:
    process = multiprocessing.get_context("fork").Process(target=block, args=(tag, seconds))
    process.start()
    kept.append(process)


async def start_command_in_thread(tag: str, seconds: float) -> None:
    line = shell(build_shell_line(tag, seconds))
    kept.append(asyncio.create_task(asyncio.to_thread(subprocess.run, line)))


async def start_nothing(tag: str, seconds: float) -> None:
    await work(tag, seconds)


async def start_shared(tag: str, seconds: float) -> None:
    with outside_run():
        kept.append(asyncio.create_task(work(tag, seconds)))


FORMS: dict[str, Callable[[str, float], Any]] = {
    name.removeprefix("start_").replace("_", "-"): function
    for name, function in list(globals().items())
    if name.startswith("start_")
}
"""Functions that start work, by the names of its forms."""


async def start(tag: str, form: str, seconds: float = 600.0, leave: bool = False) -> str:
    """Start the work of a form, and wait for it unless it is left."""
    await FORMS[form](tag, seconds)
    if not leave:
        await asyncio.sleep(600)
    return "started"


def run_command(tag: str, form: str = "", seconds: float = 600.0, leave: bool = False) -> str:
    """Run a command to its end."""
    subprocess.run(shell(build_shell_line(tag, seconds)), check=False)
    return "ended"


async def touch(tag: str) -> str:
    """Work for a moment."""
    write(tag)
    await asyncio.sleep(0.05)
    write(tag)
    return "touched"


@dataclass
class Work:
    """The arguments of an agent that is called as a tool."""

    tag: str
    form: str = ""
    seconds: float = 600.0
    leave: bool = False


# Forked at the import: a process that is forked later has copies of the connections to models.
for _ in range(8):
    _shared_processes.submit(time.sleep, 0.2)
for _ in range(2):
    _warm_pool.submit(time.sleep, 0.2)
