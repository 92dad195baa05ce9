"""What the audit shows: who did what, through which door, to what, and how it ended."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.times import Timestamp

__all__ = ["AUTHENTICATE", "AuditMeta", "AuditOutcome", "AuditPage", "AuditRecord"]

AuditOutcome = Literal["allowed", "denied", "failed"]

AUTHENTICATE = "authenticate"
"""The operation of a row that counts refused credentials: what they were for is not looked at."""


class AuditRecord(TypedDict):
    """One row, never changed once it is there.

    `principal` is who really called, null where nobody was identified. `operation` is an operation
    id, or `authenticate`. `resource` names what it was about, `agent:writer,run:019a...`: ids only,
    percent-encoded where they are no plain words, cut at 1,000 characters. `outcome` is `allowed`,
    or why not: `denied` by the policy, or `failed` for another reason, with `status` as it was
    answered and the scopes or the error code in `reason`. What was allowed and failed later has
    two rows where the first had to stand before the change.
    """

    seq: int
    at: Timestamp
    principal: str | None
    via: Literal["http", "local"]
    operation: str
    resource: str | None
    outcome: AuditOutcome
    status: int | None
    reason: str | None
    request_id: str | None


class AuditMeta(TypedDict):
    """Where a page goes on."""

    next_cursor: str | None


class AuditPage(TypedDict):
    """A page of the audit, newest first."""

    data: list[AuditRecord]
    meta: AuditMeta
