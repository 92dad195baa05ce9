"""A backup by a child process: `python -m agentctl.store.sqlite.backup_process SOURCE TARGET`.

The comparison of all rows is Python code. On a thread of a server it would hold the interpreter
lock for milliseconds at a time while requests wait; a process with a low priority does not
(docs/decisions/0121). The process ends with its parent: its stdin is a pipe that no one writes to.
Its stdout is one JSON object, the backup or the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from agentctl import errors
from agentctl.store.sqlite.backup import FinishedBackup, back_up

NICENESS = 10

END_SECONDS = 5.0
"""Time that a cancelled backup has to remove its file, before it is killed."""


async def back_up_in_child(source: Path, target: Path) -> FinishedBackup:
    """Copy a database as `back_up` does, in a child process with a low priority.

    Raises:
        Unavailable: `back_up` has failed, or the process cannot be started, or was killed.
    """
    # As for worker processes: `-m` puts the current folder on the module path, `-P` prevents it.
    by_name = getattr(sys.modules["__main__"], "__spec__", None) is not None
    flags = [] if by_name and not sys.flags.safe_path else ["-P"]
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *flags, "-m", __name__, str(source), str(target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        cause = os.strerror(error.errno or 0).lower()
        raise errors.Unavailable("The backup cannot be started", cause=cause) from None
    assert process.stdout is not None
    try:
        output = await process.stdout.read()
        await process.wait()
    finally:
        await _end(process)
    try:
        result = json.loads(output)
    except ValueError:
        cause = f"its process ended with the code {process.returncode}"
        raise errors.Unavailable("The backup was interrupted", cause=cause) from None
    if "detail" in result:
        raise errors.Unavailable(result["detail"], cause=result["cause"], hint=result["hint"])
    return FinishedBackup(**{**result, "path": target})


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)
        return
    process.kill()
    # A process that waits for a lost disk does not end; the server does.
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_SECONDS)


async def _copy(source: Path, target: Path) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    copying = asyncio.ensure_future(back_up(source, target, lambda *_: None))

    def stop() -> None:
        # Once: a second cancel would not wait for the thread.
        loop.remove_reader(sys.stdin.fileno())
        loop.remove_signal_handler(signal.SIGTERM)
        copying.cancel()

    loop.add_reader(sys.stdin.fileno(), stop)
    loop.add_signal_handler(signal.SIGTERM, stop)
    try:
        return {**asdict(await copying), "path": None}
    except errors.AgentctlError as error:
        return {"detail": error.detail, "cause": error.cause, "hint": error.hint}


def main() -> int:
    """Copy and check a database until the parent ends. Return the exit code."""
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    source, target = (Path(text) for text in sys.argv[1:3])
    try:
        result = asyncio.run(_copy(source, target))
    except asyncio.CancelledError:
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
