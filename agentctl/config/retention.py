"""The table `[retention]`, and the key `retention_days` of components (docs/retention.md)."""

from __future__ import annotations

from typing import Annotated

from agentctl.light_dataclass import dataclass
from agentctl.records.value_types import Range

RetentionDays = Annotated[int, Range(0, 36_500)]


@dataclass(frozen=True, slots=True)
class Retention:
    """The table `[retention]`: the days after which a server deletes data.

    Attributes:
        idle_days: days after the last use of a session; 0 for never. A component may have others.
        approval_days: days after the decision of an approval whose run has ended; 0 for as long as
            its session.
    """

    idle_days: RetentionDays = 0
    approval_days: RetentionDays = 0
