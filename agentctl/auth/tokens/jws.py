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

from agentctl.auth.keys.material import VerificationKey, keys_from_text
from agentctl.auth.tokens.algorithms import ALGORITHMS, Spec, spec_of
from agentctl.auth.tokens.jwk import LeftOut, algorithm_of, key_from_jwk, left_out
from agentctl.auth.tokens.strict import NotStrict, decode_base64url, parse_object
from agentctl.errors import InvalidKey, InvalidToken

__all__ = [
    "MAXIMUM_TOKEN",
    "KeySet",
    "Parts",
    "VerifiedToken",
    "candidates",
    "check_header",
    "check_length",
    "check_signature",
    "read_header",
    "segments",
    "split",
    "verify",
]

MAXIMUM_TOKEN = 8_192
"""Bytes of a token, unless the caller says otherwise."""

_MAXIMUM_SIGNATURE = 1_024
_NAMELESS = "it has no kid and the set has several keys"
_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_REFUSED = ("b64", "crit", "enc", "zip")
_pyjwt = PyJWS()


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys that may verify a token, all of one algorithm.

    Attributes:
        spec: the algorithm, the only one that a token may name.
        by_kid: keys of a JWKS; a token's `kid` chooses. None is the name of one without `kid`.
        in_turn: PEM keys and secrets, which have no name.
        left_out: entries of the JWKS that are for something else.
    """

    spec: Spec
    by_kid: Mapping[str | None, VerificationKey]
    in_turn: tuple[VerificationKey, ...] = ()
    left_out: tuple[LeftOut, ...] = ()

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
        entries = _entries(mapping)
        spec = spec_of(algorithm if algorithm is not None else _common_algorithm(entries))
        found: list[VerificationKey] = []
        skipped: list[LeftOut] = []
        for label, entry in entries:
            reason = left_out(entry, spec, label)
            if reason is None:
                found.append(key_from_jwk(entry, spec, label))
            else:
                skipped.append(LeftOut(entry.get("kid"), reason))
        return cls._of_jwks(spec, found, skipped)

    @classmethod
    def _of_jwks(cls, spec: Spec, found: list[VerificationKey], skipped: list[LeftOut]) -> KeySet:
        if len(found) > 1:
            skipped += [LeftOut(None, _NAMELESS) for key in found if key.kid is None]
            found = [key for key in found if key.kid is not None]
        if not found:
            raise InvalidKey(f"The JWKS has no usable key for {spec.name}")
        by_kid = {key.kid: key for key in found}
        if len(by_kid) != len(found):
            raise InvalidKey("The JWKS has two keys with the same kid")
        return cls(spec, by_kid, left_out=tuple(skipped))

    @classmethod
    def from_pems(cls, texts: Iterable[str], algorithm: str) -> KeySet:
        """PEM public keys, or for HS algorithms the shared secret, tried in turn.

        Raises:
            InvalidKey: a text is refused, or there is none.
        """
        spec = spec_of(algorithm)
        keys = [
            key
            for number, text in enumerate(texts, start=1)
            for key in keys_from_text(text, spec, f"Key {number}")
        ]
        return cls.of_keys(spec, keys)

    @classmethod
    def of_keys(cls, spec: Spec, keys: Iterable[VerificationKey]) -> KeySet:
        """A set of keys without names, tried in turn.

        Raises:
            InvalidKey: there is none.
        """
        in_turn = tuple(keys)
        if not in_turn:
            raise InvalidKey("There is no verification key")
        return cls(spec, {}, in_turn)

    def joined(self, other: KeySet) -> KeySet:
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
            (*self.in_turn, *other.in_turn),
            (*self.left_out, *other.left_out),
        )

    @property
    def keys(self) -> tuple[VerificationKey, ...]:
        """Every key of the set."""
        return (*self.by_kid.values(), *self.in_turn)


def _entries(mapping: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
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
    names = {name for entry in signing if (name := algorithm_of(entry)) in ALGORITHMS}
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
class Parts:
    """A compact JWS taken apart (RFC 7515 7.1), nothing of it believed."""

    signing_input: bytes
    header: dict[str, Any]
    payload: bytes
    signature: bytes


def verify(token: str, keys: KeySet, *, maximum: int = MAXIMUM_TOKEN) -> VerifiedToken:
    """Check the signature of a token: every step in turn, the cheap ones first.

    Args:
        token: compact serialization, without the word Bearer.
        keys: the keys to trust.
        maximum: bytes of the longest token that is looked at.

    Raises:
        InvalidToken: anything at all is wrong; `check` names the step, `reason` says what.
    """
    parts = split(token, maximum=maximum)
    check_header(parts.header, keys.spec)
    key = check_signature(parts, candidates(parts.header, keys))
    return VerifiedToken(parts.header, parts.payload, key)


def split(token: str, *, maximum: int = MAXIMUM_TOKEN) -> Parts:
    """Take a token apart, strictly; nothing is verified. Steps `length`, `form` and `header`.

    Raises:
        InvalidToken: too long, not three segments of canonical base64url, no JSON object in front.
    """
    check_length(token, maximum)
    first, second, third = segments(token)
    header, payload, signature = (
        _decoded(first, "header"),
        _decoded(second, "payload"),
        _decoded(third, "signature"),
    )
    return Parts(f"{first}.{second}".encode("ascii"), read_header(header), payload, signature)


def check_length(token: str, maximum: int) -> None:
    """Step `length`, before anything else: what is too long costs nothing.

    Raises:
        InvalidToken: it is longer than `maximum` bytes, or no text.
    """
    if not isinstance(token, str):
        raise InvalidToken("the token is not text", check="form")
    if len(token) > maximum:
        raise InvalidToken(f"the token is longer than {maximum} bytes", check="length")


def segments(token: str) -> tuple[str, str, str]:
    """The first half of step `form`: header, payload and signature, still encoded.

    Raises:
        InvalidToken: there are not three.
    """
    if token.count(".") != 2:
        raise InvalidToken("the token does not have three segments", check="form")
    first, second, third = token.split(".")
    return first, second, third


def _decoded(segment: str, name: str) -> bytes:
    """The other half of step `form`."""
    try:
        return decode_base64url(segment)
    except NotStrict as failure:
        raise InvalidToken(f"the {name} {failure}", check="form") from None


def read_header(data: bytes) -> dict[str, Any]:
    """Step `header`: what a token says of itself, as it stands there.

    Raises:
        InvalidToken: the bytes are no strict JSON object.
    """
    try:
        return parse_object(data)
    except NotStrict as failure:
        raise _bad_header(f"the header {failure}") from None


def check_header(header: Mapping[str, Any], spec: Spec) -> None:
    """Step `header`: what a token may say of itself (RFC 7515 4.1, RFC 8725 3.11).

    Raises:
        InvalidToken: another algorithm, another kind of token, or what is not supported here.
    """
    if header.get("alg") != spec.name:
        raise _bad_header(f"the header's alg is not {spec.name}")
    for name in _REFUSED:
        if name in header:
            raise _bad_header(f"the header has {name}, which is not accepted")
    if "typ" in header:
        _check_type(header["typ"])
    if "cty" in header:
        raise _bad_header("the header has cty: a token in a token is not accepted")
    if not isinstance(header.get("kid", ""), str):
        raise _bad_header("the header's kid is not a string")


def _check_type(value: object) -> None:
    """RFC 9068 4 and RFC 7519 5.1; tokens for other purposes say so here."""
    if not isinstance(value, str) or value.lower() not in _TYPES:
        raise _bad_header("the header's typ is not that of an access token")


def _bad_header(reason: str) -> InvalidToken:
    return InvalidToken(reason, check="header")


def candidates(header: Mapping[str, Any], keys: KeySet) -> tuple[VerificationKey, ...]:
    """Step `key`: the key that `kid` names, else the nameless ones (contract.md 6).

    A token without `kid` may also be of a JWKS's only key.

    Raises:
        InvalidToken: there is none.
    """
    kid = header.get("kid")
    if kid is not None and kid in keys.by_kid:
        return (keys.by_kid[kid],)
    only = keys.by_kid.values() if kid is None and len(keys.by_kid) == 1 else ()
    found = (*keys.in_turn, *only)
    if not found:
        raise InvalidToken("no key of the set has the token's kid", check="key")
    return found


def check_signature(parts: Parts, found: Iterable[VerificationKey]) -> VerificationKey:
    """Step `signature`: the first of the keys that the token was signed for with.

    Raises:
        InvalidToken: with none of them.
    """
    for key in found:
        if _signed_by(key, parts):
            return key
    raise InvalidToken("the signature does not hold", check="signature")


def _signed_by(key: VerificationKey, parts: Parts) -> bool:
    if not 0 < len(parts.signature) <= _MAXIMUM_SIGNATURE:
        return False
    algorithm = _pyjwt.get_algorithm_by_name(key.spec.name)
    try:
        return bool(algorithm.verify(parts.signing_input, key.material, parts.signature))
    except Exception:
        # Arithmetic libraries refuse odd input in many ways; none of them is a pass.
        return False
