"""Audit entry records (docs/contract.md "Audit")."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.kinds import AuditOutcome
from agentctl.records.times import Timestamp

AUTHENTICATE = "authenticate"
"""The operation of an entry that counts rejected credentials, for any operation."""


EXPIRE = "expire_audit"
"""The operation of an entry that counts deleted entries, older than the setting allows."""

EXPIRE_SESSIONS = "expire_sessions"
"""The operation of an entry that counts sessions which were deleted for their age."""

EXPIRE_APPROVALS = "expire_approvals"
"""The operation of an entry that counts approvals which were deleted for their age."""


class AuditRecord(TypedDict):
    """One audit entry, which never changes.

    `principal` is the authenticated caller, null if no caller was identified. `operation` is an
    operation id, `authenticate`, `expire_audit`, `expire_sessions` or `expire_approvals`.
    `resource` names the resources, `agent:writer,run:019a...`: ids only, percent-encoded, cut at
    1,000 characters; many of them have a hash of their ids, `sessions:sha256:...`. `outcome` is
    `allowed`; `denied`, by the policy; or `failed`, for another reason. `status` is the HTTP status
    of the response; `reason` has the required scopes or the error code. An operation whose entry
    was committed before its change, and that failed, has two entries. `count` is the number of
    requests: denials and rejected credentials of one minute are one entry; or that of the resources
    with a hash. `resource` and `reason` of such an entry are null if they differ, and `request_id`
    and `trace_id` are null. `trace_id` is the trace of the caller, or of the run that the request
    has started.
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
    trace_id: str | None
    count: int


class CursorMeta(TypedDict):
    """The position of the next page; `searched_until` is that of `PageMeta`."""

    next_cursor: str | None
    searched_until: NotRequired[str]


class AuditPage(TypedDict):
    """A page of audit entries, newest first."""

    data: list[AuditRecord]
    meta: CursorMeta


class AuditHeadRecord(TypedDict):
    """One signed head of the audit log, which never changes.

    It covers `entries` entries with the numbers `first_seq` to `last_seq`, all that exist after the
    head before it. Entries up to `expired_seq` may have been deleted for their age; 0 for none.
    `token` is the signed head: a compact JWS.
    """

    number: int
    at: Timestamp
    first_seq: int
    last_seq: int
    entries: int
    expired_seq: int
    token: str


class AuditHeadPage(TypedDict):
    """A page of signed heads, newest first."""

    data: list[AuditHeadRecord]
    meta: CursorMeta
