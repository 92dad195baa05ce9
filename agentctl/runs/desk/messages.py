"""The one fate of each message to a run that works (docs/contract.md "Messages to a run").

A message waits in a row until the worker of its run delivers it to a model call
(`runs/life/live.py`), or until the run ends. The transaction of the end gives every message that
still waits its fate: the next run of the session, or a refusal. The row of the run is locked by all
of them, so a message is either in the database before the end, or its sender finds the end.

The run that a message becomes has the id of the message. What it starts from, which includes the
rights of the sender, is stored with the message.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from agentctl import errors
from agentctl.records.run_messages import RunMessageRow
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import NewRun
from agentctl.records.sessions import SESSION_NOT_FOUND
from agentctl.records.times import now
from agentctl.runs.desk.turns import check_queue, enqueue, find_full_queue
from agentctl.runs.log.fold import find_root_id, write_start_checkpoint
from agentctl.runs.log.results import to_json
from agentctl.runs.states import Ending, is_final
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import queue, run_messages, run_reads, runs
from agentctl.store.repositories.queue import lock_session

MAXIMUM_WAITING = 20
"""Messages that wait for one run."""

MAXIMUM_MESSAGES = 1_000
"""Messages to one run."""

ENDED = "The run had made its last model call"
"""The reason of a message that its run could not get any more."""

CANCELLED = "The run was cancelled"
"""The reason of a message whose run was cancelled before it got the message."""

RESTORED = "The database was restored to a time at which the message waited"
"""The reason of a message that a restore refuses: its sender may have sent it again."""


class StoredMessage(NamedTuple):
    """A message that was stored."""

    row: RunMessageRow
    """The message with its number, waiting or with its fate."""

    may_begin: bool = False
    """True if it became a run that any server may begin now."""


def dump_next_run(spec: RunSpec, component_name: str) -> str:
    """Return what a message keeps for the run that it may become."""
    return to_json({"spec": spec.to_json(), "component_name": component_name})


@unit
def send_message(
    message: RunMessageRow, *, obstacle: str | None, is_start: bool = False
) -> Steps[StoredMessage]:
    """Store a message to a run: it waits, or it becomes a run of the session at once.

    Args:
        message: the new row, without its number, with the status `waiting`.
        obstacle: why its run takes no messages while it works; None if it takes them.
        is_start: True for a request to start a run (`on_busy = "steer"`), which a cancel of the
            other run does not concern.

    Raises:
        NotFound: the run was deleted meanwhile.
        Conflict: the run is part of another one, is being cancelled, or the message is refused.
        TooManyRequests: too many messages wait, or the queue of the session is full.
    """
    state = yield from run_reads.get_state(message.run_id)
    if state is not None and state.queue_turn is not None:
        # The end of another run locks the session, and then the row of the run that begins next.
        yield from lock_session(state.session_id)
    state = yield from run_reads.lock_state(message.run_id)
    if state is None:
        raise errors.NotFound("Run not found")

    if state.parent_run_id is not None:
        root_id = yield from find_root_id(state)
        raise errors.Conflict(f"The run is part of run {root_id}: send the message to that one")
    if not is_final(state.status) and state.cancel_requested_at is not None:
        obstacle = "The run is being cancelled"
        if not is_start:
            raise errors.Conflict(obstacle)
    if state.messages_sent >= MAXIMUM_MESSAGES:
        raise errors.TooManyRequests("The run has got too many messages")

    if is_final(state.status):
        obstacle = f"The run had ended as {state.status}"
    if obstacle is not None:
        if message.late == "refuse":
            raise errors.Conflict(obstacle, hint="start a run of the session with the message")
        return (yield from _send_as_run(message, state.session_id, obstacle))

    if (yield from run_messages.count_waiting(message.run_id)) >= MAXIMUM_WAITING:
        raise errors.TooManyRequests("Too many messages wait for the run")
    return StoredMessage((yield from run_messages.send(message)))


def _send_as_run(message: RunMessageRow, session_id: str, reason: str) -> Steps[StoredMessage]:
    """Store a message that becomes a run of the session at once."""
    assert message.next_run is not None
    if not (yield from lock_session(session_id)):
        raise errors.NotFound(SESSION_NOT_FOUND)

    spec, component_name = _load_next_run(message.next_run)
    yield from check_queue(spec)
    became_run = replace(
        message, status="next_run", settled_at=message.created_at, reason=reason, next_run=None
    )
    row = yield from run_messages.send(became_run)
    may_begin = yield from _create_queued_run(spec, component_name, message.created_at)
    return StoredMessage(row, may_begin)


@unit
def settle_messages(
    run_id: str, ending: Ending, at: int, part_ids: Collection[str] | None = None
) -> Steps[bool]:
    """Give the messages that wait for a run their fate. The rows of it and its session are locked.

    Args:
        ending: how the run ends, or has ended.
        at: the time of the end, in microseconds UTC.
        part_ids: the ids of the messages that are part of the run. The other delivered messages
            wait again: their model call was not made. None if that is not known.

    Returns:
        True if a run of the session may begin now.
    """
    may_begin = False
    for message in (yield from run_messages.list_of_run(run_id)):
        is_waiting = message.status == "waiting"
        if message.status == "delivered" and part_ids is not None:
            is_waiting = message.message_id not in part_ids
            if is_waiting:
                yield from run_messages.take_back(message.message_id)
        if is_waiting and (yield from _settle(message, ending, at)):
            may_begin = True

    yield from run_messages.forget_next(run_id)
    return may_begin


def _settle(message: RunMessageRow, ending: Ending, at: int) -> Steps[bool]:
    """Let a message that waits become the next run, or refuse it.

    Returns:
        True if a run of the session may begin now.
    """
    assert message.next_run is not None
    spec, component_name = _load_next_run(message.next_run)

    refusal: str | None = None
    if ending.status == "CANCELLED":
        refusal = CANCELLED
    elif message.late == "refuse":
        refusal = ENDED
    else:
        refusal = yield from find_full_queue(spec.session_id)

    if refusal is not None:
        yield from run_messages.refuse(message.message_id, refusal, at)
        return False
    yield from run_messages.follow(message.message_id, ENDED, at)
    return (yield from _create_queued_run(spec, component_name, at))


def _load_next_run(text: str) -> tuple[RunSpec, str]:
    body: dict[str, Any] = orjson.loads(text)
    return RunSpec.from_json(body["spec"]), body["component_name"]


def _create_queued_run(spec: RunSpec, component_name: str, at: int) -> Steps[bool]:
    """Store a run that waits for the end of the earlier runs of its session, which is locked."""
    run = NewRun(spec, None, at, queue_turn=queue.AFTER_RUNS)
    if (yield from runs.create(run)) is None:
        raise errors.NotFound(SESSION_NOT_FOUND)
    yield from write_start_checkpoint(spec, component_name, is_first=False)
    return (yield from enqueue(spec, component_name, at))


@unit
def settle_left_messages(run_id: str) -> Steps[bool]:
    """Give the messages that a server of an earlier version has left their fate.

    Returns:
        True if a run of the session may begin now.
    """
    state = yield from run_reads.lock_state(run_id)
    if state is None or not is_final(state.status):
        return False
    yield from lock_session(state.session_id)
    return (yield from settle_messages(run_id, Ending.stored(state), now()))
