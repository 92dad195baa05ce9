"""RSA keys of tests: to make one takes as long as ten tests, so the process makes few of them."""

from __future__ import annotations

from collections import Counter

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

__all__ = ["share_rsa_keys"]

_keys: dict[tuple[int, int], list[rsa.RSAPrivateKey]] = {}
"""The keys with an exponent and a size, in the order in which a test gets them."""


@pytest.fixture(autouse=True)
def share_rsa_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the keys of earlier tests to the code of a test that makes keys.

    All keys of a test differ, also from those of fixtures that it shares with other tests: those
    fixtures have been set up before, and have made keys of their own.
    """
    make_key = rsa.generate_private_key
    taken_keys = Counter[tuple[int, int]]()

    def take_key(public_exponent: int, key_size: int) -> rsa.RSAPrivateKey:
        kind = (public_exponent, key_size)
        keys = _keys.setdefault(kind, [])
        number = taken_keys[kind]
        taken_keys[kind] += 1
        if number == len(keys):
            keys.append(make_key(public_exponent, key_size))
        return keys[number]

    monkeypatch.setattr(rsa, "generate_private_key", take_key)
