"""The queue of a session: a new run that has to wait (docs/queue.md, docs/decisions/0098).

When it has its turn (`store/repositories/queue.py`), any server begins it from its checkpoint.
"""

from __future__ import annotations

from agentctl import errors
from agentctl.config.settings import Limits
from agentctl.records.run_spec import RunSpec
from agentctl.runs.log import event_format
from agentctl.runs.log.event_rows import RunIdentity, encode_event
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import events, queue


@unit
def check_queue(spec: RunSpec, limits: Limits) -> Steps[None]:
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
    maximum = limits.queue_per_session
    if (yield from queue.count_in_session(spec.session_id, maximum)) >= maximum:
        raise errors.TooManyRequests("Too many runs wait in the queue of the session")
    if (yield from queue.count(limits.queued_runs)) >= limits.queued_runs:
        raise errors.TooManyRequests("Too many runs wait in the queue")


@unit
def enqueue(spec: RunSpec, component_name: str, at: int) -> Steps[bool]:
    """Store the first event of a new run that waits, and let it begin if it may.

    Args:
        at: the time at which it began to wait, in microseconds UTC.

    Returns:
        True if a server may claim a run of the session now.
    """
    places = yield from queue.list_positions([spec.run_id])
    identity = RunIdentity(
        spec.run_id, spec.session_id, None, spec.component_type, spec.component_id, component_name
    )
    event, data = event_format.format_queued(identity, places[spec.run_id], at)
    yield from events.append_batch(spec.run_id, 1, 0, 0, encode_event(event, data))
    return (yield from queue.add(spec.session_id, at))
