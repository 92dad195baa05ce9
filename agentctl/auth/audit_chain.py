"""Signed statements: heads of the audit log, and receipts of approvals; the chain of the heads.

A statement is a compact JWS with EdDSA (RFC 7515, RFC 8037), so any JOSE library verifies it. Its
`typ` names what it states: a statement is never accepted as a token, nor as another statement
(RFC 8725 3.11).

A server builds the chain of heads (docs/audit.md), and a command verifies it offline.

A head has the digest of the entries since the head before it, and the hash of that head. So a
change of an entry, or of the order, is found at the head that covers it, and a missing head at the
next one. Only a copy of the heads elsewhere shows that the newest heads are missing, or that the
whole log is an earlier one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agentctl.errors import InvalidStatement, InvalidToken
from agentctl.records.audit import AuditRecord

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.auth.keys.signing import SigningKey

ALGORITHM = "EdDSA"
"""The only algorithm of statements: Ed25519 signatures."""

StatementType = Literal["audit-head", "approval-receipt"]


@dataclass(frozen=True, slots=True)
class StatementKey:
    """The private key of statements."""

    material: SigningKey

    kid: str
    """The thumbprint of the key (RFC 7638)."""

    def sign(self, statement: StatementType, content: dict[str, Any]) -> str:
        """Return a signed statement."""
        from agentctl.auth.keys.signing import build_jws

        payload = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
        return build_jws(payload, self.material, _name_type(statement), self.kid)


def load_statement_key(path: Path) -> StatementKey:
    """Load the private key of `[audit] key_file`.

    Raises:
        InvalidKey: the file is missing, open to other users, or has no Ed25519 key.
    """
    from agentctl.auth.keys.files import read_private_key
    from agentctl.auth.keys.signing import key_thumbprint, load_signing_key
    from agentctl.auth.tokens.algorithms import get_algorithm

    key = load_signing_key(read_private_key(path), get_algorithm(ALGORITHM), f"The key file {path}")
    return StatementKey(key, key_thumbprint(key))


def load_verification_keys(path: Path) -> list[VerificationKey]:
    """Load the public keys of a PEM file, earlier keys included.

    Raises:
        InvalidKey: the file is missing, or has a key that is not an Ed25519 public key.
    """
    from agentctl.auth.keys.files import read_key_file
    from agentctl.auth.keys.material import parse_keys
    from agentctl.auth.tokens.algorithms import get_algorithm

    text = read_key_file(path).decode("utf-8", "replace")
    return parse_keys(text, get_algorithm(ALGORITHM), f"The key file {path}")


def verify_statement(
    token: str, statement: StatementType, keys: list[VerificationKey]
) -> dict[str, Any]:
    """Return the content of a signed statement.

    Raises:
        InvalidStatement: it is malformed, another kind of statement, or not signed by a key.
    """
    from agentctl.auth.tokens.jws import check_signature, parse_token
    from agentctl.records.strict import NotStrict, parse_object

    try:
        parts = parse_token(token)
        if (parts.header.get("alg"), parts.header.get("typ")) != (ALGORITHM, _name_type(statement)):
            raise InvalidStatement(f"it is not a signed {statement}")
        check_signature(parts, keys)
        return parse_object(parts.payload)
    except InvalidToken as failure:
        raise InvalidStatement(failure.reason.replace("the token", "it")) from None
    except NotStrict as failure:
        raise InvalidStatement(f"its content {failure}") from None


def _name_type(statement: StatementType) -> str:
    return f"agentctl-{statement}+jwt"


VERSION = 1
"""The version of the format of heads."""

ENTRY_FIELDS = tuple(AuditRecord.__annotations__)
"""The fields of an entry that its digest covers: the fields of version 1."""

_TYPES: dict[str, type | tuple[type, ...]] = {
    "version": int,
    "number": int,
    "at": str,
    "first_seq": int,
    "last_seq": int,
    "entries": int,
    "digest": str,
    "expired_seq": int,
    "previous": (str, type(None)),
}

_BEFORE_ALL = -(2**63)
"""A number below the numbers of all entries."""

FINDINGS = {
    "HEAD_INVALID": "A head is malformed, or not signed by a key of the file.",
    "HEAD_MISSING": "A head between two others, or before the first one, is missing.",
    "HEAD_BROKEN": "A head does not continue the one before it.",
    "HEAD_UNKNOWN": "The copy of the heads has one that the log does not have.",
    "ENTRIES_CHANGED": "The entries of a head are not those that were signed.",
}
"""The findings of a verification."""


class Head(NamedTuple):
    """The content of a head; see `AuditHeadRecord` for the fields of its record."""

    version: int
    number: int
    at: str
    first_seq: int
    last_seq: int
    entries: int

    digest: str
    """The hash of the entries (`digest_entries`)."""

    expired_seq: int

    previous: str | None
    """The hash of the signed head before it; None for the first head."""


class Difference(NamedTuple):
    """A place where the log differs from the signed one; `code` is one of `FINDINGS`."""

    code: str
    head: int
    detail: str


def digest_entries(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return `sha256:` and the hash of some entries, each one a line of canonical JSON (RFC 8785).

    Args:
        entries: the records of the entries, in the order of their numbers.
    """
    import rfc8785

    digest = hashlib.sha256()
    for entry in entries:
        digest.update(rfc8785.dumps({name: entry[name] for name in ENTRY_FIELDS}) + b"\n")
    return f"sha256:{digest.hexdigest()}"


def _has_digest(entries: Sequence[Mapping[str, Any]], digest: str) -> bool:
    """Return False also for entries without a canonical form, which no server stores."""
    import rfc8785

    with suppress(rfc8785.CanonicalizationError, KeyError):
        return digest_entries(entries) == digest
    return False


def hash_head(token: str) -> str:
    """Return the hash of a signed head, which the next one has as `previous`."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def sign_head(
    key: StatementKey,
    previous: str | None,
    *,
    number: int,
    at: str,
    last_seq: int,
    expired_seq: int,
    entries: Sequence[Mapping[str, Any]],
) -> str:
    """Return the signed head of some entries.

    Args:
        previous: the signed head before it; None for the first head.
        entries: the records of the entries, at least one, in the order of their numbers.
    """
    head = Head(
        version=VERSION,
        number=number,
        at=at,
        first_seq=entries[0]["seq"],
        last_seq=last_seq,
        entries=len(entries),
        digest=digest_entries(entries),
        expired_seq=expired_seq,
        previous=None if previous is None else hash_head(previous),
    )
    return key.sign("audit-head", head._asdict())


def parse_head(content: Mapping[str, Any]) -> Head:
    """Return the head of a verified statement, or of a statement that the server stored itself.

    Raises:
        InvalidStatement: it has other fields, or is of another version.
    """
    if content.keys() != _TYPES.keys() or content["version"] != VERSION:
        raise InvalidStatement("it is not a head of this version")
    if not all(isinstance(content[name], kind) for name, kind in _TYPES.items()):
        raise InvalidStatement("a field of the head has a wrong type")
    return Head(**content)


@dataclass(slots=True)
class Verification:
    """The verification of an audit log."""

    heads: int = 0

    entries: int = 0
    """Number of entries that a head covers."""

    unsigned: int = 0
    """Number of entries that no head covers yet."""

    expired: int = 0
    """Number of heads that lack entries, which were deleted because of their age."""

    last_signed_at: str | None = None
    """Time of the newest head, RFC 3339; None without heads."""

    findings: list[Difference] = field(default_factory=list)

    def report(self, code: str, head: int, detail: str) -> None:
        assert code in FINDINGS
        self.findings.append(Difference(code, head, detail))


async def verify_audit_log(
    tokens: Sequence[str],
    entries: AsyncIterator[Mapping[str, Any]],
    keys: list[VerificationKey],
    copied: Sequence[str] = (),
) -> Verification:
    """Verify the heads and the entries of an audit log.

    Args:
        tokens: all heads of the log, oldest first.
        entries: the records of all entries, newest first.
        keys: the public keys, including earlier keys.
        copied: a copy of the heads that was kept elsewhere, oldest first; it may lack the newest
            heads.
    """
    result = Verification(heads=len(tokens))
    heads = _verify_heads(tokens, keys, result)
    _compare_heads(tokens, copied, keys, result)
    await _verify_entries(heads, entries, result)
    result.findings.sort(key=lambda finding: finding.head)
    return result


def _verify_heads(
    tokens: Sequence[str], keys: list[VerificationKey], result: Verification
) -> list[Head]:
    """Return the valid heads, and report everything else."""
    heads: list[Head] = []
    number = 0
    # The signed head before the current one; None if it is not valid.
    token_before = None

    for token in tokens:
        try:
            head = parse_head(verify_statement(token, "audit-head", keys))
        except InvalidStatement as error:
            number += 1
            token_before = None
            result.report("HEAD_INVALID", number, f"head {number} is not valid: {error.reason}")
            continue

        if head.number > number + 1:
            missing_numbers = f"{number + 1}"
            if head.number > number + 2:
                missing_numbers = f"{number + 1} to {head.number - 1}"
            detail = f"before head {head.number}: {missing_numbers}"
            result.report("HEAD_MISSING", head.number, detail)
        else:
            head_before = heads[-1] if heads else None
            problem = _find_break(head, head_before, token_before)
            if problem:
                result.report("HEAD_BROKEN", head.number, f"head {head.number} {problem}")

        heads.append(head)
        number = head.number
        token_before = token
        result.last_signed_at = head.at

    return heads


def _find_break(head: Head, last: Head | None, token_before: str | None) -> str | None:
    """Describe how a head fails to continue the head before it; None if it continues it.

    Args:
        last: the last valid head before it; None without one.
        token_before: the signed head directly before it; None if that head is not valid.
    """
    if last is None:
        if head.number == 1 and head.previous is not None:
            return "is the first one and names one before it"
        return None

    is_next = head.number == last.number + 1
    if is_next and token_before is not None and head.previous != hash_head(token_before):
        return f"does not name head {last.number} as the one before it"
    if head.number <= last.number:
        return f"comes after head {last.number}"
    if head.last_seq < last.last_seq or head.expired_seq < last.expired_seq:
        return "ends before the one that it follows"
    return None


def _compare_heads(
    tokens: Sequence[str], copied: Sequence[str], keys: list[VerificationKey], result: Verification
) -> None:
    """Report the heads of a copy that the log does not have."""
    present = set(tokens)
    for line, token in enumerate(copied, start=1):
        if token in present:
            continue
        try:
            head = parse_head(verify_statement(token, "audit-head", keys))
        except InvalidStatement as error:
            result.report(
                "HEAD_INVALID", 0, f"line {line} of the copy is not valid: {error.reason}"
            )
            continue

        detail = f"head {head.number}, signed at {head.at}, is in the copy and not in the log"
        result.report("HEAD_UNKNOWN", head.number, detail)


async def _verify_entries(
    heads: Sequence[Head], entries: AsyncIterator[Mapping[str, Any]], result: Verification
) -> None:
    """Compare the entries with the digests, both from the newest on, one head at a time."""
    expired = max((head.expired_seq for head in heads), default=0)
    entry = await anext(entries, None)

    for index in range(len(heads) - 1, -1, -1):
        head = heads[index]
        floor = heads[index - 1].last_seq if index else _BEFORE_ALL

        while entry is not None and entry["seq"] > head.last_seq:
            result.unsigned += 1
            entry = await anext(entries, None)

        covered_entries: list[Mapping[str, Any]] = []
        while entry is not None and entry["seq"] > floor:
            # One entry more than signed is a finding already: the rest is not kept.
            if len(covered_entries) <= head.entries:
                covered_entries.append(entry)
            entry = await anext(entries, None)

        covered_entries.reverse()
        result.entries += len(covered_entries)
        if len(covered_entries) < head.entries and head.last_seq <= expired:
            result.expired += 1
        elif len(covered_entries) != head.entries or not _has_digest(covered_entries, head.digest):
            result.report(
                "ENTRIES_CHANGED", head.number, _describe_change(head, len(covered_entries))
            )

    while entry is not None:
        result.unsigned += 1
        entry = await anext(entries, None)


def _describe_change(head: Head, count: int) -> str:
    where = f"the entries {head.first_seq} to {head.last_seq}"
    if count < head.entries:
        return f"{head.entries - count} of {where} are missing"
    if count > head.entries:
        return f"{where} have more than the {head.entries} that were signed"
    return f"{where} are not those that were signed"
