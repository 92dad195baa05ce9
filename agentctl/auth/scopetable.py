"""Every scope and what it opens: the policy read the other way round."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict

from agentctl.auth.policy import POLICY, Admin, Authenticated, Needs, Public, opened_by
from agentctl.auth.scopes import KNOWN_SCOPES, RESOURCES_WITH_IDS
from agentctl.records.routes import ROUTES

__all__ = ["OpenedOperation", "ScopeEntry", "scope_table"]


class OpenedOperation(TypedDict):
    """An operation: its id, and where it is."""

    operation: str
    method: str
    path: str


class ScopeEntry(TypedDict):
    """A scope with its forms, or what opens operations without one.

    `needs` is `scope`, `admin` for the admin scope, `token` for what every identified caller may,
    `nothing` for what is public; the last two have no scope.
    """

    needs: Literal["scope", "admin", "token", "nothing"]
    scope: str | None
    forms: list[str]
    operations: list[OpenedOperation]


def scope_table(admin_scope: str) -> list[ScopeEntry]:
    """The whole table, in the order of the scopes' names.

    Args:
        admin_scope: that of the configuration.
    """
    table = [
        ScopeEntry(
            needs="scope", scope=scope, forms=_forms(scope), operations=_entries(opened_by(scope))
        )
        for scope in KNOWN_SCOPES
    ]
    asking = [name for name, rule in POLICY.items() if isinstance(rule, Needs | Admin)]
    known = [name for name, rule in POLICY.items() if isinstance(rule, Authenticated)]
    public = [name for name, rule in POLICY.items() if isinstance(rule, Public)]
    admin = ScopeEntry(
        needs="admin", scope=admin_scope, forms=[admin_scope], operations=_entries(asking)
    )
    return [
        *table,
        admin,
        ScopeEntry(needs="token", scope=None, forms=[], operations=_entries(known)),
        ScopeEntry(needs="nothing", scope=None, forms=[], operations=_entries(public)),
    ]


def _forms(scope: str) -> list[str]:
    """The scope itself, and the forms of it that name all or one."""
    resource, action = scope.split(":")
    if resource not in RESOURCES_WITH_IDS:
        return [scope]
    return [scope, f"{resource}:*:{action}", f"{resource}:<id>:{action}"]


def _entries(operations: Iterable[str]) -> list[OpenedOperation]:
    return [
        OpenedOperation(operation=name, method=ROUTES[name].method, path=ROUTES[name].template)
        for name in operations
    ]
