"""Signed tokens: a compact JWS and a set of keys go in, header and payload bytes come out.

Usable by itself. The steps are length, tokenizer, header, key, signature, each a function of its
own; whatever goes in, either a result or `errors.InvalidToken` comes out. PyJWT and `cryptography`
do the arithmetic and nothing else: the header never chooses an algorithm, a key or an address
(RFC 8725 3.1, 3.10). Claims are for `claims`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jwt.api_jws import PyJWS

from agentctl.auth.keys.material import VerificationKey, parse_keys
from agentctl.auth.tokens.algorithms import ALGORITHMS, AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import SkippedKey, algorithm_of_jwk, key_from_jwk, reason_to_skip
from agentctl.auth.tokens.strict import NotStrict, decode_base64url, parse_object
from agentctl.errors import InvalidKey, InvalidToken

__all__ = [
    "MAXIMUM_TOKEN",
    "KeySet",
    "TokenParts",
    "VerifiedToken",
    "check_header",
    "check_length",
    "check_signature",
    "find_candidate_keys",
    "parse_header",
    "parse_token",
    "split_segments",
    "verify_token",
]

MAXIMUM_TOKEN = 8_192
"""Bytes of a token, unless the caller says otherwise."""

_MAXIMUM_SIGNATURE = 1_024
_NO_KID = "it has no kid and the set has several keys"
_ACCEPTED_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REJECTED_MEMBERS = ("b64", "crit", "enc", "zip")
_pyjwt = PyJWS()


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys that may verify a token, all of one algorithm.

    Attributes:
        spec: the algorithm, the only one that a token may name.
        by_kid: keys of a JWKS; a token's `kid` chooses. None is the name of one without `kid`.
        in_turn: PEM keys and secrets, which have no name.
        skipped: entries of the JWKS that are for something else.
    """

    spec: AlgorithmSpec
    by_kid: Mapping[str | None, VerificationKey]
    unnamed: tuple[VerificationKey, ...] = ()
    skipped: tuple[SkippedKey, ...] = ()

    @classmethod
    def from_jwks(cls, mapping: Mapping[str, Any], *, algorithm: str | None = None) -> KeySet:
        """The usable keys of a JWKS (RFC 7517 5).

        Args:
            mapping: the parsed document, `{"keys": [...]}`.
            algorithm: the one algorithm; None: that of the keys themselves (`alg`, else what the
                key type suggests, RS256 for RSA), which then have to agree.

        Raises:
            InvalidKey: malformed; symmetric and asymmetric keys together; a usable key that is
                private, weak or malformed; one `kid` for two usable keys; or no usable key.
        """
        entries = _labeled_entries(mapping)
        spec = get_algorithm(algorithm if algorithm is not None else _common_algorithm(entries))
        found: list[VerificationKey] = []
        skipped: list[SkippedKey] = []
        for label, entry in entries:
            reason = reason_to_skip(entry, spec, label)
            if reason is None:
                found.append(key_from_jwk(entry, spec, label))
            else:
                skipped.append(SkippedKey(entry.get("kid"), reason))
        return cls._from_entries(spec, found, skipped)

    @classmethod
    def _from_entries(
        cls, spec: AlgorithmSpec, found: list[VerificationKey], skipped: list[SkippedKey]
    ) -> KeySet:
        if len(found) > 1:
            skipped += [SkippedKey(None, _NO_KID) for key in found if key.kid is None]
            found = [key for key in found if key.kid is not None]
        if not found:
            raise InvalidKey(f"The JWKS has no usable key for {spec.name}")
        by_kid = {key.kid: key for key in found}
        if len(by_kid) != len(found):
            raise InvalidKey("The JWKS has two keys with the same kid")
        return cls(spec, by_kid, skipped=tuple(skipped))

    @classmethod
    def from_pems(cls, texts: Iterable[str], algorithm: str) -> KeySet:
        """PEM public keys, or for HS algorithms the shared secret, tried in turn.

        Raises:
            InvalidKey: a text is refused, or there is none.
        """
        spec = get_algorithm(algorithm)
        keys = [
            key
            for number, text in enumerate(texts, start=1)
            for key in parse_keys(text, spec, f"Key {number}")
        ]
        return cls.from_keys(spec, keys)

    @classmethod
    def from_keys(cls, spec: AlgorithmSpec, keys: Iterable[VerificationKey]) -> KeySet:
        """A set of keys without names, tried in turn.

        Raises:
            InvalidKey: there is none.
        """
        in_turn = tuple(keys)
        if not in_turn:
            raise InvalidKey("There is no verification key")
        return cls(spec, {}, in_turn)

    def merge(self, other: KeySet) -> KeySet:
        """Both sets as one.

        Raises:
            InvalidKey: they are for different algorithms, or have a `kid` in common.
        """
        if self.spec != other.spec:
            raise InvalidKey("The key sets are for different algorithms")
        if not self.by_kid.keys().isdisjoint(other.by_kid):
            raise InvalidKey("The key sets have a kid in common")
        return KeySet(
            self.spec,
            {**self.by_kid, **other.by_kid},
            (*self.unnamed, *other.unnamed),
            (*self.skipped, *other.skipped),
        )

    @property
    def keys(self) -> tuple[VerificationKey, ...]:
        """Every key of the set."""
        return (*self.by_kid.values(), *self.unnamed)


def _labeled_entries(mapping: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    entries = mapping.get("keys") if isinstance(mapping, Mapping) else None
    if not isinstance(entries, list):
        raise InvalidKey('The JWKS is not an object with an array "keys"')
    labeled = [(f"JWKS key {number}", entry) for number, entry in enumerate(entries, start=1)]
    for label, entry in labeled:
        if not isinstance(entry, Mapping):
            raise InvalidKey(f"{label} is not an object")
    symmetric = {entry.get("kty") == "oct" for _, entry in labeled}
    if len(symmetric) > 1:
        raise InvalidKey("The JWKS has shared secrets and public keys in one set")
    return labeled


def _common_algorithm(entries: list[tuple[str, Mapping[str, Any]]]) -> str:
    """The algorithm of the keys that sign; entries for encryption have no say."""
    signing = (entry for _, entry in entries if entry.get("use", "sig") == "sig")
    names = {name for entry in signing if (name := algorithm_of_jwk(entry)) in ALGORITHMS}
    if len(names) > 1:
        raise InvalidKey("The JWKS has keys for several algorithms", hint="name the one to use")
    return next((name for name in names if name is not None), "RS256")


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """What a token says, once its signature was found good.

    Attributes:
        header: the JOSE header.
        payload: the bytes that were signed for; claims are not checked yet.
        key: the key that they were signed for with.
    """

    header: dict[str, Any]
    payload: bytes
    key: VerificationKey


@dataclass(frozen=True, slots=True)
class TokenParts:
    """A compact JWS taken apart (RFC 7515 7.1), nothing of it believed."""

    signing_input: bytes
    header: dict[str, Any]
    payload: bytes
    signature: bytes


def verify_token(token: str, keys: KeySet, *, maximum: int = MAXIMUM_TOKEN) -> VerifiedToken:
    """Check the signature of a token: every step in turn, the cheap ones first.

    Args:
        token: compact serialization, without the word Bearer.
        keys: the keys to trust.
        maximum: bytes of the longest token that is looked at.

    Raises:
        InvalidToken: anything at all is wrong; `check` names the step, `reason` says what.
    """
    parts = parse_token(token, maximum=maximum)
    check_header(parts.header, keys.spec)
    key = check_signature(parts, find_candidate_keys(parts.header, keys))
    return VerifiedToken(parts.header, parts.payload, key)


def parse_token(token: str, *, maximum: int = MAXIMUM_TOKEN) -> TokenParts:
    """Take a token apart, strictly; nothing is verified. Steps `length`, `form` and `header`.

    Raises:
        InvalidToken: too long, not three segments of canonical base64url, no JSON object in front.
    """
    check_length(token, maximum)
    first, second, third = split_segments(token)
    header, payload, signature = (
        _decode_segment(first, "header"),
        _decode_segment(second, "payload"),
        _decode_segment(third, "signature"),
    )
    return TokenParts(f"{first}.{second}".encode("ascii"), parse_header(header), payload, signature)


def check_length(token: str, maximum: int) -> None:
    """Step `length`, before anything else: what is too long costs nothing.

    Raises:
        InvalidToken: it is longer than `maximum` bytes, or no text.
    """
    if not isinstance(token, str):
        raise InvalidToken("the token is not text", check="form")
    if len(token) > maximum:
        raise InvalidToken(f"the token is longer than {maximum} bytes", check="length")


def split_segments(token: str) -> tuple[str, str, str]:
    """The first half of step `form`: header, payload and signature, still encoded.

    Raises:
        InvalidToken: there are not three.
    """
    if token.count(".") != 2:
        raise InvalidToken("the token does not have three segments", check="form")
    first, second, third = token.split(".")
    return first, second, third


def _decode_segment(segment: str, name: str) -> bytes:
    """The other half of step `form`."""
    try:
        return decode_base64url(segment)
    except NotStrict as failure:
        raise InvalidToken(f"the {name} {failure}", check="form") from None


def parse_header(data: bytes) -> dict[str, Any]:
    """Step `header`: what a token says of itself, as it stands there.

    Raises:
        InvalidToken: the bytes are no strict JSON object.
    """
    try:
        return parse_object(data)
    except NotStrict as failure:
        raise _invalid_header(f"the header {failure}") from None


def check_header(header: Mapping[str, Any], spec: AlgorithmSpec) -> None:
    """Step `header`: what a token may say of itself (RFC 7515 4.1, RFC 8725 3.11).

    Raises:
        InvalidToken: another algorithm, another kind of token, or what is not supported here.
    """
    if header.get("alg") != spec.name:
        raise _invalid_header(f"the header's alg is not {spec.name}")
    for name in _REJECTED_MEMBERS:
        if name in header:
            raise _invalid_header(f"the header has {name}, which is not accepted")
    if "typ" in header:
        _check_type(header["typ"])
    if "cty" in header:
        raise _invalid_header("the header has cty: a token in a token is not accepted")
    if not isinstance(header.get("kid", ""), str):
        raise _invalid_header("the header's kid is not a string")


def _check_type(value: object) -> None:
    """RFC 9068 4 and RFC 7519 5.1; tokens for other purposes say so here."""
    if not isinstance(value, str) or value.lower() not in _ACCEPTED_TYPES:
        raise _invalid_header("the header's typ is not that of an access token")


def _invalid_header(reason: str) -> InvalidToken:
    return InvalidToken(reason, check="header")


def find_candidate_keys(header: Mapping[str, Any], keys: KeySet) -> tuple[VerificationKey, ...]:
    """Step `key`: the key that `kid` names, else the nameless ones (contract.md 6).

    A token without `kid` may also be of a JWKS's only key.

    Raises:
        InvalidToken: there is none.
    """
    kid = header.get("kid")
    if kid is not None and kid in keys.by_kid:
        return (keys.by_kid[kid],)
    only = keys.by_kid.values() if kid is None and len(keys.by_kid) == 1 else ()
    found = (*keys.unnamed, *only)
    if not found:
        raise InvalidToken("no key of the set has the token's kid", check="key")
    return found


def check_signature(parts: TokenParts, found: Iterable[VerificationKey]) -> VerificationKey:
    """Step `signature`: the first of the keys that the token was signed for with.

    Raises:
        InvalidToken: with none of them.
    """
    for key in found:
        if _is_signed_by(key, parts):
            return key
    raise InvalidToken("the signature does not hold", check="signature")


def _is_signed_by(key: VerificationKey, parts: TokenParts) -> bool:
    if not 0 < len(parts.signature) <= _MAXIMUM_SIGNATURE:
        return False
    algorithm = _pyjwt.get_algorithm_by_name(key.spec.name)
    try:
        return bool(algorithm.verify(parts.signing_input, key.material, parts.signature))
    except Exception:
        # Arithmetic libraries refuse odd input in many ways; none of them is a pass.
        return False
