"""The table `[retention]` (docs/retention.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

RetentionDays = Annotated[int, Field(ge=0, le=36_500)]


@dataclass(frozen=True, slots=True)
class Retention:
    """The table `[retention]`: the days after which a server deletes data."""

    idle_days: RetentionDays = 0
    """Days after the last use of a session; 0 for never. A component may have others."""

    approval_days: RetentionDays = 0
    """Days after the decision of an approval whose run has ended; 0 for as long as its session."""
