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
    ACCOUNT_TOKEN_CHECKS,
    FOUND,
    JWT_CHECKS,
    CredentialFacts,
    collect_facts,
    describe_keys,
    join_some,
)
from agentctl.auth.explain.missing_scopes import describe_requirement, explain_denial
from agentctl.auth.explain.suggestions import (
    decode_path,
    describe_grant,
    quote_value,
    routable_path,
    suggest_path,
)
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
from agentctl.records.authorization import CheckOutcome, ExplainRecord, ExplainStep
from agentctl.records.routes import ROUTES, RouteMatch, route_table

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier
    from agentctl.config.settings import Settings

__all__ = ["ExplainedCheck", "Explanation", "explain_request"]

_ENCODED_SLASH = "there is an encoded slash in it, %2F, and no path has one"

ALLOWED = 200
"""What stands for any success."""


@dataclass(frozen=True, slots=True)
class ExplainedCheck:
    """One check, as in `records.authorization.ExplainStep`."""

    name: str
    outcome: CheckOutcome
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
    match: RouteMatch | None
    principal: Principal | None
    steps: tuple[ExplainedCheck, ...]
    status: int
    decided_by: str

    @property
    def allowed(self) -> bool:
        """Whether every check is passed."""
        return self.status == ALLOWED

    def with_check(self, step: ExplainedCheck, status: int = ALLOWED) -> Explanation:
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
class _Identification:
    """Who calls, or why nobody does; and what there is to say of the credential."""

    principal: Principal | None
    failure: Unauthenticated | Unavailable | None
    steps: tuple[ExplainedCheck, ...]
    facts: CredentialFacts | None


async def explain_request(
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
    caller = await _identify(verifier, settings, token, now)
    method = "GET" if method == "HEAD" else method
    plain, served = decode_path(path), routable_path(path)
    begun = Explanation(method, plain, None, caller.principal, caller.steps, ALLOWED, "policy")
    try:
        match = policy.find_operation(route_table(), method, served, caller.failure)
    except AgentctlError as refusal:
        near = suggest_path(route_table(), method, plain) if served else _ENCODED_SLASH
        return _explain_missing_route(begun, near or "nothing is near it", refusal, caller)
    route = ROUTES[match.operation]
    found = f"{match.operation}, {route.method} {route.template}"
    begun = replace(begun, match=match).with_check(ExplainedCheck("route", "passed", found))
    try:
        policy.authorize_request(caller.principal, caller.failure, *match)
    except AgentctlError as refusal:
        return _explain_policy(begun, match, refusal, caller, settings)
    return _explain_parameters(
        begun.with_check(
            ExplainedCheck("policy", "passed", describe_grant(match, caller.principal))
        ),
        match,
    )


async def _identify(
    verifier: Verifier, settings: Settings, token: str | None, now: float
) -> _Identification:
    keys = verifier.keys
    if keys is None:
        found = "off: everybody is an administrator without a name"
        steps = [
            ExplainedCheck("authorization", "passed", found),
            *_skip(["credential", *JWT_CHECKS]),
        ]
        return _Identification(await verifier.identify(None), None, tuple(steps), None)
    begun = ExplainedCheck(
        "authorization", "passed", f"on: {keys.spec.name}, with {describe_keys(keys)}"
    )
    if token is None:
        told = ExplainedCheck("credential", "failed", *NO_CREDENTIAL)
        return _Identification(None, Unauthenticated(), (begun, told, *_skip(JWT_CHECKS)), None)
    stale = verifier.problem is not None
    facts = collect_facts(token, settings, keys, stale=stale, now=now)
    try:
        principal = await verifier.identify(f"Bearer {token}")
    except (InvalidToken, Unavailable) as failure:
        return _Identification(
            None, failure, (begun, *_explain_verification(facts, failure)), facts
        )
    return _Identification(principal, None, (begun, *_explain_verification(facts, None)), facts)


def _explain_verification(
    facts: CredentialFacts, failure: InvalidToken | Unavailable | None
) -> Iterator[ExplainedCheck]:
    """The steps of verification: passed up to the one that failed, not come to behind it."""
    names = ACCOUNT_TOKEN_CHECKS if facts.of_account else JWT_CHECKS
    check, reason = None, ""
    if isinstance(failure, InvalidToken):
        check, reason = failure.check, failure.reason
    elif failure is not None:
        check, reason = "account.known", failure.detail
    end = names.index(check) if check in names else len(names)
    kind = (
        "of a service account, to be looked up" if facts.of_account else "to be verified as a JWT"
    )
    yield ExplainedCheck("credential", "passed", f"a token, {kind}")
    for name in names[:end]:
        yield ExplainedCheck(name, "passed", _describe_found(name, facts))
    if check is not None:
        yield ExplainedCheck(check, "failed", *diagnose(check, reason, facts))
        yield from _skip(names[end + 1 :])


def _describe_found(name: str, facts: CredentialFacts) -> str:
    """In words; a set of keys that has changed meanwhile leaves nothing to say."""
    try:
        return FOUND[name](facts)
    except InvalidToken:
        return ""


def _skip(names: Iterable[str]) -> Iterator[ExplainedCheck]:
    return (ExplainedCheck(name, "skipped") for name in names)


def _explain_missing_route(
    begun: Explanation, near: str, refusal: AgentctlError, caller: _Identification
) -> Explanation:
    """There is no such operation."""
    nothing = ExplainedCheck("policy", "skipped")
    if refusal is caller.failure:
        found = "none with this method and path, which only an identified caller is told"
        return _decided_by_credential(
            begun.with_check(ExplainedCheck("route", "skipped", found)).with_check(nothing), caller
        )
    if isinstance(refusal, MethodNotAllowed):
        allowed = ", ".join(refusal.allow)
        step = ExplainedCheck(
            "route",
            "failed",
            f"{quote_value(begun.path)} is not there for {begun.method}",
            f"the path has {allowed}",
            f"ask with {allowed.replace(', ', ' or ')}",
        )
    else:
        remedy = "`agentctl auth scopes` lists what there is"
        found = f"{quote_value(begun.path)} is no path of the interface"
        step = ExplainedCheck("route", "failed", found, near, remedy)
    return begun.with_check(step, refusal.status).with_check(nothing)


def _explain_parameters(begun: Explanation, match: RouteMatch) -> Explanation:
    """What the path names, as far as that is no matter of what there is."""
    if not match.path_params:
        return begun
    found = ", ".join(f"{name} {quote_value(value)}" for name, value in match.path_params.items())
    try:
        policy.check_path_params(match.path_params)
    except NotFound as refusal:
        cause = "one of them can name nothing: controls, what is no UTF-8, . or .."
        step = ExplainedCheck("parameters", "failed", found, cause, "ask with an id")
        return begun.with_check(step, refusal.status)
    return begun.with_check(ExplainedCheck("parameters", "passed", found))


def _explain_policy(
    begun: Explanation,
    match: RouteMatch,
    refusal: AgentctlError,
    caller: _Identification,
    settings: Settings,
) -> Explanation:
    """The operation is there, and not for this caller."""
    asked = describe_requirement(match, settings.authorization.admin_scope)
    if not isinstance(refusal, Forbidden):
        return _decided_by_credential(
            begun.with_check(ExplainedCheck("policy", "skipped", f"needs {asked}")), caller
        )
    assert caller.principal is not None
    held = (
        join_some([quote_value(scope) for scope in sorted(caller.principal.scopes)]) or "no scopes"
    )
    claims = {} if caller.facts is None else caller.facts.claims or {}
    admin_scope = settings.authorization.admin_scope
    cause, remedy = explain_denial(match, caller.principal, claims, admin_scope)
    found = f"needs {asked}; held: {held}"
    return begun.with_check(
        ExplainedCheck("policy", "failed", found, cause, remedy), refusal.status
    )


def _decided_by_credential(begun: Explanation, caller: _Identification) -> Explanation:
    assert caller.failure is not None
    failed = next(step.name for step in begun.steps if step.outcome == "failed")
    return replace(begun, status=caller.failure.status, decided_by=failed)
