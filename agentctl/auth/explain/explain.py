"""Explain the response to a request: every check that the server runs, in its order.

The verifier, the table of routes and the policy decide, as for a real request, in the order 401,
403, 404 (docs/contract.md "Errors"). This module describes their decisions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, cast

from agentctl import errors
from agentctl.auth import policy
from agentctl.auth.explain import origins
from agentctl.auth.explain.checks import (
    ACCOUNT_CHECKS,
    JWT_CHECKS,
    MISSING_CREDENTIAL,
    Check,
    diagnose,
)
from agentctl.auth.explain.credential import (
    CredentialFacts,
    collect_facts,
    decode_path,
    describe_difference,
    describe_keys,
    join_some,
    quote_value,
    routable_path,
    suggest_path,
)
from agentctl.auth.policy import POLICY, required_scopes
from agentctl.auth.principal import Principal
from agentctl.auth.tokens.claims import RawClaims
from agentctl.auth.tokens.grants import SCOPES_CLAIM, ScopeRules, find_claim, trace_scopes
from agentctl.extensions import FaceRoute, find_route
from agentctl.interface.operations import ROUTES, route_table
from agentctl.interface.requirements import Admin, Authenticated, NeedsScope
from agentctl.records.authorization import (
    MAXIMUM_SCOPES,
    CheckOutcome,
    ExplainRecord,
    ExplainStep,
    is_well_formed,
    suggest_scope,
)
from agentctl.records.routes import RouteMatch

if TYPE_CHECKING:
    from agentctl.auth.verifier import Verifier
    from agentctl.config.settings import Settings

ALLOWED = 200
"""Represents any successful status."""

_MAXIMUM_SENTENCES = 3
"""Sentences about scopes of one denial at most."""

_SEPARATORS = re.compile(r"[:./\s]+")


@dataclass(frozen=True, slots=True)
class ExplainedCheck:
    """The outcome of one check, as in `records.authorization.ExplainStep`."""

    name: str
    """The name of the check, such as `claims.exp` or `policy`."""

    outcome: CheckOutcome

    found: str = ""
    """The value that the check found, in words."""

    cause: str | None = None
    """The reason of a failure."""

    remedy: str | None = None
    """A way to correct a failure."""

    def record(self) -> ExplainStep:
        """Return the step in the record of `POST /auth/explain`."""
        return cast(ExplainStep, asdict(self))


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explained response to a request."""

    method: str
    """The HTTP method, GET for HEAD."""

    path: str
    """The decoded path, without a query."""

    match: RouteMatch | None
    """The operation; None if no route matches."""

    principal: Principal | None

    steps: tuple[ExplainedCheck, ...]
    """The checks, as far as they need no stored data."""

    status: int
    """The HTTP status of the response; 200 represents any success."""

    decided_by: str
    """The name of the check that decides."""

    @property
    def allowed(self) -> bool:
        """True if every check passed."""
        return self.status == ALLOWED

    def with_check(self, step: ExplainedCheck, status: int = ALLOWED) -> Explanation:
        """Return the explanation with one more check; a failed one decides, with `status`."""
        steps = (*self.steps, step)
        if step.outcome != "failed":
            return replace(self, steps=steps)
        return replace(self, steps=steps, status=status, decided_by=step.name)

    def record(self) -> ExplainRecord:
        """Return the record of `POST /auth/explain`."""
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
    """The caller, or the failure to identify one, and the checks of the credential."""

    principal: Principal | None
    """The caller; None if it cannot be identified."""

    failure: errors.Unauthenticated | errors.Unavailable | None
    """The reason without a principal."""

    steps: tuple[ExplainedCheck, ...]

    facts: CredentialFacts | None
    """The parsed credential; None without one, and with authorization off."""


async def explain_request(
    verifier: Verifier,
    settings: Settings,
    method: str,
    path: str,
    token: str | None,
    *,
    now: float | None = None,
) -> Explanation:
    """Explain a request as far as possible without stored sessions, runs and accounts.

    Args:
        method: the HTTP method, in upper case.
        path: a percent-encoded request target; the part from `?` is ignored.
        token: the credential without the word Bearer, or None.
        now: the current time for texts such as "4 min ago", in seconds since the epoch.
    """
    if now is None:
        now = time.time()
    caller = await _identify(verifier, settings, token, now)

    if method == "HEAD":
        method = "GET"
    decoded_path = decode_path(path)
    served_path = routable_path(path)

    report = Explanation(
        method=method,
        path=decoded_path,
        match=None,
        principal=caller.principal,
        steps=caller.steps,
        status=ALLOWED,
        decided_by="policy",
    )

    try:
        match = policy.find_operation(route_table(), method, served_path, caller.failure)
        route = ROUTES[match.operation]
    except errors.AgentctlError as refusal:
        # The paths of other interfaces are not in the table of operations.
        added_route = find_route(settings, method, served_path)
        if added_route is None:
            cause = _explain_unknown_path(method, decoded_path, served_path)
            return _explain_missing_route(report, cause, refusal, caller)
        if isinstance(added_route, FaceRoute):
            return _explain_face_route(report, added_route, refusal, caller)
        match, route = added_route

    text = f"{match.operation}, {route.method} {route.template}"
    report = replace(report, match=match).with_check(ExplainedCheck("route", "passed", text))

    try:
        policy.authorize_request(caller.principal, caller.failure, *match)
    except errors.AgentctlError as refusal:
        return _explain_denial(report, match, refusal, caller, settings)

    grant = policy.describe_grant(caller.principal, match)
    if caller.facts is not None and caller.principal is not None:
        rules = caller.facts.rules.scopes
        granting_scopes = policy.required_scopes(*match)
        if caller.principal.admin:
            granting_scopes = (rules.admin_scope,)
        origin_of_scopes = trace_scopes(caller.facts.claims, rules)
        grant += origins.describe_origins(origin_of_scopes, granting_scopes)

    return _explain_parameters(report.with_check(ExplainedCheck("policy", "passed", grant)), match)


def _explain_unknown_path(method: str, decoded_path: str, served_path: str) -> str:
    if not served_path:
        return "it contains an encoded slash, %2F, and no path does"
    return suggest_path(route_table(), method, decoded_path) or "no path is similar"


async def _identify(
    verifier: Verifier, settings: Settings, token: str | None, now: float
) -> _Identification:
    await verifier.load_remote_keys()
    keys = verifier.keys

    jwt_skipped = tuple(_skip(JWT_CHECKS))
    if keys is None:
        text = "off: every caller is an administrator without a name"
        first = ExplainedCheck("authorization", "passed", text)
        steps = (first, ExplainedCheck("credential", "skipped"), *jwt_skipped)
        anonymous = await verifier.identify(None)
        return _Identification(anonymous, None, steps, None)

    text = f"on: {keys.spec.name}, with {describe_keys(keys) or 'no key'}"
    state = verifier.remote_state
    if state is not None:
        text = f"{text}; {state.describe(now)}"
    first = ExplainedCheck("authorization", "passed", text)

    if token is None:
        missing = ExplainedCheck("credential", "failed", *MISSING_CREDENTIAL)
        return _Identification(None, errors.Unauthenticated(), (first, missing, *jwt_skipped), None)

    principal = None
    failure = None
    try:
        principal = await verifier.identify(f"Bearer {token}")
    except (errors.InvalidToken, errors.Unavailable) as error:
        failure = error

    # After the verification, which may have fetched other keys.
    keys = verifier.keys or keys
    facts = collect_facts(token, settings, keys, stale=verifier.problem is not None, now=now)
    steps = (first, *_explain_verification(facts, failure))
    return _Identification(principal, failure, steps, facts)


def _explain_verification(
    facts: CredentialFacts, failure: errors.InvalidToken | errors.Unavailable | None
) -> Iterator[ExplainedCheck]:
    checks = JWT_CHECKS
    kind = "to be verified as a JWT"
    if facts.is_for_account:
        checks = ACCOUNT_CHECKS
        kind = "of a service account, to be looked up"

    failed = None
    reason = ""
    if isinstance(failure, errors.InvalidToken):
        failed = failure.check
        reason = failure.reason
    elif failure is not None:
        failed = "account.known"
        reason = failure.detail

    names = [check.name for check in checks]
    end = names.index(failed) if failed in names else len(names)
    yield ExplainedCheck("credential", "passed", f"a token, {kind}")

    for check in checks[:end]:
        try:
            description = check.describe(facts)
        except errors.InvalidToken:
            # The keys changed after the verification.
            description = ""
        yield ExplainedCheck(check.name, "passed", description)

    if failed is not None:
        yield ExplainedCheck(failed, "failed", *diagnose(failed, reason, facts))
        yield from _skip(checks[end + 1 :])


def _skip(checks: tuple[Check, ...]) -> Iterator[ExplainedCheck]:
    return (ExplainedCheck(check.name, "skipped") for check in checks)


def _explain_missing_route(
    report: Explanation, cause: str, refusal: errors.AgentctlError, caller: _Identification
) -> Explanation:
    skipped = ExplainedCheck("policy", "skipped")
    if refusal is caller.failure:
        text = "no operation has this method and path; only identified callers get a 404 or 405"
        step = ExplainedCheck("route", "skipped", text)
        return _decide_by_credential(report.with_check(step).with_check(skipped), caller)

    path = quote_value(report.path)
    if isinstance(refusal, errors.MethodNotAllowed):
        allowed = ", ".join(refusal.allow)
        remedy = f"use {allowed.replace(', ', ' or ')}"
        text = f"{path} does not support {report.method}"
        cause = f"the path has {allowed}"
    else:
        remedy = "`agentctl auth scopes` lists the operations and their paths"
        text = f"{path} is not a path of the HTTP API"

    step = ExplainedCheck("route", "failed", text, cause, remedy)
    return report.with_check(step, refusal.status).with_check(skipped)


def _explain_face_route(
    report: Explanation, face: FaceRoute, refusal: errors.AgentctlError, caller: _Identification
) -> Explanation:
    if not face.is_served and caller.failure is None:
        cause = f"{face.setting} is false"
        text = f"{face.place} is not served"
        step = ExplainedCheck("route", "failed", text, cause, f"set {face.setting} = true")
        skipped = ExplainedCheck("policy", "skipped")
        return report.with_check(step, refusal.status).with_check(skipped)

    report = report.with_check(ExplainedCheck("route", "passed", f"{face.name}, {face.place}"))
    if caller.failure is not None:
        step = ExplainedCheck("policy", "skipped", f"needs a valid token, then {face.decision}")
        return _decide_by_credential(report.with_check(step), caller)

    text = f"the path needs a valid token; the policy is {face.decision}"
    return report.with_check(ExplainedCheck("policy", "passed", text))


def _explain_parameters(report: Explanation, match: RouteMatch) -> Explanation:
    if not match.path_params:
        return report

    parameters = [f"{name} {quote_value(text)}" for name, text in match.path_params.items()]
    text = ", ".join(parameters)
    try:
        policy.check_path_params(match.path_params)
    except errors.NotFound as refusal:
        cause = "no id can be so: it has control characters or invalid UTF-8, or is . or .."
        step = ExplainedCheck("parameters", "failed", text, cause, "use an id")
        return report.with_check(step, refusal.status)
    return report.with_check(ExplainedCheck("parameters", "passed", text))


def _explain_denial(
    report: Explanation,
    match: RouteMatch,
    refusal: errors.AgentctlError,
    caller: _Identification,
    settings: Settings,
) -> Explanation:
    rules = ScopeRules.from_settings(settings.authorization)
    requirement = describe_requirement(match, rules.admin_scope)

    if not isinstance(refusal, errors.Forbidden):
        step = ExplainedCheck("policy", "skipped", f"needs {requirement}")
        return _decide_by_credential(report.with_check(step), caller)

    assert caller.principal is not None
    granted_scopes = join_some([quote_value(scope) for scope in sorted(caller.principal.scopes)])
    claims = {} if caller.facts is None else caller.facts.claims
    cause, remedy = explain_denial(match, caller.principal, claims, rules)
    text = f"needs {requirement}; granted: {granted_scopes or 'no scopes'}"
    step = ExplainedCheck("policy", "failed", text, cause, remedy)
    return report.with_check(step, refusal.status)


def _decide_by_credential(report: Explanation, caller: _Identification) -> Explanation:
    """Return the explanation with the failed check of the credential as the decision."""
    assert caller.failure is not None
    failed = next(step.name for step in report.steps if step.outcome == "failed")
    return replace(report, status=caller.failure.status, decided_by=failed)


def describe_requirement(match: RouteMatch, admin_scope: str) -> str:
    """Describe the requirement of an operation, for a sentence that begins with "needs"."""
    requirement = POLICY[match.operation]
    if isinstance(requirement, Authenticated):
        return "any valid token"
    if isinstance(requirement, Admin):
        return f"{admin_scope} (authorization.admin_scope)"
    return " or ".join(required_scopes(*match))


def explain_denial(
    match: RouteMatch, principal: Principal, claims: RawClaims, rules: ScopeRules
) -> tuple[str, str]:
    """Return cause and remedy of a denial.

    Args:
        principal: the caller that the policy denied.
        claims: the claims of its token; empty for other credentials.
    """
    # The scopes as they were sent, which a principal has only if they are well-formed.
    sent_scopes = [] if claims else sorted(principal.scopes)
    for name in rules.scopes_claims:
        claim = find_claim(claims, name)
        if name == SCOPES_CLAIM and isinstance(claim, str):
            example = ", ".join(map(quote_value, claim.split()[:3]))
            cause = f"the claim {name} is a text, {quote_value(claim)}, and grants nothing"
            return cause, f"configure the issuer to write an array: [{example}]"
        if len(origins.split_value(claim)) > MAXIMUM_SCOPES:
            cause = f"the claim {name} has more than {MAXIMUM_SCOPES} scopes: none counts"
            return cause, "grant fewer scopes: * in the middle matches every id"
        sent_scopes += origins.list_scopes(claim, rules)

    requirement = POLICY[match.operation]
    sentences = list[str]()
    for scope in sent_scopes:
        sentence = _explain_admin_scope(scope, rules.admin_scope)
        if sentence is None and isinstance(requirement, NeedsScope):
            sentence = _explain_scope(scope, match, requirement)
        if sentence is not None:
            sentences.append(sentence)
    del sentences[_MAXIMUM_SENTENCES:]

    roles = origins.describe_roles(claims, rules)
    sentences += [f"{name}: {text}" for name, text in roles.items()]

    unread_claims = origins.find_unread_claims(claims, rules)
    if unread_claims:
        sentences.append(origins.describe_unread(unread_claims))

    cause = "; ".join(sentences)
    if not sentences:
        cause = "none of its scopes allows it" if sent_scopes else "the caller has no scopes"

    required = {*required_scopes(*match), rules.admin_scope}
    helpful_claims = [
        claim
        for claim in unread_claims
        if required.intersection(origins.list_scopes(claim.value, rules))
    ]
    if helpful_claims:
        return cause, origins.suggest_setting(helpful_claims, rules)
    if unread_claims and not principal.scopes:
        return cause, origins.suggest_setting(unread_claims, rules)

    remedy = f"grant one of: {describe_requirement(match, rules.admin_scope)}"
    if roles:
        remedy = f"{remedy}; [authorization.roles] has the scopes of roles"
    return cause, remedy


def _explain_admin_scope(scope: str, admin_scope: str) -> str | None:
    quoted = quote_value(scope)
    admin = quote_value(admin_scope)
    if scope.casefold().strip() == admin_scope.casefold():
        difference = "upper and lower case differ"
        if scope != scope.strip():
            difference = "it has white space at an end"
        return f"{quoted} is not the admin scope {admin}: {difference}"
    if scope.casefold() in ("admin", "*", "*:*", "agent_os:admin", "agent_os:*"):
        return f"{quoted} is not the admin scope, which is {admin} here"
    return None


def _explain_scope(scope: str, match: RouteMatch, requirement: NeedsScope) -> str | None:
    for required in required_scopes(*match):
        if scope.casefold().strip() == required.casefold() and scope != required:
            difference = describe_difference(scope, required)
            return f"{quote_value(scope)} is not {quote_value(required)}: {difference}"

    if not is_well_formed(scope):
        return _explain_malformed(scope, requirement)

    quoted = quote_value(scope)
    (resource, *middle, action) = scope.split(":")
    if (resource, action) == (requirement.action, requirement.resource):
        return f"{quoted} has resource and action in the wrong order"

    if resource == requirement.resource and action != requirement.action:
        return f"{quoted} allows {action}, not {requirement.action}"

    if resource == requirement.resource:
        noun = requirement.resource.removesuffix("s")
        name = requirement.id_param
        expected = None if name is None else match.path_params.get(name)
        if expected is None:
            return f"{quoted} is for one {noun}, and this operation is about all of them"
        difference = describe_difference(middle[0] if middle else "*", expected)
        text = f"{quoted} is for another {noun}, not {quote_value(expected)}"
        return f"{text}: {difference}" if difference else text

    suggested = suggest_scope(scope)
    if not middle and suggested == f"{requirement.resource}:{requirement.action}":
        return f"{quoted} is not a scope: did you mean {quote_value(suggested)}?"
    return None


def _explain_malformed(scope: str, requirement: NeedsScope) -> str | None:
    quoted = quote_value(scope)
    resource = requirement.resource
    action = requirement.action

    if "*" in scope and scope.startswith(resource):
        star = quote_value(f"{resource}:*:{action}")
        return f"{quoted} is not well-formed: * is allowed in the middle only, {star}"

    words = _SEPARATORS.split(scope.strip().casefold())
    if words[:1] == [resource] and words[-1] == action:
        return f"{quoted} is not well-formed: one : separates two parts"
    if resource in words and action in words:
        return f"{quoted} is one text: each scope is a separate entry"
    return None
