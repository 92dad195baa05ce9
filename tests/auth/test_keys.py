"""Keys that are rejected when they are loaded, and key sets with skipped entries."""

from __future__ import annotations

import base64
import datetime
import hashlib
import itertools
import json
import ssl
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from agentctl.auth.keys import signing as keys
from agentctl.auth.tokens.algorithms import ALGORITHMS
from agentctl.auth.tokens.jwk import SkippedKey, public_jwk
from agentctl.auth.tokens.jws import KeySet, verify_token
from agentctl.errors import InvalidKey, InvalidToken
from tests.auth.hostile import confusions
from tests.auth.verifiers import load_texts
from tests.kit.forged_tokens import SECRET, b64, compact, ec_pair, ed_pair, hs, rs, rsa_pair, token
from tests.kit.tables import every_row

PEM = serialization.Encoding.PEM
DER = serialization.Encoding.DER
RSA = rsa_pair(1)
OTHER = rsa_pair(2)
EC = ec_pair()
P384 = ec_pair("P-384")
ED = ed_pair()
RSA_JWK = public_jwk(RSA.public)
OTHER_JWK = public_jwk(OTHER.public)
EC_JWK = public_jwk(EC.public)
ED_JWK = public_jwk(ED.public)
OCT_JWK = {"kty": "oct", "k": b64(SECRET)}


def certificate() -> str:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    builder = x509.CertificateBuilder(name, name, RSA.public, 1, start, start.replace(year=2027))
    return builder.sign(RSA.private, hashes.SHA256()).public_bytes(PEM).decode()


def numbers_pem(modulus: int, exponent: int) -> str:
    public = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(PEM, form).decode()


def explicit(spki: bytes) -> bytes:
    """P-256 written out as parameters, with the key itself as base point (CVE-2020-0601)."""
    point = spki[-65:]
    prime = 2**256 - 2**224 + 2**192 + 2**96 - 1
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    b = 0x5AC635D8AA3A93E7B3EBBD55769886BC651D06B0CC53B0F63BCE3C3E27D2604B
    field = der(
        0x30, bytes.fromhex("06072a8648ce3d0101") + der(2, b"\0" + prime.to_bytes(32, "big"))
    )
    curve = der(0x30, der(4, (prime - 3).to_bytes(32, "big")) + der(4, b.to_bytes(32, "big")))
    parameters = der(
        0x30,
        der(2, b"\1")
        + field
        + curve
        + der(4, point)
        + der(2, b"\0" + order.to_bytes(32, "big"))
        + der(2, b"\1"),
    )
    algorithm = der(0x30, bytes.fromhex("06072a8648ce3d0201") + parameters)
    return der(0x30, algorithm + der(3, b"\0" + point))


def der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes(1 if size < 256 else 2, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


MODULUS = RSA.public.public_numbers().n
PKCS1_PRIVATE = RSA.private.private_bytes(
    PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
).decode()
ENCRYPTED = RSA.private.private_bytes(
    PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
).decode()
SSH = RSA.public.public_bytes(
    serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
).decode()

RAW = MODULUS.to_bytes(256, "big")
POINT = EC.public.public_bytes(
    serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
)
MORE_SHAPES: dict[str, str] = {
    "UTF-16 PEM": RSA.pem.encode("utf-16-le").decode("latin-1"),
    "UTF-16 PEM with BOM": RSA.pem.encode("utf-16").decode("utf-8", "surrogateescape"),
    "PEM with escaped line breaks": RSA.pem.replace("\n", "\\n"),
    "PEM, percent encoded": RSA.pem.replace(" ", "%20").replace("\n", "%0A"),
    "PEM, plus for space": RSA.pem.replace(" ", "+"),
    "PEM in quotes": json.dumps(RSA.pem),
    "SSH body": SSH.split()[1],
    "SSH with options": f"  {SSH}",
    "SSH of Ed25519": ED.public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode(),
    "SSH of P-256": EC.public.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode(),
    "n in hex with colons": RAW.hex(":"),
    "n in hex with a zero in front": "00:" + RAW.hex(":"),
    "n in base64": base64.b64encode(RAW).decode(),
    "n of 3072 bits": b64(rsa_pair(bits=3072).public.public_numbers().n.to_bytes(384, "big")),
    "DER in hex with spaces": RSA.spki(DER).hex(" "),
    "DER in base64 lines": base64.encodebytes(RSA.spki(DER)).decode(),
    "EC DER": b64(EC.spki(DER)),
    "EC point": POINT.decode("utf-8", "surrogateescape"),
    "EC point in hex": POINT.hex(),
    "EC point in base64url": b64(POINT),
    "private DER": b64(
        EC.private.private_bytes(
            DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    ),
    "certificate DER": b64(ssl.PEM_cert_to_DER_cert(certificate())),
    "JWKS with BOM": "\ufeff" + json.dumps({"keys": [EC_JWK]}),
    "JWK over lines": json.dumps(EC_JWK, indent=2),
}
EXPLICIT = """-----BEGIN PUBLIC KEY-----
%s
-----END PUBLIC KEY-----
""" % base64.encodebytes(explicit(EC.spki(DER))).decode()  # noqa: UP031 - braces are no better

REFUSED_TEXTS: dict[str, tuple[str, str]] = {
    "A11 RSA 1024": (rsa_pair(bits=1024).pem, "RS256"),
    "A11 RSA 8193": (numbers_pem(1 << 8192 | 1, 65537), "RS256"),
    "A11 RSA 2047": (numbers_pem(MODULUS >> 1 | 1, 65537), "RS256"),
    "A11 RSA over 8192": (numbers_pem((1 << 8200) + 1, 65537), "RS256"),
    "A11 e = 3": (rsa_pair(exponent=3).pem, "RS256"),
    "A11 P-384 for ES256": (P384.pem, "ES256"),
    "A11 P-256 for ES384": (EC.pem, "ES384"),
    "RSA for ES256": (RSA.pem, "ES256"),
    "EC for RS256": (EC.pem, "RS256"),
    "RSA for EdDSA": (RSA.pem, "EdDSA"),
    "Ed25519 for ES256": (ED.pem, "ES256"),
    "A12 PKCS 8": (RSA.private_pem, "RS256"),
    "A12 PKCS 1": (PKCS1_PRIVATE, "RS256"),
    "A12 encrypted": (ENCRYPTED, "RS256"),
    "A12 EC": (EC.private_pem, "ES256"),
    "base64 of a private PEM": (base64.b64encode(RSA.private_pem.encode()).decode(), "RS256"),
    "A12 private behind public": (RSA.pem + RSA.private_pem, "RS256"),
    "certificate": (certificate(), "RS256"),
    "SSH": (SSH, "RS256"),
    "JWK": (json.dumps(RSA_JWK), "RS256"),
    "secret for RS256": (SECRET.decode(), "RS256"),
    "empty for RS256": ("", "RS256"),
    "PEM cut": (RSA.pem[:200], "RS256"),
    "PEM behind a cut one": (RSA.pem[:200] + "\n" + RSA.pem, "RS256"),
    "PEM before a cut one": (RSA.pem + RSA.private_pem[:200], "RS256"),
    "PEM garbled": (RSA.pem.replace("M", "!", 3), "RS256"),
    "PEM not ASCII": (RSA.pem.replace("M", "é", 1), "RS256"),
    "A13 none": (RSA.pem, "none"),
    "A13 unknown": (RSA.pem, "RS257"),
    "A13 case": (RSA.pem, "rs256"),
    "A10 empty": ("", "HS256"),
    "A10 31 bytes": ("x1y2z3w4" * 3 + "abcdefg", "HS256"),
    "A10 47 bytes": (SECRET.decode()[:47], "HS384"),
    "A10 63 bytes": (SECRET.decode()[:63], "HS512"),
    "A10 one byte": ("x" * 64, "HS256"),
    "A10 two bytes": ("ab" * 32, "HS256"),
    "A10 sample": ("a-string-secret-at-least-256-bits-long", "HS256"),
    "A10 line ends do not count": (SECRET.decode()[:31] + "\n\r\n", "HS256"),
    "lone surrogate": ("\ud800" * 64, "HS256"),
    "A13 PEM": (RSA.pem, "HS256"),
    "A13 PEM BOM": ("\ufeff" + RSA.pem, "HS256"),
    "A13 PEM body": ("".join(RSA.pem.splitlines()[1:-1]), "HS256"),
    "A13 PEM body lines": ("\n".join(RSA.pem.splitlines()[1:-1]), "HS256"),
    "A13 private PEM": (RSA.private_pem, "HS256"),
    "A13 certificate": (certificate(), "HS256"),
    "A13 SSH": (SSH, "HS256"),
    "A13 JWK": (json.dumps(RSA_JWK), "HS256"),
    "A13 JWK of a secret": (json.dumps(OCT_JWK), "HS256"),
    "A13 JWKS": (json.dumps({"keys": [RSA_JWK]}), "HS256"),
    "A13 hex DER": (RSA.spki(DER).hex(), "HS256"),
    "A13 HEX DER": (RSA.spki(DER).hex().upper(), "HS256"),
    "A13 base64url DER": (b64(RSA.spki(DER)), "HS256"),
    "A13 base64url JWK": (b64(compact(EC_JWK)), "HS256"),
    "A13 base64 PEM": (b64(RSA.pem.encode()), "HS256"),
    "A13 raw DER": (EC.spki(DER).decode("utf-8", "surrogateescape"), "HS256"),
    "A13 Ed25519 body": (ED.pem.splitlines()[1], "HS256"),
    "A10 a piece twice": ("correct-horse-battery-staple" * 2, "HS256"),
    "A10 a piece many times": ("changeme" * 8, "HS256"),
    "A10 tutorial": ("09d25e094faa6ca2556c818166b7a9563b93f7099f6f0f4caa6cf63b88e8d3e7", "HS256"),
    "A11 exponent of 65 bits": (numbers_pem(MODULUS, 2**64 + 1), "RS256"),
    "A11 exponent as long as the modulus": (numbers_pem(MODULUS, MODULUS - 2), "RS256"),
    "A11 explicit curve of its own": (EXPLICIT, "ES256"),
    **{
        f"A05 {name}": (secret.decode("utf-8", "surrogateescape"), "HS256")
        for name, secret in confusions()
        if secret
    },
    **{f"A05 {name}": (text, "HS256") for name, text in MORE_SHAPES.items()},
}


@every_row("name", REFUSED_TEXTS)
def test_weak_and_wrong_key_texts_are_rejected(name: str) -> None:
    text, algorithm = REFUSED_TEXTS[name]
    with pytest.raises(InvalidKey) as refusal:
        load_texts([text], algorithm)
    told = f"{refusal.value.detail} {refusal.value.cause} {refusal.value.hint}"
    assert "\n" not in told
    assert not any(line in told for line in text.split() if len(line) > 12), "no key material"


def test_binary_key_that_begins_like_a_byte_order_mark_is_rejected() -> None:
    """A modulus is any odd number with its top bit set: one in 8 million begins so."""
    modulus = b"\xef\xbb\xbf" + MODULUS.to_bytes(256, "big")[3:]
    odd = int.from_bytes(modulus, "big")
    while not all(odd % factor for factor in range(3, 2_000, 2)):
        odd += 2
    text = odd.to_bytes(256, "big").decode("utf-8", "surrogateescape")
    with pytest.raises(InvalidKey, match="is a key, not a shared secret"):
        load_texts([text], "HS256")


OPENSSH = (
    "ssh-rsa", "ssh-dss", "ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com",
    "ssh-ed25519-cert-v01@openssh.com",
)  # fmt: skip


@pytest.mark.parametrize("name", OPENSSH)
def test_keys_of_openssh_are_rejected_as_secrets(name: str) -> None:
    data = len(name).to_bytes(4, "big") + name.encode() + bytes(range(40))
    body = base64.b64encode(data).decode()
    for text in (f"{name} {body} me@here", body, data.hex()):
        with pytest.raises(InvalidKey, match="is a key, not a shared secret"):
            load_texts([text], "HS256")


@pytest.mark.parametrize(
    ("private_value", "ending"),
    [
        (753, b"\n"),
        (89, b"\r"),
        (98364, b"\r\n"),
        (41720, b"\n\r"),
        (13198, b"\n\n"),
        (2036, b"\r\r"),
    ],
)
def test_binary_key_that_ends_with_line_breaks_is_rejected(
    private_value: int, ending: bytes
) -> None:
    public = ec.derive_private_key(private_value, ec.SECP256R1()).public_key()
    point = public.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    assert point.endswith(ending)
    with pytest.raises(InvalidKey, match="is a key, not a shared secret"):
        load_texts([point.decode("utf-8", "surrogateescape")], "HS256")


ACCEPTED_TEXTS: dict[str, tuple[str, str]] = {
    "RSA 8192": (numbers_pem(1 << 8191 | 1, 65537), "RS256"),
    "exponent of 64 bits": (numbers_pem(MODULUS, 2**63 + 1), "RS256"),
    "PKCS 1": (
        RSA.public.public_bytes(PEM, serialization.PublicFormat.PKCS1).decode(), "RS256"
    ),
    "escaped line breaks": (RSA.pem.replace("\n", "\\n"), "RS256"),
    "escaped CRLF": (RSA.pem.replace("\n", "\\r\\n"), "RS256"),
    "two keys with escaped line breaks": ((RSA.pem + OTHER.pem).replace("\n", "\\n"), "RS256"),
    "base64": (base64.b64encode(RSA.pem.encode()).decode(), "RS256"),
    "base64 in lines": (base64.encodebytes(RSA.pem.encode()).decode(), "RS256"),
    "base64url": (b64(RSA.pem.encode()), "RS256"),
    "base64 of escaped line breaks": (b64(EC.pem.replace("\n", "\\n").encode()), "ES256"),
    "remarks around": (f"# ours - since -- May\n{RSA.pem}\n-- end\n", "RS256"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACCEPTED_TEXTS)
def test_valid_key_texts_are_accepted(name: str) -> None:
    assert load_texts([ACCEPTED_TEXTS[name][0]], ACCEPTED_TEXTS[name][1])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("A12 PKCS 8", "Key 1 is a private key"),
        ("A12 PKCS 1", "Key 1 is a private key"),
        ("A12 encrypted", "Key 1 is a private key"),
        ("A12 EC", "Key 1 is a private key"),
        ("A12 private behind public", "Key 1 is a private key"),
        ("certificate", "openssl x509"),
        ("base64 of a private PEM", "Key 1 is a private key"),
        ("secret for RS256", "set jwks_file for a JWKS"),
        ("A11 explicit curve of its own", "is not a readable PEM public key"),
        ("A11 RSA 2047", "an RSA key of 2047 bits"),
        ("A11 e = 3", "an unsound exponent"),
        ("A11 exponent of 65 bits", "an unsound exponent"),
        ("EC for RS256", "Key 1 is not a key for RS256"),
        ("RSA for ES256", "Key 1 is not a key for ES256"),
        ("Ed25519 for ES256", "Key 1 is not a key for ES256"),
        ("A11 P-384 for ES256", "is not on the curve P-256"),
        ("A10 31 bytes", "a secret of 31 bytes"),
        ("A10 one byte", "a secret that is easy to guess"),
    ],
)
def test_error_names_the_problem_of_a_key(name: str, told: str) -> None:
    with pytest.raises(InvalidKey) as refusal:
        load_texts([REFUSED_TEXTS[name][0]], REFUSED_TEXTS[name][1])
    assert told in f"{refusal.value.detail} {refusal.value.hint}"


@every_row("name", [name for name in REFUSED_TEXTS if name.startswith("A05")])
def test_key_used_as_a_secret_is_reported(name: str) -> None:
    with pytest.raises(InvalidKey) as refusal:
        load_texts([REFUSED_TEXTS[name][0]], "HS256")
    assert refusal.value.detail == "Key 1 is a key, not a shared secret"


def test_empty_key_set_is_rejected() -> None:
    with pytest.raises(InvalidKey):
        load_texts([], "RS256")


def test_pem_keys_are_tried_in_order() -> None:
    keys = load_texts([OTHER.pem, RSA.pem], "RS256")
    for pair in (RSA, OTHER):
        assert (
            verify_token(token({"alg": "RS256", "kid": "any"}, {}, rs(pair)), keys).payload == b"{}"
        )


def test_pem_text_may_have_several_keys_and_remarks() -> None:
    keys = load_texts([f"first\n{OTHER.pem}\r\n# second\n{RSA.pem}\n"], "RS256")
    assert len(keys.keys) == 2
    assert verify_token(token({"alg": "RS256"}, {}, rs(RSA)), keys)


@pytest.mark.parametrize("line", ["-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"])
def test_key_with_a_damaged_line_is_not_left_out(line: str) -> None:
    with pytest.raises(InvalidKey):
        load_texts([OTHER.pem.replace(line, line.replace("N", "", 1)) + RSA.pem], "RS256")


def test_line_breaks_at_the_end_of_a_secret_are_removed() -> None:
    keys = load_texts([SECRET.decode() + "\r\n"], "HS512")
    assert verify_token(token({"alg": "HS512"}, {}, hs(SECRET, 512)), keys)


def named(jwk: dict[str, str], kid: str | None, **more: Any) -> dict[str, Any]:
    return {**jwk, **({} if kid is None else {"kid": kid}), **more}


ENTRY = named(RSA_JWK, "a")
REFUSED_SETS: dict[str, Any] = {
    "list": [],
    "null": None,
    "text": "{}",
    "no keys": {},
    "keys null": {"keys": None},
    "keys object": {"keys": {}},
    "empty": {"keys": []},
    "entry null": {"keys": [None]},
    "entry text": {"keys": ["x"]},
    "no kty": {"keys": [{"n": "x"}]},
    "kty number": {"keys": [{"kty": 1}]},
    "kid number": {"keys": [{**RSA_JWK, "kid": 1}]},
    "use number": {"keys": [named(RSA_JWK, "a", use=1)]},
    "alg number": {"keys": [named(RSA_JWK, "a", alg=256)]},
    "key_ops text": {"keys": [named(RSA_JWK, "a", key_ops="verify")]},
    "key_ops numbers": {"keys": [named(RSA_JWK, "a", key_ops=[1])]},
    "key_ops twice": {"keys": [named(RSA_JWK, "a", key_ops=["verify", "verify"])]},
    "duplicate kid": {"keys": [ENTRY, named(OTHER_JWK, "a")]},
    "A12 private": {"keys": [named(RSA_JWK, "a", d="AQAB")]},
    "A12 private CRT": {"keys": [named(RSA_JWK, "a", p="AQAB")]},
    "only others": {"keys": [named(RSA_JWK, "a", use="enc")]},
    "only another algorithm": {"keys": [named(RSA_JWK, "a", alg="PS256")]},
    "two without kid": {"keys": [RSA_JWK, OTHER_JWK]},
    "no n": {"keys": [{"kty": "RSA", "e": "AQAB"}]},
    "n number": {"keys": [named(RSA_JWK, "a", n=5)]},
    "n empty": {"keys": [named(RSA_JWK, "a", n="")]},
    "n padded": {"keys": [named(RSA_JWK, "a", n=RSA_JWK["n"] + "=")]},
    "n leading zero": {"keys": [named(RSA_JWK, "a", n=b64(b"\0" + MODULUS.to_bytes(256, "big")))]},
    "n even": {"keys": [named(RSA_JWK, "a", n=b64((MODULUS + 1).to_bytes(256, "big")))]},
    "e = 1": {"keys": [named(RSA_JWK, "a", e=b64(b"\1"))]},
    "e = 3": {"keys": [named(RSA_JWK, "a", e=b64(b"\3"))]},
    "e even": {"keys": [named(RSA_JWK, "a", e=b64(b"\1\0\2"))]},
    "EC of another curve": {"keys": [{**EC_JWK, "crv": "secp256k1"}]},
    "OKP of another curve": {"keys": [{**ED_JWK, "crv": "X25519"}]},
    "e of 65 bits": {"keys": [named(RSA_JWK, "a", e=b64((2**64 + 1).to_bytes(9, "big")))]},
    "kid lone surrogate": {"keys": [named(RSA_JWK, "\ud800")]},
    "kid NUL": {"keys": [named(RSA_JWK, "a\0")]},
    "only to sign": {"keys": [named(RSA_JWK, "a", key_ops=["sign"])]},
    "x5c and nothing else": {"keys": [{"kty": "RSA", "x5c": [b64(RSA.spki(DER))]}]},
    "1024 bits": {"keys": [public_jwk(rsa_pair(bits=1024).public)]},
}


@every_row("algorithm, name", itertools.product(["RS256", None], REFUSED_SETS))
def test_invalid_jwks_are_rejected(name: str, algorithm: str | None) -> None:
    if (name, algorithm) == ("only another algorithm", None):
        assert KeySet.from_jwks(REFUSED_SETS[name]).spec.name == "PS256"
        return
    with pytest.raises(InvalidKey):
        KeySet.from_jwks(REFUSED_SETS[name], algorithm=algorithm)


@pytest.mark.parametrize(
    "entry",
    [
        {**EC_JWK, "x": b64(bytes(32))},
        {**EC_JWK, "y": EC_JWK["x"]},
        {**EC_JWK, "x": EC_JWK["x"][:-2]},
        {**EC_JWK, "crv": "P-384", "alg": "ES256"},
        {**EC_JWK, "x": EC_JWK["y"], "y": EC_JWK["x"]},
        {**EC_JWK, "x": EC_JWK["x"] + "="},
        {**EC_JWK, "x": b64(b"\0" + bytes(32))},
        {**EC_JWK, "crv": "secp256k1", "alg": "ES256"},
        {**EC_JWK, "x": 5},
        {**EC_JWK, "d": b64(b"\1" * 32)},
        {"kty": "EC", "crv": "P-256"},
    ],
)
def test_invalid_curve_points_are_rejected(entry: dict[str, str]) -> None:
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [entry]}, algorithm="ES256")


@pytest.mark.parametrize(
    "entry",
    [
        {**ED_JWK, "x": ED_JWK["x"][:-2]},
        {**ED_JWK, "crv": "Ed448", "alg": "EdDSA"},
        {**ED_JWK, "d": b64(bytes(32))},
        {"kty": "OKP", "crv": "Ed25519"},
    ],
)
def test_invalid_ed25519_keys_are_rejected(entry: dict[str, str]) -> None:
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [entry]}, algorithm="EdDSA")


def test_coordinate_must_have_the_field_size() -> None:
    """RFC 7518 6.2.1.2: one that begins with a zero byte keeps it, and has no other."""
    for name in ("x", "y"):
        keys = (ec.derive_private_key(number, ec.SECP256R1()) for number in itertools.count(1))
        points = (key.public_key().public_numbers() for key in keys)
        point = next(point for point in points if getattr(point, name) < 2**248)
        right = {member: getattr(point, member).to_bytes(32, "big") for member in ("x", "y")}
        for text, good in (
            (right[name], True),
            (right[name][1:], False),
            (b"\0" + right[name], False),
        ):
            members = {member: b64(data) for member, data in {**right, name: text}.items()}
            entry = {"kty": "EC", "crv": "P-256", **members}
            if good:
                assert KeySet.from_jwks({"keys": [entry]})
                continue
            with pytest.raises(InvalidKey):
                KeySet.from_jwks({"keys": [entry]})


WEAK_JWK = public_jwk(rsa_pair(bits=1024).public)
FOREIGN_ENTRIES: dict[str, tuple[Any, str]] = {
    "text": ("x", "it is not an object"),
    "null": (None, "it is not an object"),
    "list": ([named(OTHER_JWK, "b")], "it is not an object"),
    "empty": ({}, "it has no kty"),
    "kty null": ({**OTHER_JWK, "kty": None}, "it has no kty"),
    "weak": (named(WEAK_JWK, "b"), "it is an RSA key of 1024 bits"),
    "no e": ({"kty": "RSA", "n": OTHER_JWK["n"], "kid": "b"}, "it is not a valid RSA key"),
    "private": (named(OTHER_JWK, "b", d="AQAB"), "it is a private key"),
    "secret": (named(OCT_JWK, "b"), "it is a shared secret among public keys"),
    "secret, for encryption": (
        named(OCT_JWK, "b", use="enc"),
        "it is a shared secret among public keys",
    ),
    "no kid": (OTHER_JWK, "it has no kid and the set has several keys"),
    "kid NUL": (named(OTHER_JWK, "b\0"), "it has a kid that is not a string"),
    **{
        f"{name} {value!r}": (
            {**named(OTHER_JWK, "b"), name: value},
            f"it has a {name} that is not a string",
        )
        for name in ("kty", "use", "alg", "kid", "crv")
        for value in (1, ["sig"], {"sig": 1}, True)
    },
    **{
        f"key_ops {value!r}": (
            named(OTHER_JWK, "b", key_ops=value),
            "it has key_ops that are not an array of strings",
        )
        for value in (1, True, {"verify": 1}, [1], [["verify"]], ["verify", None], [{}])
    },
}


@every_row("name", FOREIGN_ENTRIES)
def test_unusable_entry_is_left_out_and_the_others_count(name: str) -> None:
    """RFC 7517 5: one entry of another program does not make the set invalid."""
    entry, reason = FOREIGN_ENTRIES[name]
    for entries, number in (([ENTRY, entry], 2), ([entry, ENTRY], 1)):
        keys = KeySet.from_jwks({"keys": entries}, algorithm="RS256")
        assert [key.kid for key in keys.keys] == ["a"]
        (fault,) = keys.faults
        assert (fault.number, fault.reason) == (number, reason)
        assert verify_token(token({"alg": "RS256", "kid": "a"}, {}, rs(RSA)), keys)
        with pytest.raises(InvalidToken):
            verify_token(token({"alg": "RS256", "kid": "b"}, {}, rs(OTHER)), keys)


@pytest.mark.parametrize("name", ["use", "alg", "key_ops", "crv", "x5c", "d", "p", "k"])
def test_null_member_counts_as_absent(name: str) -> None:
    """Libraries write every member that they know, with null for those that a key lacks."""
    entries = [{**named(RSA_JWK, "a"), name: None}, {**named(OTHER_JWK, "b"), name: None}]
    keys = KeySet.from_jwks({"keys": entries}, algorithm="RS256")
    assert (list(keys.by_kid), keys.skipped) == (["a", "b"], ())


def test_different_keys_with_one_kid_are_left_out() -> None:
    """No kid tells two different keys apart; the same key twice is not ambiguous."""
    third = named(public_jwk(rsa_pair(3).public), "c")
    entries = [ENTRY, named(OTHER_JWK, "a"), third, third]
    keys = KeySet.from_jwks({"keys": entries}, algorithm="RS256")
    assert list(keys.by_kid) == ["c"]
    assert [(fault.number, fault.kid) for fault in keys.faults] == [(1, "a"), (2, "a")]


def test_curve_of_another_algorithm_is_left_out() -> None:
    wrong = named(public_jwk(P384.public), "b", alg="ES256")
    keys = KeySet.from_jwks({"keys": [named(EC_JWK, "a"), wrong]}, algorithm="ES256")
    assert [fault.kid for fault in keys.faults] == ["b"]


def test_unknown_jwk_members_are_ignored() -> None:
    """RFC 7517 4: x5c and other members are ignored."""
    more = {"crv": "P-256", "x": "x", "k": "x", "x5c": [b64(OTHER.spki(DER))], "x5u": "http://a/"}
    found = KeySet.from_jwks({"keys": [named(RSA_JWK, "a", **more)]}, algorithm="RS256")
    assert verify_token(token({"alg": "RS256", "kid": "a"}, {}, rs(RSA)), found)
    with pytest.raises(InvalidToken):
        verify_token(token({"alg": "RS256", "kid": "a"}, {}, rs(OTHER)), found)


@pytest.mark.parametrize("name", ["d", "p", "q", "dp", "dq", "qi", "oth"])
def test_private_jwk_members_are_rejected(name: str) -> None:
    with pytest.raises(InvalidKey) as refusal:
        KeySet.from_jwks({"keys": [named(RSA_JWK, "a", **{name: "AQAB"})]})
    assert refusal.value.detail == "JWKS key 1 is a private key"


def test_coordinate_above_the_field_is_rejected() -> None:
    """One point would be two keys: P-521 leaves seven bits for it."""
    jwk = public_jwk(ec_pair("P-521").public)
    number = int.from_bytes(base64.urlsafe_b64decode(jwk["x"] + "=" * (-len(jwk["x"]) % 4)), "big")
    turned = {**jwk, "x": b64((number + 2**521 - 1).to_bytes(66, "big"))}
    assert KeySet.from_jwks({"keys": [jwk]})
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [turned]})


@pytest.mark.parametrize("k", ["", b64(SECRET[:31]), b64(b"x" * 32), b64(RSA.spki(DER)), 5, "a="])
def test_secrets_in_a_jwks_follow_the_same_rules(k: Any) -> None:
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [{"kty": "oct", "k": k}]}, algorithm="HS256")


def test_entries_for_other_purposes_are_skipped() -> None:
    keys = KeySet.from_jwks(
        {
            "keys": [
                named(OTHER_JWK, "enc", use="enc"),
                named(OTHER_JWK, "ops", key_ops=["sign"]),
                named(OTHER_JWK, "alg", alg="RS512"),
                named(EC_JWK, "ec"),
                {"kty": "new", "kid": "new"},
                named(RSA_JWK, "good", use="sig", alg="RS256", key_ops=["verify"], x5c=["x"]),
            ]
        },
        algorithm="RS256",
    )
    assert [key.kid for key in keys.keys] == ["good"]
    assert keys.skipped == (
        SkippedKey("enc", "it is for another use", 1),
        SkippedKey("ops", "its key_ops do not allow to verify", 2),
        SkippedKey("alg", "it is for another algorithm", 3),
        SkippedKey("ec", "it is of another key type", 4),
        SkippedKey("new", "it is of another key type", 5),
    )
    assert keys.faults == ()


def test_key_without_kid_next_to_others_is_skipped() -> None:
    keys = KeySet.from_jwks({"keys": [ENTRY, OTHER_JWK]}, algorithm="RS256")
    assert [key.kid for key in keys.keys] == ["a"]
    reason = "it has no kid and the set has several keys"
    assert keys.skipped == (SkippedKey(None, reason, 2, is_fault=True),)


def test_key_on_another_curve_is_skipped() -> None:
    entries = [named(public_jwk(P384.public), "p384"), named(EC_JWK, "p256")]
    keys = KeySet.from_jwks({"keys": entries}, algorithm="ES256")
    assert keys.skipped == (SkippedKey("p384", "it is on another curve", 1),)


def test_kid_selects_the_key() -> None:
    keys = KeySet.from_jwks({"keys": [named(RSA_JWK, "a"), named(OTHER_JWK, "b")]})
    assert verify_token(token({"alg": "RS256", "kid": "b"}, {}, rs(OTHER)), keys)
    for header in ({"kid": "a"}, {"kid": "c"}, {"kid": ""}, {}, {"kid": "../../dev/null"}):
        with pytest.raises(InvalidToken):
            verify_token(token({"alg": "RS256", **header}, {}, rs(OTHER)), keys)


def test_token_without_kid_uses_the_only_key() -> None:
    for entry in (RSA_JWK, named(RSA_JWK, "a")):
        keys = KeySet.from_jwks({"keys": [entry]})
        assert verify_token(token({"alg": "RS256"}, {}, rs(RSA)), keys)
        with pytest.raises(InvalidToken):
            verify_token(token({"alg": "RS256", "kid": "b"}, {}, rs(RSA)), keys)


def test_pem_keys_and_a_jwks_verify_together() -> None:
    named_set = KeySet.from_jwks({"keys": [named(RSA_JWK, "a")]})
    keys = named_set.merge(load_texts([OTHER.pem], "RS256"))
    for header, pair in (({"kid": "a"}, RSA), ({"kid": "x"}, OTHER), ({}, OTHER), ({}, RSA)):
        assert verify_token(token({"alg": "RS256", **header}, {}, rs(pair)), keys)
    for header, pair in (({"kid": "a"}, OTHER), ({"kid": "x"}, RSA)):
        with pytest.raises(InvalidToken):
            verify_token(token({"alg": "RS256", **header}, {}, rs(pair)), keys)
    with pytest.raises(InvalidKey):
        named_set.merge(load_texts([OTHER.pem], "RS384"))
    same = named_set.merge(KeySet.from_jwks({"keys": [named(RSA_JWK, "a")]}))
    assert same.keys == named_set.keys
    with pytest.raises(InvalidKey, match="different keys with the kid 'a'"):
        named_set.merge(KeySet.from_jwks({"keys": [named(OTHER_JWK, "a")]}))
    both = named_set.merge(KeySet.from_jwks({"keys": [named(OTHER_JWK, "b")]}))
    assert {key.kid for key in both.keys} == {"a", "b"}


def test_pem_keys_and_a_jwks_key_without_kid() -> None:
    both = KeySet.from_jwks({"keys": [RSA_JWK]}).merge(load_texts([OTHER.pem], "RS256"))
    for pair in (RSA, OTHER):
        assert verify_token(token({"alg": "RS256"}, {}, rs(pair)), both)
    assert verify_token(token({"alg": "RS256", "kid": "x"}, {}, rs(OTHER)), both)
    with pytest.raises(InvalidToken):
        verify_token(token({"alg": "RS256", "kid": "x"}, {}, rs(RSA)), both)


def test_key_without_kid_counts_next_to_another_jwks() -> None:
    """The only key of a set may have no kid; it verifies tokens without kid, and no others."""
    nameless = KeySet.from_jwks({"keys": [RSA_JWK]})
    both = nameless.merge(KeySet.from_jwks({"keys": [named(OTHER_JWK, "b")]}))
    for header, pair in (({}, RSA), ({"kid": "b"}, OTHER)):
        assert verify_token(token({"alg": "RS256", **header}, {}, rs(pair)), both)
    for header, pair in (({}, OTHER), ({"kid": "x"}, RSA), ({"kid": "b"}, RSA)):
        with pytest.raises(InvalidToken):
            verify_token(token({"alg": "RS256", **header}, {}, rs(pair)), both)
    with pytest.raises(InvalidKey, match="different keys without kid"):
        nameless.merge(KeySet.from_jwks({"keys": [OTHER_JWK]}))


def test_merged_sets_keep_all_keys() -> None:
    one, two = (
        KeySet.from_jwks({"keys": [named(jwk, kid), named(EC_JWK, f"ec {kid}")]}, algorithm="RS256")
        for jwk, kid in ((RSA_JWK, "a"), (OTHER_JWK, "b"))
    )
    assert [entry.kid for entry in one.merge(two).skipped] == ["ec a", "ec b"]
    pems = [load_texts([pair.pem], "RS256") for pair in (RSA, OTHER)]
    joined = pems[0].merge(pems[1])
    assert joined.unnamed == (*pems[0].unnamed, *pems[1].unnamed)
    assert len(one.merge(joined).keys) == 3


def test_only_keys_without_kid_are_skipped() -> None:
    third = named(public_jwk(rsa_pair(3).public), "c")
    found = KeySet.from_jwks({"keys": [ENTRY, OTHER_JWK, third]}, algorithm="RS256")
    assert [key.kid for key in found.keys] == ["a", "c"]
    assert [entry.kid for entry in found.skipped] == [None]


def test_error_names_the_entry_of_a_jwks() -> None:
    for entries, number in (
        ([{}, named(RSA_JWK, "a", use="enc")], 1),
        ([ENTRY | {"use": "enc"}, {}], 2),
    ):
        with pytest.raises(InvalidKey) as refusal:
            KeySet.from_jwks({"keys": entries}, algorithm="RS256")
        assert refusal.value.detail == f"JWKS key {number} has no kty"
    with pytest.raises(InvalidKey) as refusal:
        load_texts([RSA.pem, "x"], "RS256")
    assert refusal.value.detail == "Key 2 is not a PEM public key"


def test_empty_jwks_error_names_the_algorithm() -> None:
    with pytest.raises(InvalidKey) as refusal:
        KeySet.from_jwks({"keys": []})
    assert refusal.value.detail == "The JWKS has no usable key for RS256"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([RSA_JWK], "RS256"),
        ([named(RSA_JWK, "a", alg="PS384")], "PS384"),
        ([EC_JWK], "ES256"),
        ([public_jwk(P384.public)], "ES384"),
        ([ED_JWK], "EdDSA"),
        ([OCT_JWK], "HS256"),
        ([named(RSA_JWK, "a"), named(EC_JWK, "b", use="enc")], "RS256"),
        ([named(RSA_JWK, "a"), named(OTHER_JWK, "b", alg="RSA-OAEP")], "RS256"),
        ([named(RSA_JWK, "a"), {**ED_JWK, "crv": "X25519"}], "RS256"),
        ([named(RSA_JWK, "a"), {**EC_JWK, "crv": "secp256k1"}], "RS256"),
    ],
)
def test_jwks_determines_its_algorithm(entries: list[dict[str, Any]], expected: str) -> None:
    assert KeySet.from_jwks({"keys": entries}).spec.name == expected


def test_keys_for_several_algorithms_are_rejected() -> None:
    with pytest.raises(InvalidKey):
        KeySet.from_jwks({"keys": [named(RSA_JWK, "a"), named(EC_JWK, "b")]})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_generated_keys_are_accepted(algorithm: str) -> None:
    private = keys.generate_key(algorithm)
    name = keys.signing_key_thumbprint(private, algorithm)
    assert len(name) == 43
    if algorithm.startswith("HS"):
        assert load_texts([private.decode()], algorithm)
        for publish in (keys.build_public_jwks, keys.build_public_pem):
            with pytest.raises(InvalidKey):
                publish(private, algorithm)
        return
    jwks = keys.build_public_jwks(private, algorithm)
    assert not {"d", "p", "q", "k"} & jwks["keys"][0].keys()
    (key,) = KeySet.from_jwks(jwks).keys
    assert (key.kid, key.spec.name, keys.key_thumbprint(key)) == (name, algorithm, name)
    assert load_texts([keys.build_public_pem(private, algorithm).decode()], algorithm)
    assert keys.build_public_jwks(private, algorithm, "mine")["keys"][0]["kid"] == "mine"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        RSA.pem.encode(),
        ENCRYPTED.encode(),
        EC.private_pem.encode(),
        b"\xff\0" * 99,
        rsa_pair(bits=1024).private_pem.encode(),
    ],
    ids=["empty", "x", "public", "encrypted", "EC", "binary", "weak"],
)
def test_invalid_signing_keys_are_rejected(data: bytes) -> None:
    with pytest.raises(InvalidKey):
        keys.signing_key_thumbprint(data, "RS256")


def test_repr_hides_the_secret() -> None:
    shown = repr(load_texts([SECRET.decode()], "HS256"))
    assert SECRET.decode() not in shown
    assert hashlib.sha256(SECRET).hexdigest() not in shown
