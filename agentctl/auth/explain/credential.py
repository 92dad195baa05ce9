"""A parsed credential, with the rules and keys that apply to it, for the checks to describe, and
suggestions for credentials and requests that are almost right.

The texts are for operators and explain decisions that are made elsewhere; nothing here decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from agentctl.auth.keys.signing import key_thumbprint
from agentctl.auth.tokens.account_tokens import ACCOUNT_PREFIX
from agentctl.auth.tokens.claims import ClaimRules, RawClaims, parse_claims
from agentctl.auth.tokens.jws import KeySet, TokenParts, parse_token
from agentctl.errors import InvalidToken
from agentctl.interface.operations import ROUTES
from agentctl.records.routes import RouteTable, has_encoded_slash
from agentctl.records.text import suggest_name
from agentctl.records.times import format_span

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.config.settings import Settings


_MAXIMUM_SHOWN = 100
"""Maximum number of characters of a quoted value."""

_MAXIMUM_LISTED = 8
"""Maximum number of names in one sentence."""

_PREFIX_PARTS = 16
"""Maximum number of parts at the start of a path that are tried as the prefix of a proxy."""


def quote_value(value: object) -> str:
    """Return a value of a token or request as JSON on one line, cut at 100 characters.

    Invisible characters, and those that change the direction of text, are escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():
        text = json.dumps(value)
    return text if len(text) <= _MAXIMUM_SHOWN else f"{text[:_MAXIMUM_SHOWN]}..."


def join_some(texts: list[str]) -> str:
    """Join the first texts of a list for a sentence: `a, b and 3 more`."""
    joined = ", ".join(texts[:_MAXIMUM_LISTED])
    more = len(texts) - _MAXIMUM_LISTED
    return f"{joined} and {more} more" if more > 0 else joined


def describe_difference(actual: str, expected: str) -> str | None:
    """Describe the difference of two similar texts; None if they are not similar."""
    if actual.strip() == expected.strip():
        return "it has white space at an end"
    if actual.rstrip("/") == expected.rstrip("/"):
        return "only the slash at the end differs"
    if actual.casefold() == expected.casefold():
        return "only upper and lower case differ"
    if _without_scheme(actual) == _without_scheme(expected):
        return "only the part before :// differs"
    if expected and (actual.startswith(expected) or actual.endswith(expected)):
        return "it has extra text"
    if actual and (expected.startswith(actual) or expected.endswith(actual)):
        return "it is only a part"
    return None


def _without_scheme(text: str) -> str:
    return text.partition("://")[2].rstrip("/") or text


def decode_path(target: str) -> str:
    """Return the decoded path of a request target, without query and fragment."""
    return unquote(target.partition("#")[0].partition("?")[0])


def routable_path(target: str) -> str:
    """Return the path that a server matches for a request target.

    It is empty for a path with an encoded slash, which matches no route.
    """
    encoded_path = target.partition("#")[0].partition("?")[0]
    if has_encoded_slash(encoded_path.encode("utf-8", "surrogatepass")):
        return ""
    return decode_path(target)


def suggest_path(table: RouteTable, method: str, path: str) -> str | None:
    """Describe the mistake in a path that matches no route; None if no route is similar."""

    def is_known(candidate: str) -> bool:
        return table.find(method, candidate) is not None or bool(table.methods(candidate))

    candidates = {
        "paths have no slash at the end": path.rstrip("/"),
        "paths have one slash between two parts": re.sub(r"/+", "/", path),
        "paths are in lower case": path.lower(),
    }
    for rule, candidate in candidates.items():
        if candidate != path and is_known(candidate):
            return f"{rule}: {quote_value(candidate)}"

    parts = path.split("/")
    for cut in range(2, min(len(parts), _PREFIX_PARTS)):
        candidate = "/" + "/".join(parts[cut:])
        if candidate != "/" and is_known(candidate):
            quoted = quote_value(candidate)
            return f"{quoted} is known: omit the root_path or the prefix of a proxy"

    similar = suggest_name(path, sorted({route.template for route in ROUTES.values()}))
    return f"did you mean {similar}?" if similar else None


@dataclass(frozen=True, slots=True)
class CredentialFacts:
    """A credential and the rules that apply to it."""

    token: str
    """The credential as it was sent, without the word Bearer."""

    settings: Settings
    rules: ClaimRules
    keys: KeySet

    stale: bool
    """True if changed key files were rejected, so that `keys` are the previous keys."""

    now: float
    """The current time, in seconds since the epoch."""

    parts: TokenParts | None
    """The segments of the token; None if it is not a JWT."""

    claims: RawClaims
    """The unverified claims, empty if they cannot be read."""

    @property
    def header(self) -> Mapping[str, Any]:
        """The JOSE header, empty if it cannot be read."""
        return {} if self.parts is None else self.parts.header

    @property
    def is_for_account(self) -> bool:
        """True if the token has the prefix of service account tokens here, and is looked up."""
        return self.token.startswith(ACCOUNT_PREFIX)


def collect_facts(
    token: str, settings: Settings, keys: KeySet, *, stale: bool, now: float
) -> CredentialFacts:
    """Parse a credential as far as possible, without verifying anything."""
    rules = ClaimRules.from_settings(settings)
    parts: TokenParts | None = None
    claims: RawClaims = {}
    with suppress(InvalidToken):
        parts = parse_token(token)
        claims = parse_claims(parts.payload)
    return CredentialFacts(token, settings, rules, keys, stale, now, parts, claims)


def describe_keys(keys: KeySet) -> str:
    """Return the names of the keys in use, for a sentence."""
    return join_some(list(map(describe_key, keys.keys)))


def describe_key(key: VerificationKey) -> str:
    """Return the `kid` of a key, else its thumbprint; a shared secret has neither."""
    if key.kid is not None:
        return quote_value(key.kid)
    if isinstance(key.material, bytes):
        return "a shared secret"
    return quote_value(key_thumbprint(key))


def describe_distance(moment: float, now: float) -> str:
    """Return the distance of two times in seconds as `in 12 min` or `4 min ago`."""
    ahead = moment - now
    return f"in {format_span(ahead)}" if ahead > 0 else f"{format_span(-ahead)} ago"
