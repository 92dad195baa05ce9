"""One run of chaos, from an empty database to the audit."""

from __future__ import annotations

import asyncio
import sys
import time

from tests.chaos.audit import check_consistency, wait_until_idle
from tests.chaos.clients import Client
from tests.chaos.ledger import Ledger
from tests.chaos.report import Result
from tests.chaos.stage import Cluster, start_cluster
from tests.chaos.trouble import inject_faults

__all__ = ["run_chaos"]

LATE_SECONDS = 90.0
"""How long a client may take to finish what it began."""

LAST_SECONDS = 3.0
"""How long before the end of the load nothing new goes wrong."""


async def run_chaos(seconds: float, clients: int, *, pause: float, durable: bool = True) -> Result:
    """Have clients work while things go wrong, then look what is true.

    Args:
        seconds: of load.
        pause: between two outages.
        durable: whether the database writes to the disk what it acknowledges.
    """
    ledger = Ledger()
    async with start_cluster(durable=durable) as there:
        until = time.monotonic() + seconds
        work = [Client(number, there, ledger).work(until) for number in range(clients)]
        trouble = asyncio.create_task(inject_faults(there, until - LAST_SECONDS, pause))
        running = [asyncio.create_task(one) for one in work]
        done, late = await asyncio.wait(running, timeout=seconds + LATE_SECONDS)
        for task in done:
            task.result()
        for task in late:
            ledger.wrong["clients that hang"] += 1
            task.print_stack(limit=4)
            task.cancel()
        outages = await trouble
        quiet = await wait_until_idle(there, ledger)
        await check_consistency(there, ledger)
        lines, tracebacks = _said(there)
    return Result(seconds, clients, ledger, outages, quiet, lines, tracebacks)


def _said(there: Cluster) -> tuple[int, int]:
    """Lines and tracebacks in the logs of all lives of the servers."""
    texts = [log.read_text() for server in there.servers for log in server.said]
    for text in texts:
        if "Traceback" in text:
            print(text[max(text.index("Traceback") - 500, 0) :][:4_000], file=sys.stderr)
    return sum(len(text.splitlines()) for text in texts), sum(
        text.count("Traceback") for text in texts
    )
