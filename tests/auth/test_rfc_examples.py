"""The examples of RFC 7515, 7517, 7519, 7638 and 8037 verify."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from agentctl.auth.tokens.jwk import SkippedKey, jwk_thumbprint
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.errors import InvalidKey, InvalidToken
from tests.kit.forged_tokens import b64

_JOE = (
    "eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ"
)
_JOE_TEXT = b'{"iss":"joe",\r\n "exp":1300819380,\r\n "http://example.com/is_root":true}'

A1_KEY = {
    "kty": "oct",
    "k": "AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow",
}
A2_KEY = {
    "kty": "RSA",
    "n": "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1"
    "Pt0Bm4d4QlL-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSX"
    "ndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5Ih"
    "lJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ",
    "e": "AQAB",
}
A3_KEY = {
    "kty": "EC",
    "crv": "P-256",
    "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
    "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0",
}
A4_KEY = {
    "kty": "EC",
    "crv": "P-521",
    "x": "AekpBQ8ST8a8VcfVOTNl353vSrDCLLJXmPk06wTjxrrjcBpXp5EOnYG_NjFZ6OvLFV1jSfS9tsz4qUxcWceqwQGk",
    "y": "ADSmRA43Z1DSNx_RvcLI87cdL07l6jQyyBXMoxVg_l2Th-x3S1WDhjDly79ajL4Kkd0AZMaZmh9ubmf63e3kyMj2",
}
ED_KEY = {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}

VECTORS = {
    "RFC 7515 A.1": (
        A1_KEY,
        f"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.{_JOE}."
        "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        _JOE_TEXT,
    ),
    "RFC 7515 A.2": (
        A2_KEY,
        f"eyJhbGciOiJSUzI1NiJ9.{_JOE}."
        "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W"
        "2Fp5jujGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkS"
        "jtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnv"
        "Wh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw",
        _JOE_TEXT,
    ),
    "RFC 7515 A.3": (
        A3_KEY,
        f"eyJhbGciOiJFUzI1NiJ9.{_JOE}."
        "DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q",
        _JOE_TEXT,
    ),
    "RFC 7515 A.4": (
        A4_KEY,
        "eyJhbGciOiJFUzUxMiJ9.UGF5bG9hZA."
        "AdwMgeerwtHoh-l192l60hp9wAHZFVJbLfD_UxMi70cwnZOYaRI1bKPWROc-mZZqwqT2SI-KGDKB34XO0aw_7Xdt"
        "AG8GaSwFKdCAPZgoXD2YBJZCPEX3xKpRwcdOO8KpEHwJjyqOgzDO7iKvU8vcnwNrmxYbSW9ERBXukOXolLzeO_Jn",
        b"Payload",
    ),
    "RFC 8037 A.4": (
        ED_KEY,
        "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc."
        "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        b"Example of Ed25519 signing",
    ),
}
_CASES = pytest.mark.parametrize(("key", "token", "payload"), VECTORS.values(), ids=VECTORS)


@_CASES
def test_example_token_verifies(key: dict[str, Any], token: str, payload: bytes) -> None:
    assert verify_token(token, KeySet.from_jwks({"keys": [key]})).payload == payload


@_CASES
def test_changed_payload_is_rejected(key: dict[str, Any], token: str, payload: bytes) -> None:
    first, second, third = token.split(".")
    changed = ("A" if second[0] != "A" else "B") + second[1:]
    with pytest.raises(InvalidToken):
        verify_token(f"{first}.{changed}.{third}", KeySet.from_jwks({"keys": [key]}))


REFUSED = {
    "RFC 7515 A.5, RFC 7519 6.1: unsecured": f"eyJhbGciOiJub25lIn0.{_JOE}.",
    "RFC 7515 A.6: general JSON": json.dumps(
        {"payload": _JOE, "signatures": [{"protected": "eyJhbGciOiJSUzI1NiJ9", "signature": "x"}]}
    ),
    "RFC 7515 A.7: flattened JSON": json.dumps(
        {"payload": _JOE, "protected": "eyJhbGciOiJFUzI1NiJ9", "signature": "x"}
    ),
    "RFC 7797 4.2: payload not encoded": "eyJhbGciOiJIUzI1NiIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19"
    "..A5dxf2s96_n5FLueVuW1Z_vh161FwXZC4YLPff6dmDY",
    "RFC 7797 4.1: with its payload": "eyJhbGciOiJIUzI1NiIsImI2NCI6ZmFsc2UsImNyaXQiOlsiYjY0Il19"
    ".JC4wMg.A5dxf2s96_n5FLueVuW1Z_vh161FwXZC4YLPff6dmDY",
}


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("key", [A1_KEY, A2_KEY, A3_KEY], ids=["oct", "RSA", "EC"])
def test_unsigned_examples_are_rejected(text: str, key: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        verify_token(text, KeySet.from_jwks({"keys": [key]}))


A1_7517 = {
    "kty": "EC",
    "crv": "P-256",
    "x": "MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4",
    "y": "4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM",
    "use": "enc",
    "kid": "1",
}


def test_example_jwks_is_loaded() -> None:
    """A.1 has a key to encrypt with and one to verify with."""
    signing = {**A2_KEY, "alg": "RS256", "kid": "2011-04-29"}
    keys = KeySet.from_jwks({"keys": [A1_7517, signing]})
    assert [key.kid for key in keys.keys] == ["2011-04-29"]
    assert keys.skipped == (SkippedKey("1", "it is for another use", 1),)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(
            {**A1_7517, "use": "sig", "d": "870MB6gfuTJ4HtUnUvYMyJpr5eUZNP4Bk43bVdj3eAE"},
            id="RFC 7517 A.2",
        ),
        pytest.param(
            {**A3_KEY, "d": "jpsQnnGQmL-YBIffH1136cspYG6-0iY7X1fCE9-E9LI"}, id="RFC 7515 A.3"
        ),
        pytest.param(
            {**ED_KEY, "d": "nWGxne_9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A"}, id="RFC 8037 A.1"
        ),
    ],
)
def test_example_private_keys_are_rejected(key: dict[str, Any]) -> None:
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [key]})


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        pytest.param(
            {
                "kty": "RSA",
                "n": "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFx"
                "uhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6"
                "Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n"
                "91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF4"
                "4-csFCur-kEgU8awapJzKnqDKgw",
                "e": "AQAB",
                "alg": "RS256",
                "kid": "2011-04-29",
            },
            "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs",
            id="RFC 7638 3.1",
        ),
        pytest.param(ED_KEY, "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k", id="RFC 8037 A.3"),
    ],
)
def test_example_thumbprints_are_equal(key: dict[str, Any], expected: str) -> None:
    assert jwk_thumbprint(key) == expected


@pytest.mark.parametrize("key", [A1_KEY, A3_KEY, A4_KEY], ids=["oct", "P-256", "P-521"])
def test_other_key_types_have_thumbprints(key: dict[str, Any]) -> None:
    """RFC 7638 3.2: the required members in the order of their names, without white space."""
    text = ",".join(f'"{name}":"{key[name]}"' for name in sorted(key))
    digest = hashlib.sha256(f"{{{text}}}".encode()).digest()
    assert jwk_thumbprint({**key, "kid": "a", "use": "sig"}) == b64(digest)


@pytest.mark.parametrize("key", [{}, {"kty": "new"}, {"kty": "RSA", "n": "x"}])
def test_incomplete_key_has_no_thumbprint(key: dict[str, Any]) -> None:
    with pytest.raises(InvalidKey):
        jwk_thumbprint(key)
