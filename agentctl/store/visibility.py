"""Data scoping: the sessions and runs that a caller may see, as an SQL condition.

The rules are in docs/contract.md "Data scoping".
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.database import Value
from agentctl.store.listing import Conditions

IS_VISIBLE = "(cast(:everyone as bigint) = 1 OR user_id IS NOT DISTINCT FROM cast(:viewer as text))"
"""The condition of a read by id. Lists have `Visibility.conditions`, so that an index is used."""


@dataclass(frozen=True, slots=True)
class Visibility:
    """The data scope of a caller: all data, the data of one user, or the data without an owner."""

    everyone: bool
    """True if the data of all users is visible."""

    user_id: str | None = None
    """The only owner whose data is visible, without `everyone`; None for data without an owner."""

    def sees(self, user_id: str | None) -> bool:
        """Return True if the data of `user_id` is visible."""
        return self.everyone or self.user_id == user_id

    def narrow(self, user_id: str | None) -> Visibility:
        """Return the data of one user, also if the caller does not see it; None: no change."""
        if user_id is None:
            return self
        return Visibility(everyone=False, user_id=user_id)

    def parameters(self) -> dict[str, Value]:
        """Return the parameters of the condition `IS_VISIBLE`."""
        return {"everyone": int(self.everyone), "viewer": self.user_id}

    def conditions(self, column: str = "user_id") -> Conditions:
        """Return the conditions of a list that contains visible rows only.

        Args:
            column: `user_id`, or an expression for it that no index has.
        """
        if self.everyone:
            return Conditions()
        if self.user_id is None:
            return Conditions().with_condition(f"{column} IS NULL")
        return Conditions().with_condition(f"{column} = :viewer", viewer=self.user_id)


EVERYONE = Visibility(everyone=True)
"""All data."""
