"""Verify JWS signatures (RFC 7515): from a compact token and a key set to header and payload.

The checks are `length`, `form`, `header`, `key` and `signature`, each a function. For any input
each check returns a result or raises `errors.InvalidToken`, nothing else. PyJWT and
`cryptography` do the arithmetic only: the header never selects an algorithm, a key or an address
(RFC 8725 3.1, 3.10; decision 31). PyJWT compares HMACs in constant time. The module
`claims` checks the claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jwt.api_jws import PyJWS

from agentctl.auth.keys.material import VerificationKey
from agentctl.auth.tokens.algorithms import ALGORITHMS, MAXIMUM_TOKEN, AlgorithmSpec, get_algorithm
from agentctl.auth.tokens.jwk import SkippedKey, algorithm_of_jwk, key_from_jwk, reason_to_skip
from agentctl.errors import InvalidKey, InvalidToken
from agentctl.records.strict import NotStrict, decode_base64url, parse_object
from agentctl.records.text import is_storable

_MAXIMUM_SIGNATURE = 1_024
"""Bytes of the signature of an RSA key with 8192 bits, the longest of all."""

_NO_KID = "it has no kid and the set has several keys"

_ACCEPTED_TYPES = frozenset({"jwt", "at+jwt", "application/at+jwt"})
"""The values of `typ` of access tokens, in lower case (RFC 7519 5.1, RFC 9068 2.1)."""

_REJECTED_MEMBERS = ("b64", "crit", "enc", "zip")
"""Header members that change how the other parts are read (RFC 7797, RFC 7515 4.1.11, RFC 7516)."""

_pyjwt = PyJWS()


@dataclass(frozen=True, slots=True)
class KeySet:
    """The verification keys of a server, all for one algorithm."""

    spec: AlgorithmSpec
    """The algorithm, the only one that a token may name."""

    by_kid: Mapping[str | None, VerificationKey]
    """The keys of JWKS, by `kid`. The only key of a JWKS may have the `kid` None."""

    unnamed: tuple[VerificationKey, ...] = ()
    """PEM keys and shared secrets, which have no `kid` and are tried in order."""

    skipped: tuple[SkippedKey, ...] = ()
    """Entries of the JWKS that are for another purpose, or that cannot be used."""

    @classmethod
    def from_jwks(cls, mapping: Mapping[str, Any], *, algorithm: str | None = None) -> KeySet:
        """Build a key set from the usable keys of a JWKS.

        Entries that cannot be used are left out and are in `skipped` (RFC 7517 5): one foreign
        entry must not make the tokens of the other keys invalid. A member that is null counts as
        absent, as libraries write the members that a key does not have.

        Args:
            mapping: the parsed document, `{"keys": [...]}`.
            algorithm: the algorithm of tokens. None takes the one that all keys share: their
                `alg`, else the default of their type, such as RS256 for RSA.

        Raises:
            InvalidKey: the document is malformed, or it has no usable key; then the error is about
                the first entry that someone has to correct.
        """
        entries = _read_entries(mapping)
        if algorithm is None:
            algorithm = _find_common_algorithm(entries)

        spec = get_algorithm(algorithm)
        loader = _EntryLoader(spec)
        for number, entry in enumerate(entries, start=1):
            loader.load(number, entry)

        by_kid = loader.select_keys()
        if not by_kid:
            raise loader.first_failure or InvalidKey(
                f"The JWKS has no usable key for {spec.name}", cause=loader.describe_faults()
            )
        return cls(spec, by_kid, skipped=loader.sorted_skipped())

    @classmethod
    def from_keys(cls, spec: AlgorithmSpec, keys: Iterable[VerificationKey]) -> KeySet:
        """Build a key set from keys without `kid`, tried in order; InvalidKey for no key."""
        in_turn = tuple(keys)
        if not in_turn:
            raise InvalidKey("There is no verification key")
        return cls(spec, {}, in_turn)

    def merge(self, other: KeySet) -> KeySet:
        """Return a key set with the keys of both sets.

        Raises:
            InvalidKey: the sets have different algorithms, or different keys with the same `kid`,
                which would leave open which of them verifies a token.
        """
        if self.spec != other.spec:
            raise InvalidKey("The key sets are for different algorithms")

        for kid in self.by_kid.keys() & other.by_kid.keys():
            if self.by_kid[kid] != other.by_kid[kid]:
                name = "without kid" if kid is None else f"with the kid {kid[:100]!r}"
                hint = "remove one of the keys, or give it another kid"
                raise InvalidKey(f"Two key sets have different keys {name}", hint=hint)

        return KeySet(
            self.spec,
            {**self.by_kid, **other.by_kid},
            (*self.unnamed, *other.unnamed),
            (*self.skipped, *other.skipped),
        )

    @property
    def keys(self) -> tuple[VerificationKey, ...]:
        """All keys, with and without a `kid`."""
        return (*self.by_kid.values(), *self.unnamed)

    @property
    def faults(self) -> tuple[SkippedKey, ...]:
        """The skipped entries that someone has to correct, such as a weak key."""
        return tuple(entry for entry in self.skipped if entry.is_fault)


class _EntryLoader:
    """Sorts the entries of one JWKS into usable keys and skipped entries."""

    def __init__(self, spec: AlgorithmSpec) -> None:
        self._spec = spec
        self._keys: list[tuple[int, VerificationKey]] = []
        self._skipped: list[SkippedKey] = []

        self.first_failure: InvalidKey | None = None
        """The reason why the first faulty entry is not loaded; None without such entries."""

    def load(self, number: int, entry: Mapping[str, Any] | None) -> None:
        """Load an entry; a faulty one is recorded and raises nothing.

        Args:
            number: the position of the entry in the document, from 1.
            entry: its members; None for an entry that is not an object.
        """
        label = f"JWKS key {number}"
        kid = None if entry is None else entry.get("kid")
        if not isinstance(kid, str) or not is_storable(kid):
            kid = None

        try:
            if entry is None:
                raise InvalidKey(f"{label} is not an object")
            if entry.get("kty") == "oct" and self._spec.family != "oct":
                raise InvalidKey(f"{label} is a shared secret among public keys")

            reason = reason_to_skip(entry, self._spec, label)
            if reason is None:
                self._keys.append((number, key_from_jwk(entry, self._spec, label)))
            else:
                self._skipped.append(SkippedKey(kid, reason, number))
        except InvalidKey as failure:
            if self.first_failure is None:
                self.first_failure = failure
            self._skip_fault(number, kid, f"it{failure.detail.removeprefix(label)}")

    def select_keys(self) -> dict[str | None, VerificationKey]:
        """Return the keys by `kid`; keys that no `kid` tells apart are skipped as faults."""
        if len(self._keys) > 1:
            for number, key in self._keys:
                if key.kid is None:
                    self._skip_fault(number, None, _NO_KID)
            self._keys = [(number, key) for number, key in self._keys if key.kid is not None]

        by_kid: dict[str | None, VerificationKey] = {}
        for _, key in self._keys:
            by_kid.setdefault(key.kid, key)

        # Which of two keys with one `kid` is meant is open, so neither verifies a token. The same
        # key twice is harmless.
        ambiguous = {key.kid for _, key in self._keys if by_kid[key.kid] != key}
        for number, key in self._keys:
            if key.kid in ambiguous:
                self._skip_fault(number, key.kid, "another key of the set has the same kid")
        return {kid: key for kid, key in by_kid.items() if kid not in ambiguous}

    def sorted_skipped(self) -> tuple[SkippedKey, ...]:
        """Return the skipped entries in the order of the document."""
        return tuple(sorted(self._skipped, key=lambda entry: entry.number))

    def describe_faults(self) -> str:
        """Return the first three faults as a clause; an empty text without faults."""
        faults = [entry for entry in self.sorted_skipped() if entry.is_fault]
        return "; ".join(f"{entry.label}: {entry.reason}" for entry in faults[:3])

    def _skip_fault(self, number: int, kid: str | None, reason: str) -> None:
        self._skipped.append(SkippedKey(kid, reason, number, is_fault=True))


def _read_entries(mapping: Mapping[str, Any]) -> list[Mapping[str, Any] | None]:
    """Return the entries without members that are null; None for an entry that is not an object."""
    entries = mapping.get("keys") if isinstance(mapping, Mapping) else None
    if not isinstance(entries, list):
        raise InvalidKey('The JWKS is not an object with an array "keys"')

    entries_without_nulls = list[Mapping[str, Any] | None]()
    for entry in entries:
        if isinstance(entry, Mapping):
            entry = {name: value for name, value in entry.items() if value is not None}
        else:
            entry = None
        entries_without_nulls.append(entry)
    return entries_without_nulls


def _find_common_algorithm(entries: list[Mapping[str, Any] | None]) -> str:
    """Return the algorithm that all signing keys share; RS256 if no entry is a signing key.

    Raises:
        InvalidKey: the keys are for several algorithms.
    """
    names = set[str]()
    for entry in entries:
        if entry is None or entry.get("use", "sig") != "sig":
            continue
        name = algorithm_of_jwk(entry)
        if name in ALGORITHMS:
            names.add(name)

    if len(names) > 1:
        raise InvalidKey("The JWKS has keys for several algorithms", hint="name the one to use")
    return names.pop() if names else "RS256"


@dataclass(frozen=True, slots=True)
class VerifiedToken:
    """The payload of a token with a valid signature; its claims are not checked yet."""

    header: dict[str, Any]
    payload: bytes
    key: VerificationKey


@dataclass(frozen=True, slots=True)
class TokenParts:
    """The decoded parts of a compact JWS (RFC 7515 7.1), not verified."""

    signing_input: bytes
    header: dict[str, Any]
    payload: bytes
    signature: bytes


def verify_token(token: str, keys: KeySet) -> VerifiedToken:
    """Verify the signature of a token, with the cheap checks first.

    Args:
        token: the compact serialization, without the word Bearer.

    Raises:
        InvalidToken: `check` names the failed check, `reason` describes the failure.
    """
    parts = parse_token(token)
    check_header(parts.header, keys.spec)
    key = check_signature(parts, find_candidate_keys(parts.header, keys))
    return VerifiedToken(parts.header, parts.payload, key)


def parse_token(token: str) -> TokenParts:
    """Run the checks `length` and `form`, and parse the header. Nothing is verified.

    Raises:
        InvalidToken: the token is too long, does not have three segments of canonical base64url,
            or its header is not a strict JSON object.
    """
    check_length(token)
    first, second, third = split_segments(token)
    header = _decode_segment(first, "header")
    payload = _decode_segment(second, "payload")
    signature = _decode_segment(third, "signature")
    return TokenParts(f"{first}.{second}".encode("ascii"), parse_header(header), payload, signature)


def check_length(token: str) -> None:
    """Run the check `length` first, so that a long token costs nothing."""
    if not isinstance(token, str):
        raise InvalidToken("the token is not text", check="form")
    if len(token) > MAXIMUM_TOKEN:
        raise InvalidToken(f"the token is longer than {MAXIMUM_TOKEN} bytes", check="length")


def split_segments(token: str) -> tuple[str, str, str]:
    """Run the first half of the check `form`: return the three encoded segments."""
    if token.count(".") != 2:
        raise InvalidToken("the token does not have three segments", check="form")
    first, second, third = token.split(".")
    return first, second, third


def _decode_segment(segment: str, name: str) -> bytes:
    try:
        return decode_base64url(segment)
    except NotStrict as failure:
        raise InvalidToken(f"the {name} {failure}", check="form") from None


def parse_header(data: bytes) -> dict[str, Any]:
    """Parse the header for the check `header`."""
    try:
        return parse_object(data)
    except NotStrict as failure:
        raise _invalid_header(f"the header {failure}") from None


def check_header(header: Mapping[str, Any], spec: AlgorithmSpec) -> None:
    """Run the check `header` (RFC 7515 4.1, RFC 8725 3.11).

    Raises:
        InvalidToken: another algorithm, another type of token, or an unsupported member.
    """
    if header.get("alg") != spec.name:
        raise _invalid_header(f"the header's alg is not {spec.name}")

    for name in _REJECTED_MEMBERS:
        if name in header:
            raise _invalid_header(f"the header has {name}, which is not accepted")

    # The `typ` of tokens for other purposes is rejected (RFC 9068 4, RFC 7519 5.1).
    typ = header.get("typ", "JWT")
    if not isinstance(typ, str) or typ.lower() not in _ACCEPTED_TYPES:
        raise _invalid_header("the header's typ is not that of an access token")

    if "cty" in header:
        raise _invalid_header("the header has cty: a token in a token is not accepted")
    if not isinstance(header.get("kid", ""), str):
        raise _invalid_header("the header's kid is not a string")


def _invalid_header(reason: str) -> InvalidToken:
    return InvalidToken(reason, check="header")


def find_candidate_keys(header: Mapping[str, Any], keys: KeySet) -> tuple[VerificationKey, ...]:
    """Run the check `key`: return the key with the token's `kid`, else the keys without a `kid`.

    A token without `kid` may also be signed with the only key of a JWKS
    (docs/contract.md "Authentication").
    """
    kid = header.get("kid")
    if kid is not None and kid in keys.by_kid:
        return (keys.by_kid[kid],)

    candidates = list(keys.unnamed)
    if kid is None and len(keys.by_kid) == 1:
        candidates += keys.by_kid.values()
    elif kid is None and None in keys.by_kid:
        candidates.append(keys.by_kid[None])

    if not candidates:
        raise InvalidToken("no key of the set has the token's kid", check="key")
    return tuple(candidates)


def check_signature(parts: TokenParts, keys: Iterable[VerificationKey]) -> VerificationKey:
    """Run the check `signature`: return the key that verifies it; InvalidToken if none does."""
    for key in keys:
        if _is_signed_by(key, parts):
            return key
    raise InvalidToken("the signature is not valid", check="signature")


def _is_signed_by(key: VerificationKey, parts: TokenParts) -> bool:
    if not 0 < len(parts.signature) <= _MAXIMUM_SIGNATURE:
        return False

    # The algorithm is that of the key, not of the header (RFC 8725 3.1).
    algorithm = _pyjwt.get_algorithm_by_name(key.spec.name)
    try:
        return bool(algorithm.verify(parts.signing_input, key.material, parts.signature))
    except Exception:
        # The libraries reject malformed input with various exceptions: none is a success.
        return False
