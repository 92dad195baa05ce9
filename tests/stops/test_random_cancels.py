"""Cancels at random moments: no run is called stopped while work of it goes on.

A thousand of them with AGENTCTL_TEST_LONG=1, or AGENTCTL_TEST_CANCELS of them. AGENTCTL_TEST_SEED
selects others.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from agentctl.interface.operations import Operations
from agentctl.records.times import parse_rfc3339
from tests.kit.model import ModelEndpoint
from tests.stops.server import StopServer, cancel_run, find_processes, start_run

COUNT = int(
    os.environ.get("AGENTCTL_TEST_CANCELS")
    or (1_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 24)
)
AT_ONCE = 8

FORMS = (
    "task", "tree", "insisting", "to-thread", "in-pool", "submit", "warm-submit",
    "process-pool", "thread", "popen", "exec", "shells", "deaf", "fork", "command-in-thread",
)  # fmt: skip

COMPONENTS = {
    "function": FORMS,
    "configured": FORMS,
    "pydantic_ai": FORMS,
    "langgraph": FORMS,
    "langgraph_branches": FORMS,
    "agno_agent": FORMS,
    "agno_team_tool": FORMS,
    "agno_nested_tool": FORMS,
    "openai_agent": FORMS,
    "openai_called": FORMS,
    "mixed": FORMS,
    "generator": ("",),
    "synchronous": ("",),
    "command": ("",),
    "agno_team_hang": ("",),
    "agno_nested_hang": ("",),
    "agno_team_again": ("",),
    "openai_hang": ("",),
}
"""The forms of work with which each component is cancelled."""


class Result:
    """Counts of the cancelled runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.lies: list[str] = []
        self.seconds: list[float] = []


async def cancel_one(
    server: StopServer,
    operations: Operations,
    components: Mapping[str, Sequence[str]],
    chance: random.Random,
    result: Result,
) -> None:
    component = chance.choice(list(components))
    form = chance.choice(components[component])
    kind = "team" if component == "mixed" else "agent"
    options = {"seconds": round(chance.uniform(0.3, 1.5), 2)} if form else {}
    run_id, tag = await start_run(operations, component, kind=kind, form=form, **options)
    await asyncio.sleep(chance.uniform(0, 1.0))
    begun = time.monotonic()
    run = await cancel_run(operations, component, run_id, kind=kind)
    result.seconds.append(time.monotonic() - begun)
    result.counts[run["status"]] += 1
    result.counts["went on, and named"] += run["stopped_at"] is None
    run = await server.wait_for_stop(operations, run_id)
    children = find_processes(tag)
    await asyncio.sleep(0.3)
    stopped = parse_rfc3339(run["stopped_at"])
    # The work of an agent with a member of a library is that of its last member.
    for member_id in run["member_runs"][-1:] if kind == "agent" else ():
        member = await server.wait_for_stop(operations, member_id)
        if member["status"] == "CANCELLED":
            stopped = min(stopped, parse_rfc3339(member["stopped_at"]))
    late = [beat - stopped for beat in server.read_beats(tag) if beat > stopped]
    if late or children:
        result.lies.append(f"{component} {form} {run_id}: {late[-1:]} {children} {run['holding']}")


async def test_no_run_is_called_stopped_while_its_work_goes_on(
    server: StopServer, model_endpoint: ModelEndpoint
) -> None:
    await cancel_at_random(server, model_endpoint, COMPONENTS, COUNT)


async def cancel_at_random(
    server: StopServer, endpoint: ModelEndpoint, components: Mapping[str, Sequence[str]], count: int
) -> None:
    """Cancel runs of components at random moments, and check that none has work afterwards."""
    seed = int(os.environ.get("AGENTCTL_TEST_SEED") or 7)
    chance = random.Random(seed)
    result = Result()
    async with server.connect() as operations:
        # On a busy machine more runs end before their cancel arrives.
        while len(result.seconds) < count or (
            result.counts["CANCELLED"] <= count / 2 and len(result.seconds) < 5 * count
        ):
            calls = (
                cancel_one(server, operations, components, chance, result) for _ in range(AT_ONCE)
            )
            await asyncio.gather(*calls)
            # A model call that hangs never ends on its own.
            await asyncio.to_thread(endpoint.wait_for_open, 0)
    ordered = sorted(result.seconds)
    middle = ordered[len(ordered) // 2]
    last = ordered[-1 - len(ordered) // 100]
    print(f"{dict(result.counts)}, {len(result.lies)} lies")
    print(f"response to a cancel: p50 {middle:.3f} s, p99 {last:.3f} s")
    assert result.lies == []
    assert result.counts["CANCELLED"] > count / 2
