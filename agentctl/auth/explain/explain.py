"""What a request would be answered, and why: the chain of checks that the server itself runs.

The decisions are made by the server's own functions, the verifier, the table of routes and the
policy, in its own order; here they are only told (contract.md 2: 401, 403, 404).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentctl.auth import policy
from agentctl.auth.explain.diagnosis import NO_CREDENTIAL, diagnose
from agentctl.auth.explain.findings import (
    FOUND,
    OF_ACCOUNT,
    OF_JWT,
    Facts,
    facts_of,
    key_names,
    listed,
)
from agentctl.auth.explain.missing_scopes import lacking, needed
from agentctl.auth.explain.suggestions import likely_path, passed_by, plain_path, served_path, shown
from agentctl.auth.principal import Principal
from agentctl.errors import (
    AgentctlError,
    Forbidden,
    InvalidToken,
    MethodNotAllowed,
    NotFound,
    Unauthenticated,
    Unavailable,
)
from agentctl.records.authorization import ExplainRecord, ExplainStep, Outcome
from agentctl.records.routes import ROUTES, Match, every_route

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier
    from agentctl.config.settings import Settings

__all__ = ["Explanation", "Step", "explain"]

_HIDDEN = "there is an encoded slash in it, %2F, and no path has one"

ALLOWED = 200
"""What stands for any success."""


@dataclass(frozen=True, slots=True)
class Step:
    """One check, as in `records.authorization.ExplainStep`."""

    name: str
    outcome: Outcome
    found: str = ""
    cause: str | None = None
    remedy: str | None = None

    def record(self) -> ExplainStep:
        """The step as it crosses the port."""
        return ExplainStep(
            name=self.name,
            outcome=self.outcome,
            found=self.found,
            cause=self.cause,
            remedy=self.remedy,
        )


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a request comes to.

    Attributes:
        method: GET for HEAD.
        path: decoded, without a query.
        match: the operation, or None where there is none.
        principal: who was identified, or None.
        steps: the chain, as far as it goes without what is stored.
        status: that would be answered; 200 for any success.
        decided_by: name of the step that decides.
    """

    method: str
    path: str
    match: Match | None
    principal: Principal | None
    steps: tuple[Step, ...]
    status: int
    decided_by: str

    @property
    def allowed(self) -> bool:
        """Whether every check is passed."""
        return self.status == ALLOWED

    def then(self, step: Step, status: int = ALLOWED) -> Explanation:
        """With one more check; where it failed, it decides, with the status."""
        steps = (*self.steps, step)
        if step.outcome != "failed":
            return replace(self, steps=steps)
        return replace(self, steps=steps, status=status, decided_by=step.name)

    def record(self) -> ExplainRecord:
        """The whole as it crosses the port."""
        match = self.match
        return ExplainRecord(
            method=self.method,
            path=self.path,
            operation=None if match is None else match.operation,
            allowed=self.allowed,
            status=self.status,
            decided_by=self.decided_by,
            principal=None if self.principal is None else self.principal.actor,
            required_scopes=[] if match is None else list(policy.required_scopes(*match)),
            steps=[step.record() for step in self.steps],
        )


@dataclass(frozen=True, slots=True)
class _Caller:
    """Who calls, or why nobody does; and what there is to say of the credential."""

    principal: Principal | None
    failure: Unauthenticated | Unavailable | None
    steps: tuple[Step, ...]
    facts: Facts | None


async def explain(
    verifier: Verifier,
    settings: Settings,
    method: str,
    path: str,
    token: str | None,
    *,
    now: float | None = None,
) -> Explanation:
    """What a request would be answered, as far as that can be told without what is stored.

    Args:
        verifier: the one that is in use.
        settings: the configuration that it was made of.
        method: HTTP method, in upper case.
        path: as in a request target, percent-encoded; what follows `?` is not looked at.
        token: the credential without the word Bearer; None: there is none.
        now: for words like "4 min ago", seconds since the epoch; None: the present.
    """
    now = time.time() if now is None else now
    caller = await _identified(verifier, settings, token, now)
    method = "GET" if method == "HEAD" else method
    plain, served = plain_path(path), served_path(path)
    begun = Explanation(method, plain, None, caller.principal, caller.steps, ALLOWED, "policy")
    try:
        match = policy.locate(every_route(), method, served, caller.failure)
    except AgentctlError as refusal:
        near = likely_path(every_route(), method, plain) if served else _HIDDEN
        return _lost(begun, near or "nothing is near it", refusal, caller)
    route = ROUTES[match.operation]
    found = f"{match.operation}, {route.method} {route.template}"
    begun = replace(begun, match=match).then(Step("route", "passed", found))
    try:
        policy.admit(caller.principal, caller.failure, *match)
    except AgentctlError as refusal:
        return _refused(begun, match, refusal, caller, settings)
    return _named(begun.then(Step("policy", "passed", passed_by(match, caller.principal))), match)


async def _identified(
    verifier: Verifier, settings: Settings, token: str | None, now: float
) -> _Caller:
    keys = verifier.keys
    if keys is None:
        found = "off: everybody is an administrator without a name"
        steps = [Step("authorization", "passed", found), *_skipped(["credential", *OF_JWT])]
        return _Caller(await verifier.identify(None), None, tuple(steps), None)
    begun = Step("authorization", "passed", f"on: {keys.spec.name}, with {key_names(keys)}")
    if token is None:
        told = Step("credential", "failed", *NO_CREDENTIAL)
        return _Caller(None, Unauthenticated(), (begun, told, *_skipped(OF_JWT)), None)
    stale = verifier.problem is not None
    facts = facts_of(token, settings, keys, stale=stale, now=now)
    try:
        principal = await verifier.identify(f"Bearer {token}")
    except (InvalidToken, Unavailable) as failure:
        return _Caller(None, failure, (begun, *_chain(facts, failure)), facts)
    return _Caller(principal, None, (begun, *_chain(facts, None)), facts)


def _chain(facts: Facts, failure: InvalidToken | Unavailable | None) -> Iterator[Step]:
    """The steps of verification: passed up to the one that failed, not come to behind it."""
    names = OF_ACCOUNT if facts.of_account else OF_JWT
    check, reason = None, ""
    if isinstance(failure, InvalidToken):
        check, reason = failure.check, failure.reason
    elif failure is not None:
        check, reason = "account.known", failure.detail
    end = names.index(check) if check in names else len(names)
    kind = (
        "of a service account, to be looked up" if facts.of_account else "to be verified as a JWT"
    )
    yield Step("credential", "passed", f"a token, {kind}")
    for name in names[:end]:
        yield Step(name, "passed", _found(name, facts))
    if check is not None:
        yield Step(check, "failed", *diagnose(check, reason, facts))
        yield from _skipped(names[end + 1 :])


def _found(name: str, facts: Facts) -> str:
    """In words; a set of keys that has changed meanwhile leaves nothing to say."""
    try:
        return FOUND[name](facts)
    except InvalidToken:
        return ""


def _skipped(names: Iterable[str]) -> Iterator[Step]:
    return (Step(name, "skipped") for name in names)


def _lost(begun: Explanation, near: str, refusal: AgentctlError, caller: _Caller) -> Explanation:
    """There is no such operation."""
    nothing = Step("policy", "skipped")
    if refusal is caller.failure:
        found = "none with this method and path, which only an identified caller is told"
        return _unidentified(begun.then(Step("route", "skipped", found)).then(nothing), caller)
    if isinstance(refusal, MethodNotAllowed):
        allowed = ", ".join(refusal.allow)
        step = Step(
            "route",
            "failed",
            f"{shown(begun.path)} is not there for {begun.method}",
            f"the path has {allowed}",
            f"ask with {allowed.replace(', ', ' or ')}",
        )
    else:
        remedy = "`agentctl auth scopes` lists what there is"
        found = f"{shown(begun.path)} is no path of the interface"
        step = Step("route", "failed", found, near, remedy)
    return begun.then(step, refusal.status).then(nothing)


def _named(begun: Explanation, match: Match) -> Explanation:
    """What the path names, as far as that is no matter of what there is."""
    if not match.path_params:
        return begun
    found = ", ".join(f"{name} {shown(value)}" for name, value in match.path_params.items())
    try:
        policy.require_names(match.path_params)
    except NotFound as refusal:
        cause = "one of them can name nothing: controls, what is no UTF-8, . or .."
        step = Step("parameters", "failed", found, cause, "ask with an id")
        return begun.then(step, refusal.status)
    return begun.then(Step("parameters", "passed", found))


def _refused(
    begun: Explanation,
    match: Match,
    refusal: AgentctlError,
    caller: _Caller,
    settings: Settings,
) -> Explanation:
    """The operation is there, and not for this caller."""
    asked = needed(match, settings.authorization.admin_scope)
    if not isinstance(refusal, Forbidden):
        return _unidentified(begun.then(Step("policy", "skipped", f"needs {asked}")), caller)
    assert caller.principal is not None
    held = listed([shown(scope) for scope in sorted(caller.principal.scopes)]) or "no scopes"
    claims = {} if caller.facts is None else caller.facts.claims or {}
    admin_scope = settings.authorization.admin_scope
    cause, remedy = lacking(match, caller.principal, claims, admin_scope)
    found = f"needs {asked}; held: {held}"
    return begun.then(Step("policy", "failed", found, cause, remedy), refusal.status)


def _unidentified(begun: Explanation, caller: _Caller) -> Explanation:
    assert caller.failure is not None
    failed = next(step.name for step in begun.steps if step.outcome == "failed")
    return replace(begun, status=caller.failure.status, decided_by=failed)
