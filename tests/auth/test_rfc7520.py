"""The signatures of RFC 7520 section 4, by the keys of its section 3."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.errors import InvalidKey, InvalidToken

TEXT = (
    "It\u2019s a dangerous business, Frodo, going out your door. You step onto the road, and if "
    "you don't keep your feet, there\u2019s no knowing where you might be swept off to."
)
PAYLOAD = (
    "SXTigJlzIGEgZGFuZ2Vyb3VzIGJ1c2luZXNzLCBGcm9kbywgZ29pbmcgb3V0IHlvdXIgZG9vci4gWW91IHN0ZXAgb250byB0"
    "aGUgcm9hZCwgYW5kIGlmIHlvdSBkb24ndCBrZWVwIHlvdXIgZmVldCwgdGhlcmXigJlzIG5vIGtub3dpbmcgd2hlcmUgeW91"
    "IG1pZ2h0IGJlIHN3ZXB0IG9mZiB0by4"
)
BILBO = "bilbo.baggins@hobbiton.example"
EC = {
    "kty": "EC",
    "kid": BILBO,
    "use": "sig",
    "crv": "P-521",
    "x": "AHKZLLOsCOzz5cY97ewNUajB957y-C-U88c3v13nmGZx6sYl_oJXu9A5RkTKqjqvjyekWF-7ytDyRXYgCF5cj0Kt",
    "y": "AdymlHvOiLxXkEhayXQnNCvDX4h9htZaCJN34kfmC6pV5OhQHiraVySsUdaQkAgDPrwQrJmbnX9cwlGfP-HqHZR1",
}
RSA = {
    "kty": "RSA",
    "kid": BILBO,
    "use": "sig",
    "n": "n4EPtAOCc9AlkeQHPzHStgAbgs7bTZLwUBZdR8_KuKPEHLd4rHVTeT-O-XV2jRojdNhxJWTDvNd7nqQ0VEiZQHz_"
    "AJmSCpMaJMRBSFKrKb2wqVwGU_NsYOYL-QtiWN2lbzcEe6XC0dApr5ydQLrHqkHHig3RBordaZ6Aj-oBHqFEHYpPe7Tpe-Of"
    "VfHd1E6cS6M1FZcD1NNLYD5lFHpPI9bTwJlsde3uhGqC0ZCuEHg8lhzwOHrtIQbS0FVbb9k3-tVTU4fg_3L_vniUFAKwuC"
    "LqKnS2BYwdq_mzSnbLY7h_qixoR7jig3__kRhuaxwUkRz5iaiQkqgc5gHdrNP5zw",
    "e": "AQAB",
}
OCT = {
    "kty": "oct",
    "kid": "018c0ae5-4d9b-471b-bfd6-eef314bc7037",
    "use": "sig",
    "alg": "HS256",
    "k": "hJtXIZ2uSN5kbQfbtTNWbpdmhkV8FJG-Onbc6mxCcYg",
}

RS256 = "eyJhbGciOiJSUzI1NiIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9"
PS384 = "eyJhbGciOiJQUzM4NCIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9"
ES512 = "eyJhbGciOiJFUzUxMiIsImtpZCI6ImJpbGJvLmJhZ2dpbnNAaG9iYml0b24uZXhhbXBsZSJ9"
HS256 = "eyJhbGciOiJIUzI1NiIsImtpZCI6IjAxOGMwYWU1LTRkOWItNDcxYi1iZmQ2LWVlZjMxNGJjNzAzNyJ9"
MAC = "s0h6KThzkfBBBkLspW1h84VsJZFTsPPqMDA7g1Md7p0"

VECTORS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "4.1 RSA v1.5": (
        "RS256",
        RSA,
        RS256,
        "MRjdkly7_-oTPTS3AXP41iQIGKa80A0ZmTuV5MEaHoxnW2e5CZ5NlKtainoFmKZopdHM1O2U4mwzJdQx996ivp83xugl"
        "II7PNDi84wnB-BDkoBwA78185hX-Es4JIwmDLJK3lfWRa-XtL0RnltuYv746iYTh_qHRD68BNt1uSNCrUCTJDt5aAE6x"
        "8wW1Kt9eRo4QPocSadnHXFxnt8Is9UzpERV0ePPQdLuW3IS_de3xyIrDaLGdjluPxUAhb6L2aXic1U12podGU0KLUQSE"
        "_oI-ZnmKJ3F4uOZDnd6QZWJushZ41Axf_fcIe8u9ipH84ogoree7vjbU5y18kDquDg",
    ),
    "4.2 RSA-PSS": (
        "PS384",
        RSA,
        PS384,
        "cu22eBqkYDKgIlTpzDXGvaFfz6WGoz7fUDcfT0kkOy42miAh2qyBzk1xEsnk2IpN6-tPid6VrklHkqsGqDqHCdP6O8TT"
        "B5dDDItllVo6_1OLPpcbUrhiUSMxbbXUvdvWXzg-UD8biiReQFlfz28zGWVsdiNAUf8ZnyPEgVFn442ZdNqiVJRmBqrY"
        "RXe8P_ijQ7p8Vdz0TTrxUeT3lm8d9shnr2lfJT8ImUjvAA2Xez2Mlp8cBE5awDzT0qI0n6uiP1aCN_2_jLAeQTlqRHtf"
        "a64QQSUmFAAjVKPbByi7xho0uTOcbH510a6GYmJUAfmWjwZ6oD4ifKo8DYM-X72Eaw",
    ),
    "4.3 ECDSA": (
        "ES512",
        EC,
        ES512,
        "AE_R_YZCChjn4791jSQCrdPZCNYqHXCTZH0-JZGYNlaAjP2kqaluUIIUnC9qvbu9Plon7KRTzoNEuT4Va2cmL1eJAQy3"
        "mtPBu_u_sDDyYjnAMDxXPn7XrT0lw-kvAD890jl8e2puQens_IEKBpHABlsbEPX6sFY8OcGDqoRuBomu9xQ2",
    ),
    "4.4 HMAC": ("HS256", OCT, HS256, MAC),
    "4.6 its signature, made compact": (
        "HS256",
        OCT,
        "eyJhbGciOiJIUzI1NiJ9",
        "bWUSVaxorn7bEF1djytBd0kHv70Ly5pvbomzMWSOr20",
    ),
    "4.8 its first signature, made compact": (
        "RS256",
        RSA,
        "eyJhbGciOiJSUzI1NiJ9",
        "MIsjqtVlOpa71KE-Mss8_Nq2YH4FGhiocsqrgi5NvyG53uoimic1tcMdSg-qptrzZc7CG6Svw2Y13TDIqHzTUrL_lR2Z"
        "FcryNFiHkSw129EghGpwkpxaTn_THJTCglNbADko1MZBCdwzJxwqZc-1RlpO2HibUYyXSwO97BSe0_evZKdjvvKSgsIq"
        "jytKSeAMbhMBdMma622_BG5t4sdbuCHtFjp9iJmkio47AIwqkZV1aIZsv33uPUqBBCXbYoQJwt7mxPftHmNlGoOSMxR_"
        "3thmXTCm4US-xiNOyhbm8afKK64jU6_TPtQHiJeQJxz9G3Tx-083B745_AfYOnlC9w",
    ),
    "4.8 its third signature, made compact": ("HS256", OCT, HS256, MAC),
}
_CASES = pytest.mark.parametrize(
    ("alg", "key", "header", "signature"), VECTORS.values(), ids=VECTORS
)


def keys(alg: str, key: dict[str, Any]) -> KeySet:
    return KeySet.from_jwks({"keys": [key]}, algorithm=alg)


@_CASES
def test_example_signature_verifies(
    alg: str, key: dict[str, Any], header: str, signature: str
) -> None:
    found = verify_token(f"{header}.{PAYLOAD}.{signature}", keys(alg, key))
    assert found.payload == TEXT.encode()
    assert found.header["alg"] == alg
    assert found.key.kid == key["kid"]


@_CASES
def test_changed_payload_or_header_is_rejected(
    alg: str, key: dict[str, Any], header: str, signature: str
) -> None:
    trust = keys(alg, key)
    for text in (
        f"{header}.{PAYLOAD[:-1]}w.{signature}",
        f"{header[:-4]}fSAK.{PAYLOAD}.{signature}",
        f"{header}..{signature}",
    ):
        with pytest.raises(InvalidToken):
            verify_token(text, trust)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{HS256}..{MAC}", id="4.5 detached"),
        pytest.param(
            json.dumps({"payload": PAYLOAD, "protected": HS256, "signature": MAC}),
            id="4.6 flattened",
        ),
        pytest.param(
            json.dumps(
                {"payload": PAYLOAD, "signatures": [{"protected": HS256, "signature": MAC}]}
            ),
            id="4.8 general",
        ),
    ],
)
def test_json_serializations_are_rejected(text: str) -> None:
    with pytest.raises(InvalidToken):
        verify_token(text, keys("HS256", OCT))


def test_example_key_verifies_one_algorithm() -> None:
    header, signature = VECTORS["4.2 RSA-PSS"][2:]
    with pytest.raises(InvalidToken):
        verify_token(f"{header}.{PAYLOAD}.{signature}", keys("RS256", RSA))


@pytest.mark.parametrize(
    ("key", "alg"),
    [
        pytest.param(
            {**EC, "d": "AAhRON2r9cqXX1hg-RoI6R1tX5p2rUAYdmpHZoC1XNM5"}, "ES512", id="3.2"
        ),
        pytest.param(
            {**RSA, "d": "bWUC9B-EFRIo8kpGfh0ZuyGPvMNKvYWNtB_ikiH9k20"}, "RS256", id="3.4"
        ),
    ],
)
def test_example_private_keys_are_rejected(key: dict[str, Any], alg: str) -> None:
    with pytest.raises(InvalidKey):
        keys(alg, key)
