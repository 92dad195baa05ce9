"""The hostile tokens of `tests/auth/hostile.py`, given to PyJWT alone.

`python -m tests.benchmarks.reasons.tokens` counts the tokens that `jwt.decode` accepts and the
exceptions that are no `jwt.InvalidTokenError`. PyJWT gets the same key, algorithm and claim
rules; the minimum key length is enforced. The server's verifier rejects all of them (that is what
`tests/auth/test_hostile_tokens.py` tests).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any
from unittest import mock

import jwt

from agentctl.config.settings import Authorization
from tests.auth.bad_claims import NOW
from tests.auth.hostile import CASES, SERVERS

__all__ = ["accepted", "main"]


class _Clock(jwt.api_jwt.datetime):  # type: ignore[name-defined, misc]
    """The clock of the tests."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return cls.fromtimestamp(NOW, tz)


def decode(text: str, rules: Authorization) -> dict[str, Any]:
    """Decode a token as the documentation of PyJWT does, under the same rules."""
    required = [name for name in ("exp", "sub") if getattr(rules, f"require_{name}")]
    options: Any = {
        "require": required,
        "verify_aud": rules.verify_audience,
        "enforce_minimum_key_length": True,
    }
    return jwt.decode(
        text,
        rules.verification_keys[0],
        algorithms=[rules.algorithm],
        audience=(rules.audience or "agentctl") if rules.verify_audience else None,
        issuer=rules.issuer or None,
        leeway=0,
        options=options,
    )


def accepted() -> tuple[Counter[str], Counter[str], int]:
    """Return accepted tokens and foreign exceptions by case id, and the number of tokens."""
    taken = Counter[str]()
    raised = Counter[str]()
    count = 0
    for name, case in CASES.items():
        if case.check == "transport":
            continue
        count += 1
        text = case.header.removeprefix("Bearer ")
        try:
            decode(text, SERVERS[case.server])
        except jwt.InvalidTokenError:
            continue
        except Exception as error:
            raised[type(error).__name__] += 1
        else:
            taken[name.split()[0]] += 1
    return taken, raised, count


def main() -> None:
    """Print the counts by case id of docs/security-cases.md."""
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    with mock.patch("jwt.api_jwt.datetime", _Clock):
        taken, raised, count = accepted()
    print(f"PyJWT {jwt.__version__}: {sum(taken.values())} of {count} hostile tokens accepted")
    print(f"by case: {', '.join(f'{name} {number}' for name, number in sorted(taken.items()))}")
    print(f"other exceptions: {dict(raised) or 'none'} ({time.monotonic() - began:.1f} s)")


if __name__ == "__main__":
    main()
