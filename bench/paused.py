"""The cost of 10,000 paused runs for an idle server, next to the same server without them.

python -m bench.paused
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

import orjson

from agentctl.config.load import load_settings
from agentctl.records.approvals import ApprovalRow, hash_call
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import NewRun, RunPause
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, runs, sessions
from agentctl.store.repositories.approvals import Checkpoint
from bench.idle import SETTLE_SECONDS, scheduled_seconds
from bench.load import resident_megabytes
from bench.servers import RunningServer, serve_agentctl
from bench.work import create_work

PAUSED = 10_000
SECONDS = 10.0
ROUNDS = 3
ARGUMENTS = {"amount": 10, "to": "bob", "reason": "an order that was never sent"}


@unit
def pause_runs(count: int, component_id: str) -> Steps[None]:
    """Store paused runs, each in its own session with one approval."""
    for _ in range(count):
        run_id = new_id()
        session_id = new_id()
        at = now()
        spec = RunSpec(
            run_id=run_id,
            session_id=session_id,
            component_type="agent",
            component_id=component_id,
            user_id="ann",
            input="pay bob",
            time_limit=60.0,
            tool_timeout=60.0,
        )
        yield from sessions.create(
            sessions.build_session(session_id, "agent", user_id="ann", now=at)
        )
        yield from runs.create(NewRun(spec, "worker", at))
        call_hash = hash_call(run_id, "call-1", "pay", ARGUMENTS)
        yield from approvals.create(
            [
                ApprovalRow(
                    new_id(),
                    "approval",
                    "other",
                    run_id,
                    run_id,
                    session_id,
                    "agent",
                    component_id,
                    "ann",
                    "ann",
                    "call-1",
                    "pay",
                    orjson.dumps(ARGUMENTS).decode(),
                    call_hash,
                    at,
                )
            ]
        )
        body = {
            "spec": spec.to_json(),
            "transcript": Transcript().to_json(),
            "state": {},
            "component_name": component_id,
            "is_first": True,
            "earlier_runs": [],
            "summary": None,
            "previous_instructions": None,
        }
        text = orjson.dumps(body).decode()
        yield from approvals.keep_checkpoint(Checkpoint(run_id, 1, "pause", text))
        yield from runs.pause(RunPause(run_id, 1, "PAUSED", at, "", "[]", "[]", "{}", "[]"))


async def fill(folder: Path, component_id: str) -> None:
    databases = Databases(load_settings(folder / "agentctl.toml", {}), create=True)
    try:
        for _ in range(PAUSED // 500):
            await databases.system.write(pause_runs(500, component_id))
    finally:
        await databases.close()


def measure(server: RunningServer) -> tuple[float, float]:
    """Return the CPU share in percent and the memory in MB of an idle server."""
    time.sleep(SETTLE_SECONDS)
    shares = []
    for _ in range(ROUNDS):
        before = scheduled_seconds(server.process_id)
        start = time.monotonic()
        time.sleep(SECONDS)
        used = scheduled_seconds(server.process_id) - before
        shares.append(used / (time.monotonic() - start) * 100)
    return statistics.median(shares), resident_megabytes(server.process_id)


def main() -> int:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="agentctl-paused-") as folder:
        for name in ("without", "with"):
            work = create_work(Path(folder) / name, "http://127.0.0.1:9/v1", [])
            if name == "with":
                asyncio.run(fill(work.folder, "echo"))
            with serve_agentctl(work) as server:
                figures[name] = measure(server)
                print(f"{name} paused runs: {figures[name][0]:.3f}% CPU, {figures[name][1]:.1f} MB")
    more = figures["with"][1] - figures["without"][1]
    ratio = figures["with"][0] / figures["without"][0]
    print(f"{PAUSED} paused runs: {more:+.1f} MB, CPU x{ratio:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
