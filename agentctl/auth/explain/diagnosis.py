"""Why a credential failed a step, and what would satisfy it: one cause and one remedy each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agentctl.auth.explain import findings
from agentctl.auth.explain.findings import (
    CredentialFacts,
    describe_distance,
    describe_key,
    describe_keys,
)
from agentctl.auth.explain.suggestions import describe_difference, quote_value
from agentctl.auth.tokens.account_tokens import account_token_prefix, is_account_token
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.claims import is_reserved_subject
from agentctl.auth.tokens.jws import find_candidate_keys
from agentctl.records.times import format_rfc3339

__all__ = ["NO_CREDENTIAL", "Diagnosis", "diagnose"]


class Diagnosis(NamedTuple):
    """What was met, why that does not do, and which setting or claim would."""

    found: str
    cause: str
    remedy: str


NO_CREDENTIAL = Diagnosis(
    "no Authorization header",
    "the request carries no credential",
    "send `Authorization: Bearer <token>`; `agentctl token mint` makes a token",
)

_AGAIN = "copy the token again, whole, as one line"
_MILLISECONDS = 100_000_000_000
"""A NumericDate above this is in milliseconds: it would be of the year 5138."""


def diagnose(check: str, reason: str, facts: CredentialFacts) -> Diagnosis:
    """What to tell of a step that failed.

    Args:
        check: the step, as `InvalidToken.check` names it.
        reason: why, in the words of the step itself.
        facts: the credential, and what it was held to.
    """
    return _CAUSES.get(check, _unknown)(facts, reason)


def _unknown(facts: CredentialFacts, reason: str) -> Diagnosis:
    return Diagnosis("", reason, "have a new token issued")


def _length(facts: CredentialFacts, reason: str) -> Diagnosis:
    limit = facts.settings.limits.token_bytes
    return Diagnosis(
        f"{len(facts.token)} bytes",
        f"at most {limit} bytes of a token are looked at (limits.token_bytes)",
        "have a token with fewer claims or scopes issued, or raise limits.token_bytes",
    )


def _transport(facts: CredentialFacts, reason: str) -> Diagnosis:
    token = facts.token
    found = "not Bearer and one token"
    if token.lower().startswith("bearer"):
        cause = "the token itself begins with Bearer, so that the header says it twice"
        return Diagnosis(found, cause, "give the token alone, without the word Bearer")
    if not token:
        return Diagnosis(found, "nothing follows the word Bearer", NO_CREDENTIAL.remedy)
    if not token.isascii():
        return Diagnosis(found, "there are characters outside ASCII in it", _AGAIN)
    return Diagnosis(found, "there is white space in it", _AGAIN)


def _form(facts: CredentialFacts, reason: str) -> Diagnosis:
    token, dots = facts.token, facts.token.count(".")
    found = f"{dots + 1} segments"
    if is_account_token(token):
        start = account_token_prefix(facts.settings.authorization.token_prefix)
        cause = f"it is a service account's token of another deployment: here they begin {start}"
        remedy = "ask the deployment that made it, or set authorization.token_prefix"
        return Diagnosis("a service account's token", cause, remedy)
    if token[:1] in "\"'" or token[-1:] in "\"'":
        return Diagnosis(found, "there are quotation marks around it", "send it without them")
    if any(map(str.isspace, token)):
        return Diagnosis(found, "there is white space in it", _AGAIN)
    if dots == 4:
        cause = "it is an encrypted token (JWE), which is not accepted"
        return Diagnosis(found, cause, "have the issuer send signed tokens (JWS)")
    if dots == 0:
        cause = "it is no JWT, but an opaque token that only its issuer understands"
        remedy = "ask the identity provider for a JWT, mostly by naming an audience or an API"
        return Diagnosis(found, cause, remedy)
    if dots != 2:
        return Diagnosis(found, f"{reason}: it was cut off, or there is more than it", _AGAIN)
    if "=" in token:
        cause = f"{reason}: it is padded with = (RFC 7515 2 has no padding)"
        return Diagnosis(found, cause, "have the issuer leave the padding out")
    if "+" in token or "/" in token:
        cause = f"{reason}: + and / are of base64, not of base64url"
        return Diagnosis(found, cause, "have the issuer encode it as base64url (RFC 7515 2)")
    return Diagnosis(found, reason, _AGAIN)


def _header(facts: CredentialFacts, reason: str) -> Diagnosis:
    if facts.parts is None:
        return Diagnosis("no header", reason, _AGAIN)
    header, wanted = facts.header, facts.keys.spec.name
    found = findings.FOUND["header"](facts)
    if header.get("alg") != wanted:
        return _algorithm(found, header.get("alg"), wanted)
    if "typ" in header and "typ" in reason:
        cause = f"typ is {quote_value(header['typ'])}: that is a token for another purpose"
        return Diagnosis(found, cause, "send the access token; its typ is JWT, at+jwt or absent")
    return Diagnosis(found, reason, "have the issuer leave that out of the header")


def _algorithm(found: str, alg: object, wanted: str) -> Diagnosis:
    one = f"authorization.algorithm is {wanted}, and the token says {quote_value(alg)}"
    if isinstance(alg, str) and alg.casefold() == "none":
        return Diagnosis(found, f"{one}: it is not signed", f"have it signed with {wanted}")
    if isinstance(alg, str) and alg in ALGORITHMS:
        remedy = f'have it signed with {wanted}, or set authorization.algorithm = "{alg}"'
        return Diagnosis(found, one, f"{remedy} with keys for it")
    if isinstance(alg, str) and alg.upper() in ALGORITHMS:
        one = f"{one}: it is compared by its case"
    return Diagnosis(found, one, f"have it signed with {wanted}")


def _key(facts: CredentialFacts, reason: str) -> Diagnosis:
    kid = facts.header.get("kid")
    known = f"known are: {describe_keys(facts.keys)}"
    remedy = "have it signed with one of these, or add its key to authorization.jwks_file"
    if facts.stale:
        remedy = "look into the server's log: changed key files are refused, mend them"
    if kid is None:
        cause = f"the token has no kid to choose a key by; {known}"
        return Diagnosis("no kid", cause, "have the issuer put the kid of its key into the header")
    found = f"kid {quote_value(kid)}"
    for entry in facts.keys.left_out:
        if entry.kid == kid:
            cause = f"the key of this kid is left out: {entry.reason}; {known}"
            return Diagnosis(found, cause, "publish it as a key that signs, for the algorithm")
    near = [name for name in facts.keys.by_kid if name and describe_difference(kid, name)]
    close = (
        f"; it is nearly {quote_value(near[0])}: {describe_difference(kid, near[0])}"
        if near
        else ""
    )
    return Diagnosis(found, f"no key has the token's kid; {known}{close}", remedy)


def _signature(facts: CredentialFacts, reason: str) -> Diagnosis:
    assert facts.parts is not None
    tried = ", ".join(describe_key(key) for key in find_candidate_keys(facts.header, facts.keys))
    size, expected = len(facts.parts.signature), _signature_size(facts)
    found = f"{size} bytes, tried with {tried}"
    if size == 0:
        return Diagnosis(found, "the token is not signed", _AGAIN)
    der = facts.parts.signature.startswith(b"\x30") and size != expected
    if facts.keys.spec.family == "EC" and der:
        cause = "the signature is in DER form; a JWS has r and s side by side (RFC 7518 3.4)"
        return Diagnosis(found, cause, "have the issuer write it so")
    if expected is not None and size != expected:
        cause = f"a signature by these keys has {expected} bytes: it is by another key, or cut off"
        return Diagnosis(found, cause, f"{_AGAIN}, or add the key that signed it")
    kid = facts.header.get("kid")
    named = f"; the token names kid {quote_value(kid)}" if isinstance(kid, str) else ""
    cause = f"it was signed with another key, or changed afterwards{named}"
    return Diagnosis(found, cause, "add the key that signed it; `agentctl keys list` shows yours")


def _signature_size(facts: CredentialFacts) -> int | None:
    """Bytes of a signature by the keys that were tried, where they agree on it."""
    spec = facts.keys.spec
    if spec.family == "oct":
        return spec.hash_bits // 8
    if spec.family == "OKP":
        return 64
    sizes = {
        (getattr(key.material, "key_size", 0) + 7) // 8
        for key in find_candidate_keys(facts.header, facts.keys)
    }
    size = sizes.pop() if len(sizes) == 1 else None
    return None if size is None else size * 2 if spec.family == "EC" else size


def _payload(facts: CredentialFacts, reason: str) -> Diagnosis:
    return Diagnosis("no claims", reason, "have the issuer sign one JSON object in UTF-8")


def _time(name: str, remedy: str) -> Callable[[CredentialFacts, str], Diagnosis]:
    def told(facts: CredentialFacts, reason: str) -> Diagnosis:
        claims = facts.claims or {}
        if name not in claims:
            cause = f"{reason}, and authorization.require_{name} is on"
            return Diagnosis("none", cause, f"have the issuer put {name} into it")
        value = claims[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            cause = f"{reason}: it is {quote_value(value)}"
            return Diagnosis(quote_value(value), cause, "have the issuer write seconds since 1970")
        if abs(value) > _MILLISECONDS or value < 0:
            cause = f"{reason}: it is not in seconds since 1970"
            return Diagnosis(
                quote_value(value), cause, "have the issuer write seconds, not milliseconds"
            )
        found = f"{format_rfc3339(int(value * 1_000_000))}, {describe_distance(value, facts.now)}"
        return Diagnosis(found, _since(name, value, facts), remedy)

    return told


def _since(name: str, value: float, facts: CredentialFacts) -> str:
    span = describe_distance(value, facts.now)
    if name == "exp":
        return f"it expired {span}; exp has no leeway"
    leeway = f"authorization.leeway_seconds is {facts.rules.leeway:g}"
    if name == "nbf":
        return f"it is not valid for another {span.removeprefix('in ')}; {leeway}"
    return f"it was issued {span}, by the clock here; {leeway}"


def _iss(facts: CredentialFacts, reason: str) -> Diagnosis:
    value, wanted = (facts.claims or {}).get("iss"), str(facts.rules.issuer)
    cause = f"authorization.issuer is {quote_value(wanted)}{_small(value, wanted)}"
    if value is None:
        return Diagnosis("none", cause, "have the issuer put iss into it")
    return Diagnosis(
        quote_value(value), cause, "set authorization.issuer to what your issuer writes"
    )


def _aud(facts: CredentialFacts, reason: str) -> Diagnosis:
    claims, wanted = facts.claims or {}, facts.rules.audience
    value = claims.get("aud")
    if wanted is None or "configured" not in reason:
        return Diagnosis(
            quote_value(value), reason, "have the issuer write one text, or an array of 16"
        )
    default = "" if facts.settings.authorization.audience else ", which is server.id"
    near = [value] if isinstance(value, str) else value or []
    small = next(filter(None, (_small(name, wanted) for name in near)), "")
    cause = f"the audience here is {quote_value(wanted)}{default}{small}"
    if value is None:
        return Diagnosis("none", f"{cause}{_party(claims, wanted)}", "have the issuer put aud in")
    remedy = f"have it issued for {quote_value(wanted)}, or set authorization.audience"
    return Diagnosis(quote_value(value), f"{cause}{_party(claims, wanted)}", remedy)


def _party(claims: Mapping[str, Any], wanted: str) -> str:
    """Claims that have the audience and are not read for it."""
    for name in ("azp", "client_id", "resource"):
        if claims.get(name) == wanted:
            return f"; the claim {name} has it, which is not read"
    return ""


def _small(value: object, wanted: str) -> str:
    told = describe_difference(value, wanted) if isinstance(value, str) else None
    return f": {told}" if told else ""


def _sub(facts: CredentialFacts, reason: str) -> Diagnosis:
    claims = facts.claims or {}
    if "sub" not in claims:
        cause = f"{reason}, and authorization.require_sub is on"
        return Diagnosis("none", cause, "have the issuer put sub into it")
    value = claims["sub"]
    if isinstance(value, str) and is_reserved_subject(value.strip()):
        cause = f"{reason}: names that begin so are given by the server alone"
        return Diagnosis(quote_value(value), cause, "have it issued for another name")
    return Diagnosis(quote_value(value), reason, "have the issuer write a plain name as sub")


def _session_id(facts: CredentialFacts, reason: str) -> Diagnosis:
    value = (facts.claims or {}).get("session_id")
    remedy = "1 to 128 characters of A-Z, a-z, 0-9 and . _ ~ @ -, or leave the claim out"
    return Diagnosis(quote_value(value), reason, remedy)


def _account(remedy: str) -> Callable[[CredentialFacts, str], Diagnosis]:
    return lambda facts, reason: Diagnosis("", reason, remedy)


_NEW_ACCOUNT = "make another one: `agentctl accounts create`"

_CAUSES: dict[str, Callable[[CredentialFacts, str], Diagnosis]] = {
    "length": _length,
    "transport": _transport,
    "form": _form,
    "header": _header,
    "key": _key,
    "signature": _signature,
    "claims.form": _payload,
    "claims.exp": _time("exp", "have a new one issued; `agentctl token mint` makes one"),
    "claims.nbf": _time("nbf", "wait for it, set the clocks, or raise the leeway"),
    "claims.iat": _time("iat", "set the clocks of issuer and server, or raise the leeway"),
    "claims.iss": _iss,
    "claims.aud": _aud,
    "claims.sub": _sub,
    "claims.session_id": _session_id,
    "account.form": _account(_AGAIN),
    "account.known": _account("look for it with `agentctl accounts list`, in the same database"),
    "account.revoked": _account(_NEW_ACCOUNT),
    "account.expired": _account(_NEW_ACCOUNT),
}
