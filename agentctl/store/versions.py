"""The schema version that a database has stored, and the end of its upgrade."""

from __future__ import annotations

from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.schema import CLOSED_FROM, COMPATIBLE_SINCE, FINISH_UPGRADE, StoredVersion

_NUMBER = Sql("SELECT max(version) FROM schema_version")
_COMPATIBLE_FROM = Sql("SELECT max(compatible_from) FROM schema_version")
_BOTH = Sql("SELECT max(version), max(compatible_from) FROM schema_version")
_COPY = Sql("SELECT role, other FROM copy_state")
_FINISH = Sql(FINISH_UPGRADE)


@unit
def read_version() -> Steps[StoredVersion]:
    """Return the schema version of a database with the tables of agentctl, of any version."""
    ((number,),) = yield Statement(_NUMBER)
    if number is None or number < COMPATIBLE_SINCE:
        return StoredVersion(number or 0, number or 0)
    ((compatible_from,),) = yield Statement(_COMPATIBLE_FROM)
    if compatible_from < CLOSED_FROM:
        return StoredVersion(number, compatible_from)

    ((role, other_place),) = yield Statement(_COPY)
    if role == "source":
        return StoredVersion(number, compatible_from, moved_to=other_place)
    return StoredVersion(number, compatible_from, copied_from=other_place)


@unit
def read_current_version() -> Steps[StoredVersion]:
    """Return the schema version of an open database."""
    ((number, compatible_from),) = yield Statement(_BOTH)
    return StoredVersion(number, compatible_from)


def exclude_earlier_programs() -> Work[None]:
    """Allow what programs of earlier releases cannot read; from then on they refuse to start."""
    return _FINISH.execute()
