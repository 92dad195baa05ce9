"""Records and rows of messages to runs that work (docs/contract.md "Messages to a run")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.times import Timestamp

MessageStatus = Literal["waiting", "delivered", "next_run", "refused"]

LateMessage = Literal["next_run", "refuse"]
"""The fate of a message that no model call of its run gets: it becomes the next run of the session,
or it is refused."""


class RunMessageRecord(TypedDict):
    """A message to a run that works.

    `status` is `waiting` until the message has its fate, which never changes: `delivered`,
    `next_run` or `refused`. `model_call_id` is the first model call that got it; null for an agent
    that takes its messages itself. `next_run_id` is the run that it became. `reason` says why a
    message was not delivered. `late` is what the sender wanted for this case.
    """

    message_id: str
    run_id: str
    session_id: str
    content: str
    status: MessageStatus
    late: LateMessage
    reason: str | None
    model_call_id: str | None
    next_run_id: str | None
    created_at: Timestamp
    created_by: str | None
    settled_at: Timestamp | None


class RunMessagePage(TypedDict):
    """The messages to a run in the order in which they were sent; `total` counts all of them."""

    run_id: str
    messages: list[RunMessageRecord]
    total: int


@dataclass(frozen=True, slots=True)
class RunMessageRow:
    """A stored message to a run. Times are microseconds UTC."""

    message_id: str
    """Its id, which is also the id of the run that it may become."""

    run_id: str

    seq: int
    """Its number among the messages to the run, from 1."""

    status: MessageStatus
    late: LateMessage
    created_at: int

    created_by: str | None
    """The principal that has sent it."""

    request_id: str | None

    settled_at: int | None
    """When it got its fate; None while it waits."""

    attempt: int | None
    """The attempt of the leg that got it."""

    model_call_id: str | None
    """The id of the model call that got it."""

    reason: str | None
    content: str

    next_run: str | None
    """JSON object with what the next run starts from; None once the message has its fate."""
