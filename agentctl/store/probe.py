"""Whether a database answers, and what its clock was at last."""

from __future__ import annotations

from agentctl.store.database import Sql, Statement, Steps, unit

__all__ = ["PROBE", "newest", "probe"]

PROBE = Sql("SELECT count(*) FROM schema_version")

# Each is the end of an index, but for the workers, who are few.
_NEWEST = Sql(
    "SELECT max(at) FROM (SELECT max(created_at) AS at FROM sessions"
    " UNION ALL SELECT max(created_at) FROM runs"
    " UNION ALL SELECT max(beat) FROM workers) AS times"
)


@unit
def probe() -> Steps[None]:
    """Read one small thing; fails when the database does not answer."""
    yield Statement(PROBE)


@unit
def newest() -> Steps[int | None]:
    """The latest time that was written down when something was made, in microseconds."""
    rows = yield Statement(_NEWEST)
    latest: int | None = rows[0][0]
    return latest
