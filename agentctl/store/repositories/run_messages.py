"""Messages to runs that work: rows that wait until they have one fate.

Every change locks the row of the run first. A message is delivered by the worker that executes the
run, in a statement that names its attempt: a worker that has lost the run delivers nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

from agentctl.records.run_messages import RunMessageRow
from agentctl.store.database import Sql, Statement, Steps, Value, Work, build_insert, unit
from agentctl.store.states import MESSAGE, change

_NAMES = tuple(field.name for field in fields(RunMessageRow))
_COLUMNS = ", ".join(_NAMES)

# Also the lock of the row, and what the end of the run looks at.
_COUNT_SENT = Sql(
    "UPDATE runs SET messages_sent = messages_sent + 1 WHERE run_id = :run_id"
    " RETURNING messages_sent"
)

_SEND = change(MESSAGE, "send")(build_insert("run_messages", _NAMES))

_GET = Sql(f"SELECT {_COLUMNS} FROM run_messages WHERE message_id = :message_id")

_LIST = Sql(
    f"SELECT {_COLUMNS} FROM run_messages WHERE run_id = :run_id AND seq > :after"
    " ORDER BY seq LIMIT :limit"
)

_OF_RUN = Sql(f"SELECT {_COLUMNS} FROM run_messages WHERE run_id = :run_id ORDER BY seq")

_COUNT = Sql("SELECT count(*) FROM run_messages WHERE run_id = :run_id")

_COUNT_WAITING = Sql(
    "SELECT count(*) FROM run_messages WHERE run_id = :run_id AND status = 'waiting'"
)

_LOCK_RUN = Sql(
    "SELECT run_id FROM runs WHERE run_id = :run_id AND attempt = :attempt AND status = 'RUNNING'"
    " AND cancel_requested_at IS NULL FOR UPDATE"
)

_DELIVER = change(MESSAGE, "deliver")(
    "UPDATE run_messages SET status = 'delivered', settled_at = :at, attempt = :attempt,"
    " model_call_id = :model_call_id WHERE message_id = :message_id AND {where}"
)

_NAME_CALL = Sql(
    "UPDATE run_messages SET model_call_id = :model_call_id WHERE message_id = :message_id"
    " AND attempt <= :attempt AND status = 'delivered'"
)

_TAKE_BACK = change(MESSAGE, "take back")(
    "UPDATE run_messages SET status = 'waiting', settled_at = NULL, attempt = NULL,"
    " model_call_id = NULL WHERE message_id = :message_id AND {where}"
)

_FOLLOW = change(MESSAGE, "follow")(
    "UPDATE run_messages SET status = 'next_run', settled_at = :at, reason = :reason,"
    " next_run = NULL WHERE message_id = :message_id AND {where}"
)

_REFUSE = change(MESSAGE, "refuse")(
    "UPDATE run_messages SET status = 'refused', settled_at = :at, reason = :reason,"
    " next_run = NULL WHERE message_id = :message_id AND {where}"
)

_REFUSE_ALL = change(MESSAGE, "refuse")(
    "UPDATE run_messages SET status = 'refused', settled_at = :at, reason = :reason,"
    " next_run = NULL WHERE {where} RETURNING message_id"
)

_FORGET_NEXT = Sql(
    "UPDATE run_messages SET next_run = NULL WHERE run_id = :run_id AND next_run IS NOT NULL"
)

HAS_WAITING = (
    "EXISTS (SELECT 1 FROM run_messages JOIN runs ON runs.run_id = run_messages.run_id"
    " WHERE run_messages.status = 'waiting' AND runs.owner = :worker_id)"
)
"""The condition that a message waits for a run of a worker."""

_ENDED_WITH_MESSAGES = Sql(
    "SELECT DISTINCT run_messages.run_id FROM run_messages"
    " JOIN runs ON runs.run_id = run_messages.run_id"
    " WHERE run_messages.status = 'waiting' AND runs.finished_at IS NOT NULL LIMIT 100"
)


@unit
def send(row: RunMessageRow) -> Steps[RunMessageRow]:
    """Store a new message to a run, whose row is locked, and return it with its number."""
    ((seq,),) = yield Statement(_COUNT_SENT, {"run_id": row.run_id})
    stored_row = replace(row, seq=seq)
    yield Statement(_SEND, {name: getattr(stored_row, name) for name in _NAMES})
    return stored_row


def get(message_id: str) -> Work[RunMessageRow | None]:
    """Return a message; None if there is none with the id."""
    return _GET.first(RunMessageRow, message_id=message_id)


def list_page(run_id: str, after: int, limit: int) -> Work[list[RunMessageRow]]:
    """Return the messages to a run with numbers above `after`, in their order."""
    return _LIST.rows(RunMessageRow, run_id=run_id, after=after, limit=limit)


def list_of_run(run_id: str) -> Work[list[RunMessageRow]]:
    """Return all messages to a run, in their order."""
    return _OF_RUN.rows(RunMessageRow, run_id=run_id)


def count(run_id: str) -> Work[int]:
    """Return the number of all messages to a run."""
    return _COUNT.value(run_id=run_id)


def count_waiting(run_id: str) -> Work[int]:
    """Return the number of messages that wait for a run."""
    return _COUNT_WAITING.value(run_id=run_id)


def list_ended_runs_with_messages() -> Work[list[str]]:
    """Return at most 100 runs that have ended while messages wait for them.

    A server of an earlier version ends a run without a look at its messages.
    """
    return _ENDED_WITH_MESSAGES.column()


@unit
def deliver(
    run_id: str, attempt: int, model_call_id: str | None, known_ids: Collection[str], at: int
) -> Steps[list[RunMessageRow] | None]:
    """Deliver the messages that wait for a run to its next model call, in their order.

    Messages that a lost leg of the run got, and of which the run has nothing left, are delivered
    again. A second execution with the same arguments has the same result.

    Args:
        known_ids: the ids of the messages that are part of the run.

    Returns:
        None, without a change, if the run does not execute this attempt, or its cancel has been
        requested.
    """
    if not (yield Statement(_LOCK_RUN, {"run_id": run_id, "attempt": attempt})):
        return None

    values: dict[str, Value] = {"attempt": attempt, "model_call_id": model_call_id, "at": at}
    delivered_rows = list[RunMessageRow]()
    for row in (yield from list_of_run(run_id)):
        if row.status not in ("waiting", "delivered") or row.message_id in known_ids:
            continue
        yield Statement(_DELIVER, {**values, "message_id": row.message_id})
        delivered_rows.append(row)
    return delivered_rows


def name_call(message_id: str, attempt: int, model_call_id: str | None) -> Work[None]:
    """Store the model call that received a message, unless a later attempt has delivered it."""
    return _NAME_CALL.execute(message_id=message_id, attempt=attempt, model_call_id=model_call_id)


def take_back(message_id: str) -> Work[None]:
    """Let a delivered message wait again: the model call that was to get it was not made."""
    return _TAKE_BACK.execute(message_id=message_id)


def follow(message_id: str, reason: str, at: int) -> Work[None]:
    """Store that a message became the next run of the session."""
    return _FOLLOW.execute(message_id=message_id, reason=reason, at=at)


def refuse(message_id: str, reason: str, at: int) -> Work[None]:
    """Store that a message is refused."""
    return _REFUSE.execute(message_id=message_id, reason=reason, at=at)


def refuse_all(reason: str, at: int) -> Work[int]:
    """Refuse all messages that wait in the database; return their number."""
    return _REFUSE_ALL.count_rows(reason=reason, at=at)


def forget_next(run_id: str) -> Work[None]:
    """Delete what the messages of a run that has ended would have started from."""
    return _FORGET_NEXT.execute(run_id=run_id)
