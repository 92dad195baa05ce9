"""The table `[quotas]` (docs/limits.md "Quotas")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class Quotas:
    """The table `[quotas]`: bounds for the stored data of one user in one database; 0 for none."""

    sessions_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    memories_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    store_items_per_user: Annotated[int, Field(ge=0, le=1 << 40)] = 10_000
    bytes_per_user: Annotated[int, Field(ge=0, le=1 << 50)] = 0
