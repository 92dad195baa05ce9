"""The checks of a credential, in the order in which a token passes them.

`JWT_CHECKS` and `ACCOUNT_CHECKS` are the tables. A `Check` names one step of `auth.verifier` and
describes, in words for an operator, the value that a credential has there and, for a failed step,
the cause and the remedy. The functions of the verifier decide if a step passes; nothing here does.
No text contains the credential itself, and of a key only its id or thumbprint.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from agentctl.auth.explain.credential import (
    CredentialFacts,
    describe_difference,
    describe_distance,
    describe_key,
    describe_keys,
    join_some,
    quote_value,
)
from agentctl.auth.explain.origins import describe_claims
from agentctl.auth.tokens.account_tokens import ACCOUNT_PREFIX, is_account_token
from agentctl.auth.tokens.algorithms import ALGORITHMS, MAXIMUM_TOKEN
from agentctl.auth.tokens.claims import is_reserved_subject
from agentctl.auth.tokens.jws import check_signature, find_candidate_keys
from agentctl.records.times import format_rfc3339

_MILLISECONDS = 100_000_000_000
"""A NumericDate above this is in milliseconds: in seconds it would be in the year 5138."""

_COPY_AGAIN = "copy the whole token again, as one line"
_NEW_ACCOUNT = "create another service account: `agentctl accounts create`"


class Diagnosis(NamedTuple):
    """A failed check, in words for an operator."""

    found: str
    """The value that the check found."""

    cause: str

    remedy: str
    """A setting or a claim that corrects it."""


def _diagnose_by_reason(facts: CredentialFacts, reason: str) -> Diagnosis:
    return Diagnosis("", reason, "request a new token")


@dataclass(frozen=True, slots=True)
class Check:
    """One step of the verification of a credential."""

    name: str
    """The name of the step, as in `InvalidToken.check`."""

    demands: str
    """The condition that a credential must satisfy."""

    describe: Callable[[CredentialFacts], str]
    """Returns a description of the value of a credential that passed.

    It raises InvalidToken if the credential does not pass now, after a change of keys.
    """

    diagnose: Callable[[CredentialFacts, str], Diagnosis] = _diagnose_by_reason
    """Returns the explanation of a failure, given the reason that the step raised."""


def diagnose(check: str, reason: str, facts: CredentialFacts) -> Diagnosis:
    """Explain a failed check to an operator.

    Args:
        check: the name of the check, as in `InvalidToken.check`.
        reason: the text that the check raised.
    """
    if check not in CHECKS:
        return _diagnose_by_reason(facts, reason)
    return CHECKS[check].diagnose(facts, reason)


MISSING_CREDENTIAL = Diagnosis(
    "no Authorization header",
    "the request has no credential",
    "send `Authorization: Bearer <token>`; `agentctl token mint` creates a token",
)
"""The diagnosis of a request without a credential, which no check of a token can describe."""


def _diagnose_transport(facts: CredentialFacts, reason: str) -> Diagnosis:
    token = facts.token
    fact = "not Bearer and one token"
    if token.lower().startswith("bearer"):
        cause = "the token itself starts with Bearer, so the header repeats the word"
        return Diagnosis(fact, cause, "pass the token alone, without the word Bearer")
    if not token:
        return Diagnosis(fact, "no token follows the word Bearer", MISSING_CREDENTIAL.remedy)
    if not token.isascii():
        return Diagnosis(fact, "the token has characters outside ASCII", _COPY_AGAIN)
    return Diagnosis(fact, "the token contains white space", _COPY_AGAIN)


def _diagnose_form(facts: CredentialFacts, reason: str) -> Diagnosis:
    token = facts.token
    dots = facts.token.count(".")
    fact = f"{dots + 1} segments"

    if is_account_token(token):
        cause = (
            f"it is a token of another deployment: those of accounts here start {ACCOUNT_PREFIX}"
        )
        return Diagnosis("a service account token", cause, "use a token of this deployment")

    if token[:1] in "\"'" or token[-1:] in "\"'":
        return Diagnosis(fact, "the token is in quotation marks", "send it without them")
    if any(map(str.isspace, token)):
        return Diagnosis(fact, "the token contains white space", _COPY_AGAIN)

    if dots == 4:
        cause = "it is an encrypted token (JWE), which is not accepted"
        return Diagnosis(fact, cause, "configure the issuer to send signed tokens (JWS)")
    if dots == 0:
        cause = "it is an opaque token, not a JWT: only its issuer can read it"
        remedy = "request a JWT from the identity provider, usually by naming an audience or API"
        return Diagnosis(fact, cause, remedy)

    if dots != 2:
        return Diagnosis(fact, f"{reason}: it is cut off or has extra text", _COPY_AGAIN)
    if "=" in token:
        cause = f"{reason}: it is padded with = (RFC 7515 2 has no padding)"
        return Diagnosis(fact, cause, "configure the issuer to omit the padding")
    if "+" in token or "/" in token:
        cause = f"{reason}: + and / belong to base64, not to base64url"
        return Diagnosis(fact, cause, "configure the issuer to use base64url (RFC 7515 2)")

    return Diagnosis(fact, reason, _COPY_AGAIN)


def _describe_header(facts: CredentialFacts) -> str:
    members = {name: facts.header[name] for name in ("alg", "kid", "typ") if name in facts.header}
    return ", ".join(f"{name} {quote_value(value)}" for name, value in members.items())


def _diagnose_header(facts: CredentialFacts, reason: str) -> Diagnosis:
    if facts.parts is None:
        return Diagnosis("no header", reason, _COPY_AGAIN)

    header = facts.header
    expected = facts.keys.spec.name
    fact = _describe_header(facts)
    alg = header.get("alg")

    if alg != expected:
        cause = f"authorization.algorithm is {expected}, the alg of the token is {quote_value(alg)}"
        remedy = f"have the token signed with {expected}"
        if isinstance(alg, str) and alg.casefold() == "none":
            cause = f"{cause}: it is not signed"
        elif isinstance(alg, str) and alg in ALGORITHMS:
            remedy = f'{remedy}, or set authorization.algorithm = "{alg}" and keys for it'
        elif isinstance(alg, str) and alg.upper() in ALGORITHMS:
            cause = f"{cause}: upper and lower case differ"
        return Diagnosis(fact, cause, remedy)

    if "typ" in header and "typ" in reason:
        cause = f"typ is {quote_value(header['typ'])}: the token has another purpose"
        remedy = "send the access token; its typ is JWT, at+jwt or absent"
        return Diagnosis(fact, cause, remedy)

    return Diagnosis(fact, reason, "configure the issuer to omit that header member")


def _describe_candidate_keys(facts: CredentialFacts) -> str:
    keys = find_candidate_keys(facts.header, facts.keys)
    kid = facts.header.get("kid")
    label = f"of kid {quote_value(kid)}" if kid is not None else "for a token without kid"

    text = f"{label}: {join_some(list(map(describe_key, keys)))}"
    if facts.stale:
        text = f"{text}; the changed key files are rejected, these are the previous keys"
    return text


def _diagnose_key(facts: CredentialFacts, reason: str) -> Diagnosis:
    kid = facts.header.get("kid")
    known_keys = f"known keys: {describe_keys(facts.keys)}"
    remedy = "have the token signed with one of these, or add its key to authorization.jwks_file"

    if facts.stale:
        remedy = (
            "fix the changed key files, which are rejected: the log of the server has the error"
        )

    if kid is None:
        cause = f"the token has no kid to select a key; {known_keys}"
        return Diagnosis("no kid", cause, "configure the issuer to put the kid into the header")

    fact = f"kid {quote_value(kid)}"
    for entry in facts.keys.skipped:
        if entry.kid == kid:
            cause = f"the key with this kid is skipped: {entry.reason}; {known_keys}"
            return Diagnosis(fact, cause, f"publish it as a signing key for {facts.keys.spec.name}")

    for key_id in filter(None, facts.keys.by_kid):
        difference = describe_difference(kid, key_id)
        if difference is not None:
            cause = f"no key has the token's kid; {known_keys}; similar to {quote_value(key_id)}"
            return Diagnosis(fact, f"{cause}: {difference}", remedy)

    return Diagnosis(fact, f"no key has the token's kid; {known_keys}", remedy)


def _describe_signature(facts: CredentialFacts) -> str:
    assert facts.parts is not None
    key = check_signature(facts.parts, find_candidate_keys(facts.header, facts.keys))
    return f"valid, with {describe_key(key)}"


def _diagnose_signature(facts: CredentialFacts, reason: str) -> Diagnosis:
    assert facts.parts is not None
    keys = ", ".join(map(describe_key, find_candidate_keys(facts.header, facts.keys)))
    size = len(facts.parts.signature)
    expected = _find_signature_size(facts)
    fact = f"{size} bytes, tried with {keys}"

    if size == 0:
        return Diagnosis(fact, "the token is not signed", _COPY_AGAIN)

    is_der = facts.parts.signature.startswith(b"\x30") and size != expected
    if facts.keys.spec.family == "EC" and is_der:
        cause = "the signature is in DER form; a JWS has r and s side by side (RFC 7518 3.4)"
        return Diagnosis(fact, cause, "configure the issuer to use the JWS form")

    if expected is not None and size != expected:
        cause = f"signatures of these keys have {expected} bytes: cut off, or from another key"
        return Diagnosis(fact, cause, f"{_COPY_AGAIN}, or add the key that signed it")

    cause = "the token was signed with another key or changed afterwards"
    kid = facts.header.get("kid")
    if isinstance(kid, str):
        cause = f"{cause}; the token names kid {quote_value(kid)}"
    return Diagnosis(fact, cause, "add the key that signed it; `agentctl keys list` shows yours")


def _find_signature_size(facts: CredentialFacts) -> int | None:
    spec = facts.keys.spec
    if spec.family == "oct":
        return spec.hash_bits // 8
    if spec.family == "OKP":
        return 64
    sizes = {
        (getattr(key.material, "key_size", 0) + 7) // 8
        for key in find_candidate_keys(facts.header, facts.keys)
    }
    if len(sizes) != 1:
        return None

    size = sizes.pop()
    # An ECDSA signature has two numbers, each as long as the key (RFC 7518 3.4).
    return size * 2 if spec.family == "EC" else size


def _describe_time(value: float, facts: CredentialFacts) -> str:
    return f"{format_rfc3339(int(value * 1_000_000))}, {describe_distance(value, facts.now)}"


def _diagnose_missing(name: str, reason: str) -> Diagnosis:
    cause = f"{reason}, and authorization.require_{name} is on"
    return Diagnosis("none", cause, f"configure the issuer to add {name}")


def _time_check(name: str, demands: str, absent: str, remedy: str) -> Check:
    def describe(facts: CredentialFacts) -> str:
        value = facts.claims.get(name)
        return absent if value is None else _describe_time(value, facts)

    def diagnose_time(facts: CredentialFacts, reason: str) -> Diagnosis:
        if name not in facts.claims:
            return _diagnose_missing(name, reason)
        value = facts.claims[name]
        quoted = quote_value(value)
        issuer = "configure the issuer to write seconds"

        if isinstance(value, bool) or not isinstance(value, int | float):
            return Diagnosis(quoted, f"{reason}: it is {quoted}", f"{issuer} since 1970")
        if abs(value) > _MILLISECONDS or value < 0:
            cause = f"{reason}: it is not in seconds since 1970"
            return Diagnosis(quoted, cause, f"{issuer}, not milliseconds")

        span = describe_distance(value, facts.now)
        leeway = f"the leeway is {facts.rules.leeway:g} s"
        causes = {
            "exp": f"it expired {span}; exp has no leeway",
            "nbf": f"it is not valid for another {span.removeprefix('in ')}; {leeway}",
            "iat": f"it was issued {span}, by the clock here; {leeway}",
        }

        return Diagnosis(_describe_time(value, facts), causes[name], remedy)

    return Check(f"claims.{name}", demands, describe, diagnose_time)


def _describe_compared_claim(name: str, setting: str) -> Callable[[CredentialFacts], str]:
    def describe(facts: CredentialFacts) -> str:
        value = quote_value(facts.claims.get(name))
        expected = facts.rules.issuer if name == "iss" else facts.rules.audience
        return f"{value}, not compared: {setting}" if expected is None else value

    return describe


def _diagnose_iss(facts: CredentialFacts, reason: str) -> Diagnosis:
    value = facts.claims.get("iss")
    expected = facts.rules.issuer
    # Without an issuer in the configuration the check does not fail.
    assert expected is not None
    difference = _describe_difference_to(expected, value)
    cause = f"authorization.issuer is {quote_value(expected)}{difference}"
    if value is None:
        return Diagnosis("none", cause, "configure the issuer to add iss")
    return Diagnosis(quote_value(value), cause, "set authorization.issuer to the iss of tokens")


def _diagnose_aud(facts: CredentialFacts, reason: str) -> Diagnosis:
    claims = facts.claims
    expected = facts.rules.audience
    value = claims.get("aud")

    if "no access token" in reason:
        kind = quote_value(claims.get("typ"))
        return Diagnosis(f"typ {kind}", reason, "send the access token of the provider")

    if expected is None or "configured" not in reason:
        remedy = "configure the issuer to write a string, or an array of at most 16 strings"
        return Diagnosis(quote_value(value), reason, remedy)

    default = "" if facts.settings.authorization.audience else ", which is server.id"
    audiences = [value] if isinstance(value, str) else value or []
    differences = [_describe_difference_to(expected, name) for name in audiences]
    first_difference = next(filter(None, differences), "")
    cause = f"the audience here is {quote_value(expected)}{default}{first_difference}"

    for name in ("azp", "client_id", "resource"):
        if claims.get(name) == expected:
            cause = f"{cause}; the claim {name} has it, but is not read"
            break

    if value is None:
        return Diagnosis("none", cause, "configure the issuer to add aud")

    remedy = f"request a token for {quote_value(expected)}, or set authorization.audience"
    return Diagnosis(quote_value(value), cause, remedy)


def _describe_difference_to(expected: str, claim: object) -> str:
    """Return the end of a sentence, with a colon before it; empty if the texts are not similar."""
    if not isinstance(claim, str):
        return ""
    difference = describe_difference(claim, expected)
    return f": {difference}" if difference else ""


def _diagnose_sub(facts: CredentialFacts, reason: str) -> Diagnosis:
    if "sub" not in facts.claims:
        return _diagnose_missing("sub", reason)
    value = facts.claims["sub"]
    if isinstance(value, str) and is_reserved_subject(value.strip()):
        cause = f"{reason}: only the server uses names that start so"
        return Diagnosis(quote_value(value), cause, "request a token with another sub")
    return Diagnosis(quote_value(value), reason, "configure the issuer to write a plain name")


def _quote_claim(name: str, absent: str) -> Callable[[CredentialFacts], str]:
    return lambda facts: quote_value(facts.claims[name]) if name in facts.claims else absent


def _account_check(name: str, demands: str, remedy: str, fact: str = "") -> Check:
    return Check(
        f"account.{name}",
        demands,
        lambda facts: fact,
        lambda facts, reason: Diagnosis("", reason, remedy),
    )


_LENGTH = Check(
    "length",
    f"the token is not longer than {MAXIMUM_TOKEN} bytes",
    lambda facts: f"{len(facts.token)} of at most {MAXIMUM_TOKEN} bytes",
    lambda facts, reason: Diagnosis(
        f"{len(facts.token)} bytes",
        f"a token may have {MAXIMUM_TOKEN} bytes",
        "request a token with fewer claims or scopes",
    ),
)
_TRANSPORT = Check(
    "transport",
    "the Authorization header is Bearer and one token",
    lambda facts: "Bearer and one token",
    _diagnose_transport,
)

JWT_CHECKS: tuple[Check, ...] = (
    _LENGTH,
    _TRANSPORT,
    Check(
        "form",
        "the token has three segments of canonical base64url",
        lambda facts: "three segments of base64url",
        _diagnose_form,
    ),
    Check(
        "header",
        "the header is that of an access token with the configured algorithm",
        _describe_header,
        _diagnose_header,
    ),
    Check("key", "a key for the token's kid is in use", _describe_candidate_keys, _diagnose_key),
    Check("signature", "the signature is valid", _describe_signature, _diagnose_signature),
    Check(
        "claims.form",
        "the payload is one strict JSON object",
        lambda facts: join_some(list(map(quote_value, facts.claims))) or "no claims",
        lambda facts, reason: Diagnosis(
            "no claims", reason, "configure the issuer to sign one JSON object in UTF-8"
        ),
    ),
    _time_check(
        "exp",
        "exp is in the future",
        "none: the token never expires",
        "request a new token; `agentctl token mint` creates one",
    ),
    _time_check("nbf", "nbf is in the past", "none", "wait until then, or synchronize the clocks"),
    _time_check("iat", "iat is in the past", "none", "synchronize the clocks of issuer and server"),
    Check(
        "claims.iss",
        "iss is the configured issuer",
        _describe_compared_claim("iss", "authorization.issuer is empty"),
        _diagnose_iss,
    ),
    Check(
        "claims.aud",
        "aud contains the configured audience",
        _describe_compared_claim("aud", "authorization.verify_audience is off"),
        _diagnose_aud,
    ),
    Check(
        "claims.sub",
        "sub is a plain name that is not reserved",
        _quote_claim("sub", "none: the caller has no name"),
        _diagnose_sub,
    ),
    Check(
        "claims.scopes",
        "scopes are well-formed; others grant nothing",
        lambda facts: describe_claims(facts.claims, facts.rules.scopes),
    ),
    Check(
        "claims.session_id",
        "session_id is a session id",
        _quote_claim("session_id", "none"),
        lambda facts, reason: Diagnosis(
            quote_value(facts.claims.get("session_id")),
            reason,
            "use 1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, or omit the claim",
        ),
    ),
)
"""The checks of a JWT, in order."""

ACCOUNT_CHECKS: tuple[Check, ...] = (
    _LENGTH,
    _TRANSPORT,
    _account_check(
        "form",
        "a service account token has its length, alphabet and checksum",
        _COPY_AGAIN,
        "length, alphabet and checksum are correct",
    ),
    _account_check(
        "known",
        "a service account has the token",
        "search for it with `agentctl accounts list`, in the same database",
    ),
    _account_check("revoked", "the service account is not revoked", _NEW_ACCOUNT),
    _account_check("expired", "the service account has not expired", _NEW_ACCOUNT),
)
"""The checks of a service account token, in order."""

CHECKS: dict[str, Check] = {check.name: check for check in (*JWT_CHECKS, *ACCOUNT_CHECKS)}
"""Every check by name: the values of `InvalidToken.check`, of the audit log and of metrics."""
