"""Callers of a server, by what their tokens allow."""

from __future__ import annotations

from tests.kit.deployment import ADMIN, Deployment

__all__ = ["CALLERS", "MEMORIES", "USER", "build_token"]

USER = (
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete", "config:read",
)  # fmt: skip
"""The scopes of a user of components and sessions."""

MEMORIES = ("memories:read", "memories:write", "memories:delete")

CALLERS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "me": ("me", USER),
    "other": ("other", USER),
    "admin": ("boss", (ADMIN,)),
    "powerless": ("me", ()),
    "one agent": ("me", ("agents:echo:read", "agents:echo:run", "sessions:read")),
    "one session": ("me", ("sessions:mine:read",)),
    "writer": ("me", ("sessions:write",)),
    "manager": (
        "max",
        ("agents:read", *(f"service_accounts:{action}" for action in ("read", "write", "delete"))),
    ),
    "auditor": ("eve", ("audit:read",)),
    "approver": ("amy", ("approvals:read", "approvals:write")),
    "rememberer": ("me", MEMORIES),
    "nameless": (None, ("memories:write",)),
}
"""The subject and the scopes of each caller; `nobody` sends no token, and `bad` an invalid one."""


def build_token(deployment: Deployment, who: str) -> str | None:
    """Return the token that a caller sends; None for `nobody`."""
    if who == "nobody":
        return None
    if who == "bad":
        return "not.a.token"
    subject, scopes = CALLERS[who]
    return deployment.token(subject, *scopes)
