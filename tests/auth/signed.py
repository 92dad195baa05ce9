"""Tokens that are signed with the key of a deployment, without the code under test."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from tests.kit.deployment import Deployment
from tests.kit.forged_tokens import Pair, Signer, rs, token

__all__ = ["signed"]


def signed(deployment: Deployment, subject: str | None, *scopes: str, **claims: Any) -> str:
    """A token of a world, good for an hour unless `exp` (seconds since the epoch) is given."""
    given: dict[str, Any] = {"scopes": scopes, "exp": int(time.time()) + 3_600}
    if subject is not None:
        given["sub"] = subject
    return token({"alg": "RS256", "typ": "JWT"}, given | claims, _signer(deployment.folder))


@cache
def _signer(folder: Path) -> Signer:
    private = load_pem_private_key((folder / "keys" / "signing.pem").read_bytes(), None)
    return rs(Pair(private))
