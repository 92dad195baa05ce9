"""The table `[approvals]` (docs/approvals.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Approvals:
    """The table `[approvals]`: what runs that wait for people may do."""

    expire_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 0
    """Seconds after which a pending approval counts as rejected; 0 for never."""

    client_seconds: Annotated[int, Field(ge=0, le=31_622_400)] = 3_600
    """Seconds after which a run is cancelled that waits for its caller; 0 for never.

    The caller has to execute a tool of its request.
    """

    own: bool = False
    """True if an approver may decide about its own run."""
