"""Requests of the operations on the data of a person; see `agentctl.interface.requests`."""

from __future__ import annotations

from typing import Annotated, Literal

from agentctl.interface.declarations import Query
from agentctl.interface.requests import MAXIMUM_LIMIT, DatabaseId, Limit, PageCursor
from agentctl.light_dataclass import dataclass

PersonalPart = Literal["decisions", "deliveries", "usage", "audit", "store"]
"""The rows of a person that no other list has."""

Vacuum = Literal["auto", "always", "never"]

ERASE_WAIT = 600.0
"""Maximum seconds of one part of an erasure, in addition to those of other requests."""

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
