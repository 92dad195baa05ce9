"""A process that is enlisted as a worker: `python -m tests.runs.enlisted FOLDER BEAT_SECONDS`.

It says its id, and what becomes of it; it does what the lines on its stdin tell:
    run ID DATABASE     begin a run
    fork                leave the lock to a child that outlives it; says the child's pid
    start               start a program that outlives it; says its pid
    block SECONDS       keep the event loop busy
    end ID DATABASE     write the end of a run; says whether it was taken
    retire              go, as a process that ends well does
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from agentctl.runs.worker import Worker
from agentctl.store.databases import Databases
from agentctl.store.repositories import runs
from tests.runs.rig import Rig, a_live_run
from tests.store.made import an_end


def say(text: object) -> None:
    print(text, flush=True)


async def main(folder: Path, beat_seconds: float) -> None:
    async with Rig(folder).open(create=False) as databases:
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
            await a_live_run(databases[database], worker.id, run_id)
            say("begun")
        case ["end", run_id, database]:
            say(await databases[database].write(runs.finish(an_end(run_id))))
        case ["fork"]:
            say(forked())
        case ["start"]:
            say(subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL).pid)
        case ["block", seconds]:
            say("blocked")
            time.sleep(float(seconds))
        case _:
            await worker.unregister()
            say("retired")
            return False
    return True


def forked() -> int:
    pid = os.fork()
    if pid == 0:
        # It has what its parent had open, the lock as well, except for the pipes.
        os.close(0)
        os.close(1)
        time.sleep(60)
        os._exit(0)
    return pid


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), float(sys.argv[2])))
