"""Whose sessions and runs a caller sees, as a condition in the SQL itself (contract.md 6)."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.database import Value
from agentctl.store.listing import Filter

__all__ = ["EVERYONE", "IS_VISIBLE", "OWNER_FILTERS", "Visibility"]

IS_VISIBLE = "(cast(:everyone as bigint) = 1 OR user_id IS NOT DISTINCT FROM cast(:viewer as text))"
"""The condition of a point read; lists have one for each case, so that it finds an index."""

OWNER_FILTERS: tuple[dict[str, Filter], ...] = (
    {},
    {"viewer": Filter("user_id", "= :viewer")},
    {"ownerless": Filter("user_id", "IS NULL")},
)
"""The same for lists: everyone, one user, nobody (`listing.Listing.choices`)."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """What a caller sees: everything, or what belongs to one user, or what belongs to nobody.

    Attributes:
        everyone: sees all users' data.
        user_id: without `everyone`, the only owner that is seen; None: only what has no owner.
    """

    everyone: bool
    user_id: str | None = None

    def sees(self, user_id: str | None) -> bool:
        """Whether what belongs to `user_id` is visible."""
        return self.everyone or self.user_id == user_id

    def parameters(self) -> dict[str, Value]:
        """The parameters of the condition `VISIBLE`."""
        return {"everyone": int(self.everyone), "viewer": self.user_id}

    def filters(self) -> dict[str, Value]:
        """The filters of a list (`listing.Listing`) that keep to what is visible."""
        if self.everyone:
            return {}
        return {"ownerless": None} if self.user_id is None else {"viewer": self.user_id}


EVERYONE = Visibility(everyone=True)
