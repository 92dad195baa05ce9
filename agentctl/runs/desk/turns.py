"""Turns: how a new run enters the queue of its session (docs/queue.md).

`store/repositories/queue.py` has the order in which the runs that wait begin.
"""

from __future__ import annotations

from agentctl import errors
from agentctl.records.run_spec import RunSpec
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import RunIdentity, encode_event
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, queue

MAXIMUM_IN_SESSION = 20
"""Runs that wait in the queue of one session."""

MAXIMUM_QUEUED = 10_000
"""Runs that wait in the queues of one database."""


@unit
def check_queue(spec: RunSpec) -> Steps[None]:
    """Check that a run may wait in the queue of its session, whose row is locked.

    Raises:
        Conflict: the request has dependencies: another process may begin the run, and they are
            never stored.
        TooManyRequests: the queue is full.
    """
    if spec.dependencies is not None:
        raise errors.Conflict(
            "The run would have to wait, and dependencies are not stored",
            hint="send the request without dependencies, or when the session is idle",
        )

    problem = yield from find_full_queue(spec.session_id)
    if problem is not None:
        raise errors.TooManyRequests(problem)


@unit
def find_full_queue(session_id: str) -> Steps[str | None]:
    """Return a sentence about why no run of a session may wait; None if there is room."""
    session_count = yield from queue.count_in_session(session_id, MAXIMUM_IN_SESSION)
    if session_count >= MAXIMUM_IN_SESSION:
        return "Too many runs wait in the queue of the session"

    database_count = yield from queue.count(MAXIMUM_QUEUED)
    if database_count >= MAXIMUM_QUEUED:
        return "Too many runs wait in the queue"
    return None


@unit
def enqueue(spec: RunSpec, component_name: str, at: int) -> Steps[bool]:
    """Store the first event of a new run that waits, and let it begin if it may.

    Its row is stored, and its session is locked.

    Args:
        component_name: the name in the events of the run.
        at: the time of the event in microseconds UTC.

    Returns:
        True if a server may claim a run of the session now.
    """
    positions = yield from queue.list_positions([spec.run_id])
    identity = RunIdentity(
        spec.run_id, spec.session_id, None, spec.component_type, spec.component_id, component_name
    )
    name, data = event_rows.format_queued(identity, positions[spec.run_id], at)
    yield from events.append_batch(spec.run_id, 1, 0, 0, encode_event(name, data))

    return (yield from queue.add(spec.session_id, at))
