"""Signed statements: heads of the audit log, and receipts of approvals.

A statement is a compact JWS with EdDSA (RFC 7515, RFC 8037), so any JOSE library verifies it. Its
`typ` names what it states: a statement is never accepted as a token, nor as another statement
(RFC 8725 3.11).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from agentctl.errors import InvalidStatement, InvalidToken
from agentctl.light_dataclass import dataclass

if TYPE_CHECKING:
    from agentctl.auth.keys.material import VerificationKey
    from agentctl.auth.keys.signing import SigningKey

ALGORITHM = "EdDSA"

StatementType = Literal["audit-head", "approval-receipt"]


@dataclass(frozen=True, slots=True)
class StatementKey:
    """The private key of statements."""

    material: SigningKey
    kid: str

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
