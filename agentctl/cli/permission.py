"""`agentctl auth can-i`: a question about the policy, and its answer for one caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.auth import policy
from agentctl.auth.nearmiss import likely_path, passed_by, served_path
from agentctl.auth.principal import Principal
from agentctl.auth.scopes import KNOWN_SCOPES, covering
from agentctl.auth.tokens import check_scopes
from agentctl.cli.optional import admin_scope_of
from agentctl.errors import Forbidden, UsageFailed
from agentctl.records.routes import ROUTES, Match, every_route

if TYPE_CHECKING:
    from agentctl.records.system import MeRecord

__all__ = ["Question", "answer", "question"]

_OPTIONS = {
    "agent_id": "--agent",
    "team_id": "--team",
    "workflow_id": "--workflow",
    "session_id": "--session",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: for an operation, or for a scope.

    Attributes:
        asked: in the words of the asker.
        match: the operation, with the ids that are known.
        scope: when there is no operation.
    """

    asked: str
    match: Match | None = None
    scope: str = ""


def question(what: str, path: str | None, ids: Mapping[str, str]) -> Question:
    """Read a question.

    Args:
        what: a scope, an operation id, or an HTTP method.
        path: of the method.
        ids: path parameters for an operation id.

    Raises:
        UsageFailed: it asks about nothing that there is.
    """
    if path is not None:
        _refuse_others(ids, {}, f"{what} {path}")
        return Question(f"{what.upper()} {path}", _match(what.upper(), path))
    if what in policy.POLICY:
        named = {name for name in _OPTIONS if f"{{{name}}}" in ROUTES[what].template}
        _refuse_others(ids, named, what)
        return Question(what, Match(what, dict(ids)))
    _refuse_others(ids, {}, what)
    if ":" in what:
        return Question(what, scope=what)
    raise UsageFailed(
        f"{what!r} is no scope and no operation",
        hint=_nearest_operation(what) or "`agentctl auth scopes` lists both",
    )


def _match(method: str, path: str) -> Match:
    table, served = every_route(), served_path(path)
    match = table.find("GET" if method == "HEAD" else method, served)
    if match is None:
        methods = ", ".join(table.methods(served))
        near = f"it has {methods}" if methods else likely_path(table, method, served)
        raise UsageFailed(
            f"{method} {path} is no operation",
            cause=near,
            hint="`agentctl auth scopes` lists the operations",
        )
    return match


def _refuse_others(ids: Mapping[str, str], named: Any, what: str) -> None:
    """Refuse ids that would do nothing."""
    for name in ids:
        if name not in named:
            raise UsageFailed(f"{_OPTIONS[name]} makes no sense with {what}")


def _nearest_operation(what: str) -> str | None:
    import difflib

    if what.upper() in {route.method for route in ROUTES.values()} | {"HEAD"}:
        return f"name a path too: agentctl auth can-i {what.upper()} /agents"
    near = difflib.get_close_matches(what, [*policy.POLICY, *KNOWN_SCOPES], n=1)
    return f"did you mean {near[0]!r}?" if near else None


def answer(asked: Question, me: MeRecord) -> dict[str, Any]:
    """Whether the caller may do it, by what, and what would be needed.

    Args:
        asked: the question.
        me: who the caller is, as the server says.

    Raises:
        UsageFailed: it is about a scope that nobody knows.
    """
    held = frozenset(me["scopes"])
    principal = Principal(subject=me["principal"], scopes=held, admin=me["admin"])
    told = {"allowed": False, "principal": me["principal"], "asked": asked.asked, "by": None}
    if asked.match is None:
        return told | _about_scope(asked.scope, principal)
    needed = {"required_scopes": list(policy.required_scopes(*asked.match))}
    try:
        policy.decide(principal, *asked.match)
    except Forbidden:
        return told | needed
    return told | needed | {"allowed": True, "by": passed_by(asked.match, principal)}


def _about_scope(scope: str, principal: Principal) -> dict[str, Any]:
    needed = {"required_scopes": [scope]}
    if scope not in principal.scopes:
        check_scopes((scope,), admin_scope_of(None))
    if principal.admin:
        return {"allowed": True, "by": "the caller is an administrator", **needed}
    by = covering(principal.scopes, scope)
    return needed if by is None else {"allowed": True, "by": f"opened by {by}", **needed}
