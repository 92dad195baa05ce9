"""Requests of the operations for administrators; see `agentctl.interface.requests`.

These are on service accounts, the audit log, usage, webhooks, the retention of sessions and the
data of a person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from agentctl.interface.declarations import Option, Query
from agentctl.interface.requests import (
    CURSOR_OPTION,
    DEFAULT_LIMIT,
    MAXIMUM_LIMIT,
    ComponentId,
    DatabaseId,
    IdPrefix,
    Limit,
    Page,
    PageCursor,
    UserId,
)
from agentctl.records.kinds import AuditOutcome, ComponentKind
from agentctl.records.times import ParsedTimestamp
from agentctl.records.usage import Step, UsageKey
from agentctl.records.webhooks import DeliveryState

DEFAULT_ACCOUNT_DAYS = 90
MAXIMUM_ACCOUNT_DAYS = 3_650
"""Days until a service account expires."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A scope of a service account. `effect` is `allow`, the only value."""

    scope: str
    effect: str = "allow"


@dataclass(frozen=True, slots=True)
class NewAccount:
    """A service account to create (docs/contract.md "Service accounts").

    `name` is unique among active accounts. `expires_in_days` None is `DEFAULT_ACCOUNT_DAYS`, not
    together with `never_expires`. Scopes that write, delete, administer or manage service accounts
    need `allow_privileged_scopes`.
    """

    name: str
    scopes: tuple[Grant, ...]
    expires_in_days: int | None = None
    never_expires: bool = False
    allow_privileged_scopes: bool = False


@dataclass(frozen=True, slots=True)
class AccountFilter:
    """The filter of a list of service accounts, also revoked accounts, by `created_at`."""

    name: Annotated[
        str | None,
        Query("Only accounts with this name"),
        Option("--name", "NAME", "Filter by name"),
    ] = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """The filter of a list of audit entries, newest first.

    A principal is `sub`, `sa:<id>` or `local:<user>`. `since` is microseconds UTC.
    """

    principal: Annotated[
        str | None,
        Query("Only calls of this principal"),
        Option("--principal", "NAME", "Filter by caller"),
    ] = None
    operation: Annotated[
        str | None,
        Query("Only this operation; `authenticate` selects the counted 401s"),
        Option("--operation", "ID", "Filter by operation, such as cancel_agent_run"),
    ] = None
    outcome: Annotated[
        AuditOutcome | None,
        Query("Only calls with this outcome"),
        Option("--outcome", "OUTCOME", "Filter by outcome: allowed, denied or failed"),
    ] = None
    since: Annotated[
        ParsedTimestamp | None,
        Query("Only entries from this time on"),
        Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
    ] = None
    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[PageCursor, CURSOR_OPTION] = None


@dataclass(frozen=True, slots=True)
class AuditHeadFilter:
    """A page of the signed heads of the audit log, newest first."""

    limit: Limit = DEFAULT_LIMIT
    cursor: Annotated[PageCursor, CURSOR_OPTION] = None


MAXIMUM_GROUPS = 1_000
"""Groups of one response."""

_Since = Annotated[
    ParsedTimestamp | None,
    Query("Only runs that ended since then; the beginning of its day or hour counts"),
    Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
]
_Before = Annotated[
    ParsedTimestamp | None,
    Query("Only runs that ended before; the end of its day or hour counts. By default now"),
    Option("--before", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
]
_Type = Annotated[
    ComponentKind | None,
    Query("Only runs of this kind of component"),
    Option("--type", "TYPE", "Filter by component type: agent, team or workflow"),
]
_Component = Annotated[
    ComponentId, Option("--component", "ID", "Filter by component id, of any type")
]
_Model = Annotated[
    str | None,
    Query("Only of this model: its id in the configuration, or the name that a library reports"),
    Option("--model", "ID", "Filter by model"),
]
_Version = Annotated[
    str | None,
    Query("Only runs of this version of their component, of all users"),
    Option("--version", "VERSION", "Filter by version of the component"),
]
_Limit = Annotated[
    int,
    Query("Maximum number of groups (the largest groups)", ge=1, le=MAXIMUM_GROUPS),
    Option("--limit", "NUMBER", "Maximum number of groups (the largest groups)"),
]


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """The runs whose usage is summed. Times are microseconds UTC."""

    by: Annotated[
        tuple[UsageKey, ...],
        Query(
            "Groups: any of `day`, `user`, `component`, `model` and `version`, separated by commas,"
            " or `session`"
        ),
    ] = ("day",)
    since: _Since = None
    before: _Before = None
    component_type: _Type = None
    component_id: _Component = None
    model: _Model = None
    user_id: UserId = None
    db_id: DatabaseId = None
    limit: _Limit = 100
    version: _Version = None


@dataclass(frozen=True, slots=True)
class OverviewFilter:
    """The runs of an overview. Times are microseconds UTC."""

    step: Annotated[Step, Query("`hour`: by default of the last day; `day`: of 30 days")] = "hour"
    by: Annotated[
        Literal["user", "component", "model", "version"], Query("What the groups have in common")
    ] = "component"
    since: _Since = None
    before: _Before = None
    component_type: _Type = None
    component_id: _Component = None
    model: _Model = None
    user_id: UserId = None
    db_id: DatabaseId = None
    limit: _Limit = 20
    version: _Version = None


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """The filter of a list of deliveries, ordered by `created_at`, newest first.

    Times are microseconds UTC.
    """

    state: Annotated[
        DeliveryState | None,
        Query("Only deliveries with this state"),
        Option("--state", "STATE", "Filter by state: waiting, delivered or dead", any_case=True),
    ] = None
    webhook_id: Annotated[
        str | None,
        Query("Only deliveries to this endpoint"),
        Option("--webhook", "ID", "Filter by endpoint"),
    ] = None
    run_id: Annotated[
        str | None,
        Query("Only deliveries about this run"),
        Option("--run", "ID", "Filter by run", noun="run"),
    ] = None
    db_id: DatabaseId = None
    page: Page = field(default_factory=Page)
    created_after: Annotated[
        ParsedTimestamp | None,
        Query("Only deliveries created at or after this time"),
        Option("--since", "AGE", "Filter by age: 10m, 2h, 7d, or a time in RFC 3339"),
    ] = None
    id_prefix: IdPrefix = None


MAXIMUM_IDLE_DAYS = 36_500

MAXIMUM_PRUNED = 100
"""Sessions of one removal, which other writers wait for."""

PRUNE_WAIT = 60.0
"""Maximum seconds of one removal, in addition to the time of other requests."""


@dataclass(frozen=True, slots=True)
class IdleFilter:
    """A page of the sessions that were not used for some days, at least one."""

    idle_days: Annotated[
        int,
        Query(
            "Only sessions that have not been used for this number of days",
            ge=1,
            le=MAXIMUM_IDLE_DAYS,
        ),
    ] = 90
    component_type: Annotated[ComponentKind | None, Query("Only sessions of this type")] = None
    component_id: ComponentId = None
    db_id: DatabaseId = None
    limit: Limit = MAXIMUM_LIMIT
    cursor: PageCursor = None


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """Sessions to remove if they were not used for some days; at most `MAXIMUM_PRUNED`."""

    idle_days: int
    session_ids: tuple[str, ...]
    db_id: DatabaseId = None


PersonalPart = Literal["decisions", "deliveries", "usage", "audit", "store"]
"""The rows of a person that no other list has."""

Vacuum = Literal["auto", "always", "never"]

ERASE_WAIT = 600.0
"""Maximum seconds of one part of an erasure, in addition to the time of other requests."""

OwnerOfData = Annotated[str, Query("The user; required", min_length=1)]


@dataclass(frozen=True, slots=True)
class PersonalRowsFilter:
    """A page of the rows of a person in one database.

    `audit` and `store` are in the first one only.
    """

    user_id: OwnerOfData = ""
    part: Annotated[PersonalPart, Query("The kind of rows")] = "usage"
    db_id: DatabaseId = None
    limit: Limit = MAXIMUM_LIMIT
    cursor: PageCursor = None


@dataclass(frozen=True, slots=True)
class Erasure:
    """One part of an erasure, which is complete when a response has no `next_cursor`.

    Attributes:
        cancel: cancel the live and paused runs of the user; otherwise they are a conflict.
        vacuum: rewrite a SQLite file at the end: `auto` does it unless the file is so large that
            writers would wait too long.
        cursor: `next_cursor` of the previous part.
    """

    user_id: str
    cancel: bool = False
    vacuum: Vacuum = "auto"
    cursor: str | None = None
