"""Changes of halts: a row, and the event for webhooks, in one transaction of the system database.

Operators create and end halts (`service/halts.py`), and the sweep ends those whose time has come.
"""

from __future__ import annotations

from agentctl.records.times import now
from agentctl.store.database import Database, Outbox, Steps, unit
from agentctl.store.repositories import halts
from agentctl.store.repositories.halts import HaltRow
from agentctl.webhooks.facts import publish_halt

UNTIL = "system:until"
"""The principal that ends a halt whose time has come."""


@unit
def create_halt(outbox: Outbox, row: HaltRow) -> Steps[HaltRow]:
    """Store a new halt; return it with its change number.

    Other processes obey it a moment later; `runs.life.halts.Halts.wait_until_obeyed` waits for it.
    """
    stored_row = yield from halts.create(row)
    yield from publish_halt(outbox, stored_row)
    return stored_row


@unit
def end_halt(outbox: Outbox, halt_id: str, ended_by: str) -> Steps[HaltRow | None]:
    """End a halt; return it, or None if it does not exist or has ended before."""
    row = yield from halts.end(halt_id, ended_by, now())
    if row is not None:
        yield from publish_halt(outbox, row)
    return row


async def end_due_halts(database: Database) -> None:
    """End the halts of the system database whose time has come.

    All servers let their work continue at that time already; this stores it.
    """
    for halt_id in await database.read(halts.list_due(now())):
        await database.write(end_halt(database.outbox, halt_id, UNTIL))
        database.outbox.wake()
