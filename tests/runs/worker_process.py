"""A worker process: `python -m tests.runs.worker_process FOLDER HEARTBEAT_SECONDS`.

It prints its worker id and executes the commands on its stdin:

    run ID DATABASE     start a run
    fork                leave the lock to a child process that survives; prints the child's pid
    start               start a program that survives; prints its pid
    block SECONDS       block the event loop
    end ID DATABASE     store the end of a run; prints True if it was accepted

At the end of its stdin it unregisters and exits.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from agentctl.runs.workers.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import runs
from tests.kit.rows import an_end
from tests.runs.shared_databases import SharedDatabases, create_live_run


def say(text: object) -> None:
    print(text, flush=True)


async def main(folder: Path, beat_seconds: float) -> None:
    async with SharedDatabases(folder).open(create=False) as databases:
        worker = Worker(
            databases, on_lost=lambda old: say(f"lost {old}"), heartbeat_seconds=beat_seconds
        )
        await worker.register()
        say(worker.id)
        while await obeyed(await asyncio.to_thread(sys.stdin.readline), worker, databases):
            pass


async def obeyed(line: str, worker: Worker, databases: Databases) -> bool:
    match line.split():
        case ["run", run_id, database]:
            await create_live_run(databases[database], worker.id, run_id)
            say("begun")
        case ["end", run_id, database]:
            say(await databases[database].write(runs.finish(an_end(run_id))) is not None)
        case ["fork"]:
            say(forked())
        case ["start"]:
            say(subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL).pid)
        case ["block", seconds]:
            say("blocked")
            time.sleep(float(seconds))
        case _:
            await worker.unregister()
            return False
    return True


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        # The child keeps the open files of its parent, including the lock, except for the pipes.
        os.close(0)
        os.close(1)
        time.sleep(60)
        os._exit(0)
    return pid


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
