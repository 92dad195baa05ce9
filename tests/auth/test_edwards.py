"""Which Ed25519 public keys are sound (RFC 8032), and that others are refused when loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from agentctl.auth.keys.edwards import is_sound_point
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidKey
from tests.auth.forge import b64, ed, ed_pair, token

PRIME = 2**255 - 19
ORDER_8 = "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"

GOOD = {
    "RFC 8032 7.1 test 1": "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "RFC 8032 7.1 test 2": "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "RFC 8032 7.1 test 3": "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    "base point": "5866666666666666666666666666666666666666666666666666666666666666",
}


def little(y: int, sign: int = 0) -> str:
    return (y | sign << 255).to_bytes(32, "little").hex()


def negated(encoded: str) -> str:
    data = bytes.fromhex(encoded)
    return (data[:31] + bytes([data[31] ^ 0x80])).hex()


def turned(encoded: str) -> str:
    """The same point, its y written as y + p; only possible for y below 19."""
    number = int.from_bytes(bytes.fromhex(encoded), "little")
    return (number + PRIME).to_bytes(32, "little").hex()


ORDER_8_OTHER = little(PRIME - int.from_bytes(bytes.fromhex(ORDER_8), "little"))

BAD = {
    "order 1": little(1),
    "order 2": little(PRIME - 1),
    "order 4": little(0),
    "order 4, other": little(0, 1),
    "order 8": ORDER_8,
    "order 8, negated": negated(ORDER_8),
    "order 8, third": ORDER_8_OTHER,
    "order 8, fourth": negated(ORDER_8_OTHER),
    "order 1, x of minus zero": little(1, 1),
    "order 2, x of minus zero": little(PRIME - 1, 1),
    "order 1, beyond p": turned(little(1)),
    "order 4, beyond p": turned(little(0)),
    "order 4, beyond p, other": negated(turned(little(0))),
    "y = p + 3": little(PRIME + 3),
    "all ones": "ff" * 32,
    "y of no point": little(2),
    "y of no point, other sign": little(2, 1),
}


@pytest.mark.parametrize("encoded", GOOD.values(), ids=GOOD)
def test_good_keys(encoded: str) -> None:
    assert is_sound_point(bytes.fromhex(encoded))
    assert is_sound_point(bytes.fromhex(negated(encoded)))


def test_the_points_of_small_order_are_what_they_are_called() -> None:
    """The four of order 8 differ, and nothing but sign and mirror makes them."""
    assert (
        len({bytes.fromhex(text) for name, text in BAD.items() if name.startswith("order 8")}) == 4
    )


@pytest.mark.parametrize("encoded", BAD.values(), ids=BAD)
def test_bad_keys_are_refused_in_every_form(encoded: str, tmp_path: Path) -> None:
    raw = bytes.fromhex(encoded)
    assert not is_sound_point(raw)
    public = Ed25519PublicKey.from_public_bytes(raw)
    pem = public.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()
    with pytest.raises(InvalidKey):
        KeySet.from_pems([pem], "EdDSA")
    jwks = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": b64(raw)}]}
    with pytest.raises(InvalidKey):
        KeySet.from_jwks(jwks)
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(jwks))
    with pytest.raises(InvalidKey):
        Verifier(Settings(authorization=Authorization(algorithm="EdDSA", jwks_file=path)))


def test_generated_keys_are_sound() -> None:
    for _ in range(30):
        assert is_sound_point(Ed25519PrivateKey.generate().public_key().public_bytes_raw())


def test_a_point_that_has_a_part_of_small_order_is_refused() -> None:
    """The sum of a good key and the point of order 2 is (-x, -y)."""
    raw = ed_pair().public.public_bytes_raw()
    number = int.from_bytes(raw, "little")
    sign, y = number >> 255, number & (1 << 255) - 1
    assert is_sound_point(raw)
    assert not is_sound_point(bytes.fromhex(little(PRIME - y, 1 - sign)))


def test_a_token_for_a_sound_key_verifies() -> None:
    keys = KeySet.from_pems([ed_pair().pem], "EdDSA")
    assert verify_token(token({"alg": "EdDSA"}, {}, ed(ed_pair())), keys)
