"""Records of the data of a person (docs/personal-data.md)."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.audit import CursorMeta

ErasureKind = Literal["delete", "anonymise", "keep"]
"""The fate of the rows of a table in an erasure."""

Engine = Literal["sqlite", "postgres"]


class PersonalRows(TypedDict):
    """The number of rows of a person in one table, and what an erasure does with them.

    `is_capped` is true if there may be more: at most 10,000 rows are counted, and the rows that
    belong to runs or sessions for 200 of these.
    """

    db_id: str
    table: str
    rows: int
    erasure: ErasureKind
    is_capped: NotRequired[bool]


class PersonalDatabase(TypedDict):
    """A database of the configuration."""

    db_id: str
    engine: Engine


class KeptData(TypedDict):
    """Data that an erasure leaves, and why.

    `rows` is null where they are not counted, and `days`, the age at which they are deleted, where
    they are not deleted by age.
    """

    what: str
    rows: int | None
    days: int | None
    reason: str


class PersonalDataRecord(TypedDict):
    """The data of a person.

    `kept` is the data that an erasure leaves. `open_runs` counts the live and paused runs that an
    erasure has to cancel first. `held` has ids of sessions that an erasure leaves because they are
    held, at most 100; `held_count` counts up to 10,000 of a database. `audit_days` is the age at
    which audit entries are deleted.
    """

    user_id: str
    tables: list[PersonalRows]
    databases: list[PersonalDatabase]
    kept: list[KeptData]
    open_runs: int
    held: list[str]
    held_count: int
    audit_days: int


class PersonalRowsPage(TypedDict):
    """A page of rows of a person; their members depend on the part (docs/personal-data.md)."""

    data: list[dict[str, Any]]
    meta: CursorMeta


class RewrittenFile(TypedDict):
    """The file of a database at the end of an erasure.

    `vacuumed` is true if the file was rewritten without the unused parts of its pages, and
    `log_emptied` if its write-ahead log was emptied. Both are false for PostgreSQL.
    """

    db_id: str
    engine: Engine
    bytes: int | None
    vacuumed: bool
    log_emptied: bool
    seconds: float


class ErasureRecord(TypedDict):
    """The result of one part of an erasure. `next_cursor` is null after the last part."""

    erased: list[PersonalRows]
    files: list[RewrittenFile]
    next_cursor: str | None
