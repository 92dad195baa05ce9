"""Changes of halts: a row, and the event for webhooks, in one transaction of the system database.

Operators create and end halts (`service/operations/halts.py`), breakers create them
(`runs/gate/breakers.py`), and the sweep ends those whose time has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from agentctl.config.settings import Breaker
from agentctl.records.text import new_id
from agentctl.records.times import format_span, now
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import audit, failures, halts
from agentctl.store.repositories.failures import Failure
from agentctl.store.repositories.halts import HaltRow
from agentctl.webhooks.facts import publish_halt

UNTIL = "system:until"
"""The principal that ends a halt whose time has come."""

BREAKER = "system:breaker"
"""The principal that creates the halts of breakers."""


@unit
def create_halt(outbox: Outbox, row: HaltRow) -> Steps[HaltRow]:
    """Store a new halt; return it with its change number.

    Other processes obey it a moment later; `runs.gate.halts.Halts.wait_until_obeyed` waits for it.
    """
    stored_row = yield from halts.create(row)
    yield from publish_halt(outbox, stored_row)
    return stored_row


@unit
def end_halt(outbox: Outbox, halt_id: str, ended_by: str) -> Steps[HaltRow | None]:
    """End a halt; return it, or None if it does not exist or has ended before."""
    row = yield from halts.end(halt_id, ended_by, now())
    if row is None:
        return None

    yield from publish_halt(outbox, row)
    if row.scope_id is not None:
        # What has failed before the end does not count with what fails after it.
        yield from failures.forget(row.scope, row.scope_id)
    return row


@unit
def record_failure(outbox: Outbox, failure: Failure, breaker: Breaker) -> Steps[HaltRow | None]:
    """Count a failure, and create the halt of its breaker if it is one too many.

    Safe to repeat: a failure counts once.

    Returns:
        The new halt; None if the failures are too few, or a halt of the scope is active already.
    """
    # Two servers may record failures at the same time: one of them sees both, and only one creates
    # the halt.
    yield from halts.lock()
    codes = yield from failures.add(failure, breaker.within_seconds * 1_000_000)
    if len(codes) < breaker.failures:
        return None

    active = yield from halts.list_active()
    for row in active.halts:
        is_same_scope = (row.scope, row.scope_id) == (failure.scope, failure.scope_id)
        if is_same_scope and row.is_active_at(failure.failed_at):
            return None

    halt = HaltRow(
        halt_id=new_id(),
        scope=failure.scope,
        scope_id=failure.scope_id,
        reason=_describe_failures(failure, codes, breaker),
        stop_running=0,
        created_by=BREAKER,
        created_at=now(),
        until=None,
    )
    stored_halt = yield from create_halt(outbox, halt)
    yield from _append_entry(stored_halt)
    return stored_halt


def _describe_failures(failure: Failure, codes: Sequence[str], breaker: Breaker) -> str:
    """Return the reason of the halt of a breaker: it names no run, because all users read it."""
    work = "calls" if failure.scope == "model" else "runs"
    span = format_span(breaker.within_seconds)
    counts = ", ".join(f"{code} {count}" for code, count in Counter(codes).most_common())
    return f"{len(codes)} of its {work} failed within {span}: {counts}"


def _append_entry(halt: HaltRow) -> Work[None]:
    """Add the entry of the audit log about the halt of a breaker."""
    entry = audit.AuditRow(
        at=halt.created_at,
        principal=BREAKER,
        via="local",
        operation="create_halt",
        resource=f"{halt.scope}:{halt.scope_id},halt:{halt.halt_id}",
        outcome="allowed",
        status=None,
        reason=halt.reason,
        request_id=None,
    )
    return audit.append_entry(entry)


async def end_due_halts(database: Database) -> None:
    """End the halts of the system database whose time has come.

    All servers let their work continue at that time already; this stores it.
    """
    for halt_id in await database.read(halts.list_due(now())):
        await database.write(end_halt(database.outbox, halt_id, UNTIL))
        database.outbox.wake()
