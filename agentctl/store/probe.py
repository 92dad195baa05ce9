"""Whether a database answers."""

from __future__ import annotations

from agentctl.store.database import Sql, Statement, Work

__all__ = ["PROBE", "probe"]

PROBE = Sql("SELECT count(*) FROM schema_version")


def probe() -> Work[None]:
    """Read one small thing; fails when the database does not answer."""
    yield Statement(PROBE)
