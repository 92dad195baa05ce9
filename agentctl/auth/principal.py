"""The principal: a verified caller."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from agentctl.light_dataclass import dataclass

Via = Literal["http", "local"]


@dataclass(frozen=True, slots=True)
class Principal:
    """An identified caller.

    Attributes:
        subject: the `sub` of the token (docs/contract.md "Claims"), exposed as `user_id`, or None.
        scopes: its well-formed scopes.
        admin: True if every operation is allowed.
        sees_all_users: True if it sees the data of all users, else only its data
            (docs/contract.md "Data scoping").
        via: `http` for a request to the server, `local` for a command in local mode.
        session_id: the `session_id` claim: the default session of runs and cancels.
        caller: the real caller if it acts as the user `subject`, else None.
        claims: the verified claims of its JWT as a JSON object; None without a JWT.
        unread_claims: of a JWT without scopes, the claims that may have some and are not read.
        actor: the name of the subject in records: `subject`, or `anonymous`.
        identity: the name of the real caller in the audit log.
    """

    subject: str | None
    scopes: frozenset[str] = frozenset()
    admin: bool = False
    sees_all_users: bool = False
    via: Via = "http"
    session_id: str | None = None
    caller: str | None = None
    claims: bytes | None = field(default=None, repr=False, compare=False)
    unread_claims: tuple[str, ...] = field(default=(), repr=False, compare=False)
    actor: str = field(init=False, repr=False, compare=False)
    identity: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        actor = "anonymous" if self.subject is None else self.subject
        object.__setattr__(self, "actor", actor)
        object.__setattr__(self, "identity", actor if self.caller is None else self.caller)

    @property
    def unread_note(self) -> str:
        """The end of the text of a denial: names of `unread_claims`, never their values."""
        if not self.unread_claims:
            return ""
        return f"; the server does not read these claims: {', '.join(self.unread_claims)}"


def anonymous_principal() -> Principal:
    """Return the caller with authorization off: an administrator without a name."""
    return Principal(subject=None, admin=True, sees_all_users=True)


def local_principal(user: str, *, acting_for: str | None = None) -> Principal:
    """Return the caller of local mode, an administrator (docs/contract.md "Local mode").

    Args:
        acting_for: the user of `--as-user`: reads are limited to its data and runs belong to it.
    """
    name = f"local:{user}"
    if acting_for is not None:
        return Principal(subject=acting_for, admin=True, via="local", caller=name)
    return Principal(subject=name, admin=True, sees_all_users=True, via="local")
