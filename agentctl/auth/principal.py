"""Who is calling, once that is settled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Principal", "Via", "anonymous_principal", "local_principal"]

Via = Literal["http", "local"]


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that was identified.

    Attributes:
        subject: `sub` of the token (spec.md "Authentication" 4), exposed as user_id; None: none.
        scopes: the well-formed scopes it holds.
        admin: whether every operation is allowed to it.
        sees_all_users: whether it sees the data of all users; else only its own (contract.md 6).
        via: the door it came through.
        session_id: the token's `session_id` claim: the default session of runs and cancels.
        caller: who really calls, where that is not `subject`, who is acted for.
    """

    subject: str | None
    scopes: frozenset[str] = frozenset()
    admin: bool = False
    sees_all_users: bool = False
    via: Via = "http"
    session_id: str | None = None
    caller: str | None = None

    @property
    def actor(self) -> str:
        """How records of what was done name this caller."""
        return self.subject if self.subject is not None else "anonymous"

    @property
    def identity(self) -> str:
        """Who really calls: the audit names nobody else."""
        return self.actor if self.caller is None else self.caller


def anonymous_principal() -> Principal:
    """The caller when authorization is switched off: an administrator without a name."""
    return Principal(subject=None, admin=True, sees_all_users=True)


def local_principal(user: str, *, acting_for: str | None = None) -> Principal:
    """A caller with access to the files: an administrator (contract.md 6).

    Args:
        user: name of the operating system's user.
        acting_for: `--as-user`: reads are scoped to this user and runs belong to it.
    """
    name = f"local:{user}"
    if acting_for is not None:
        return Principal(subject=acting_for, admin=True, via="local", caller=name)
    return Principal(subject=name, admin=True, sees_all_users=True, via="local")
