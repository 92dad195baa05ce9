"""Keys of an identity provider by URL and by discovery, from a real HTTP server."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agentctl.auth.keys import remote
from agentctl.auth.keys.remote import UNKNOWN_KEY_SECONDS
from agentctl.auth.verifier import Verifier
from agentctl.config import load_settings
from agentctl.config.settings import Settings
from agentctl.errors import InvalidConfiguration, InvalidToken, Unavailable
from tests.auth.key_server import KeyServer, serve_keys
from tests.kit.certificates import create_certificate, serve_tls_alerts
from tests.kit.command import run_command
from tests.kit.conditions import wait_for


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Signer:
    """A key of the provider: its entry in the key set, and tokens that it signs."""

    def __init__(self, kid: str) -> None:
        self.kid = kid
        self._key = Ed25519PrivateKey.generate()

    @property
    def jwk(self) -> dict[str, Any]:
        raw = self._key.public_key().public_bytes_raw()
        x = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
        return {"kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.kid, "alg": "EdDSA"}

    def sign(self, subject: str = "ada", **claims: Any) -> str:
        given = {"sub": subject, "scopes": ["agents:read"], **claims}
        return jwt.encode(given, self._key, "EdDSA", headers={"kid": self.kid})


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with serve_keys() as state:
        yield state


@pytest.fixture
def clock() -> Clock:
    return Clock()


Build = Callable[..., Verifier]


@pytest.fixture
def build(server: KeyServer, clock: Clock, tmp_path: Path) -> Build:
    def build_verifier(**changes: Any) -> Verifier:
        return Verifier(settings(server, tmp_path, **changes), monotonic=clock)

    return build_verifier


def settings(server: KeyServer, folder: Path, **changes: Any) -> Settings:
    path = folder / "agentctl.toml"
    path.write_text(f'[authorization]\nalgorithm = "EdDSA"\njwks_url = "{server.jwks_url}"\n')
    found = load_settings(path, {})
    return replace(found, authorization=replace(found.authorization, **changes))


def identify(verifier: Verifier, token: str) -> str | None:
    return asyncio.run(verifier.identify(f"Bearer {token}")).subject


def test_tokens_of_the_provider_are_accepted(server: KeyServer, build: Build) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    verifier = build()
    assert [identify(verifier, signer.sign(user)) for user in ("ada", "bob")] == ["ada", "bob"]
    assert server.requests == ["/jwks"]
    state = verifier.remote_state
    assert state is not None
    assert (state.count, state.error) == (1, None)
    assert "1 key of http://127.0.0.1" in state.describe(time.time())


def test_discovery_finds_the_keys_of_the_issuer(server: KeyServer, build: Build) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    options = {"jwks_url": "", "oidc_discovery": True, "issuer": server.url}
    assert identify(build(**options), signer.sign(iss=server.url)) == "ada"
    with pytest.raises(InvalidToken):
        identify(build(**options), signer.sign(iss="http://other"))
    server.issuer = "http://127.0.0.1:1"
    verifier = build(**options)
    with pytest.raises(Unavailable):
        identify(verifier, signer.sign(iss=server.url))
    assert verifier.remote_state is not None
    assert verifier.remote_state.error == "issuer_mismatch"


def test_issuer_elsewhere_names_no_key_set_of_this_machine(server: KeyServer, build: Build) -> None:
    # 0.0.0.0 reaches this machine and is no loopback address: an issuer with another name.
    server.issuer = server.url.replace("127.0.0.1", "0.0.0.0")
    verifier = build(jwks_url="", oidc_discovery=True, issuer=server.issuer)
    with pytest.raises(Unavailable):
        identify(verifier, Signer("one").sign(iss=server.issuer))
    assert verifier.remote_state is not None
    assert verifier.remote_state.error == "insecure_url"
    assert server.requests == ["/.well-known/openid-configuration"]


def test_file_with_the_kid_of_a_fetched_key_replaces_both(
    server: KeyServer, build: Build, clock: Clock, tmp_path: Path
) -> None:
    def use(signer: Signer) -> None:
        part = tmp_path / "part.json"
        part.write_text(json.dumps({"keys": [signer.jwk]}))
        part.replace(file)
        clock.now += 1

    file = tmp_path / "jwks.json"
    fetched, removed, same, other = map(Signer, ("one", "old", "one", "two"))
    server.keys = [fetched.jwk]
    use(removed)
    verifier = build(jwks_file=(file,))
    assert identify(verifier, fetched.sign()) == identify(verifier, removed.sign()) == "ada"
    use(same)
    assert identify(verifier, same.sign()) == "ada"
    for signer in (removed, fetched):
        with pytest.raises(InvalidToken):
            identify(verifier, signer.sign())
    for _ in range(3):
        verifier.reload_keys()
        assert "different keys with the kid 'one'" in (verifier.problem or "")
    use(other)
    assert identify(verifier, fetched.sign()) == identify(verifier, other.sign()) == "ada"
    assert verifier.problem is None


def test_rotated_key_is_fetched_at_a_bounded_rate(
    server: KeyServer, build: Build, clock: Clock
) -> None:
    old = Signer("old")
    new = Signer("new")
    unknown = Signer("unknown")
    server.keys = [old.jwk]
    verifier = build()
    assert identify(verifier, old.sign()) == "ada"
    server.keys = [new.jwk]
    clock.now += UNKNOWN_KEY_SECONDS
    assert identify(verifier, new.sign()) == "ada"
    for _ in range(5):
        with pytest.raises(InvalidToken):
            identify(verifier, unknown.sign())
    with pytest.raises(InvalidToken):
        identify(verifier, old.sign())
    assert server.requests == ["/jwks"] * 2


def test_concurrent_requests_share_one_fetch(server: KeyServer, build: Build) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    server.released.clear()
    verifier = build()

    async def identify_many() -> list[str | None]:
        tasks = [
            asyncio.create_task(verifier.identify(f"Bearer {signer.sign(f'u{number}')}"))
            for number in range(20)
        ]
        # The event loop works while the server is silent.
        await asyncio.sleep(0)
        threading.Timer(0.05, server.released.set).start()
        return [(await task).subject for task in tasks]

    assert asyncio.run(identify_many()) == [f"u{number}" for number in range(20)]
    assert server.requests == ["/jwks"]


def test_keys_stay_in_use_during_an_outage_within_the_bound(
    server: KeyServer, build: Build, clock: Clock
) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    verifier = build()
    assert identify(verifier, signer.sign()) == "ada"
    server.status = 500
    clock.now += 700
    with verifier.watch_key_files():
        verifier.fetch_remote_keys()
        assert identify(verifier, signer.sign("bob")) == "bob"
        state = verifier.remote_state
        assert state is not None
        assert (state.error, state.is_expired) == ("status", False)
        assert verifier.problem == "the server responds with 500"
        clock.now += 86_000
        wait_for(lambda: verifier.remote_state.is_expired)  # type: ignore[union-attr]
        with pytest.raises(Unavailable):
            identify(verifier, signer.sign())
        server.status = 200
        verifier.fetch_remote_keys()
        assert identify(verifier, signer.sign()) == "ada"


def oct_key() -> dict[str, Any]:
    return {"kty": "oct", "k": "c2VjcmV0" * 8, "kid": "secret", "alg": "HS256"}


FAULTS: list[tuple[str, dict[str, Any]]] = [
    ("too_large", {"body": b" " * (remote.MAXIMUM_BYTES + 1)}),
    ("not_json", {"body": b"<html>"}),
    ("not_json", {"body": b"[]"}),
    ("invalid_keys", {"body": b'{"keys": {}}'}),
    ("invalid_keys", {"keys": [oct_key()]}),
    ("invalid_keys", {"keys": [Signer("one").jwk, Signer("one").jwk]}),
    ("redirect", {"location": "http://127.0.0.2:9/jwks"}),
    ("redirect", {"location": "https://example.org/jwks"}),
    ("redirect", {"location": "/jwks"}),
    ("status", {"status": 404}),
]


@pytest.mark.parametrize(
    ("error", "fault"), FAULTS, ids=[f"{error}{number}" for number, (error, _) in enumerate(FAULTS)]
)
def test_faulty_response_gives_no_keys(
    server: KeyServer, build: Build, error: str, fault: dict[str, Any]
) -> None:
    for name, value in fault.items():
        setattr(server, name, value)
    verifier = build()
    with pytest.raises(Unavailable):
        identify(verifier, Signer("one").sign())
    assert verifier.remote_state is not None
    assert verifier.remote_state.error == error


def test_entry_that_cannot_be_used_leaves_the_new_key_valid(
    server: KeyServer, build: Build, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """The provider adds its new key together with entries of other programs."""
    old = Signer("old")
    new = Signer("new")
    server.keys = [old.jwk]
    verifier = build()
    assert identify(verifier, old.sign()) == "ada"
    assert not verifier.leaves_out_keys

    weak = {**Signer("weak").jwk, "x": "AQAB"}
    server.keys = [
        old.jwk,
        weak,
        {"kty": "RSA", "alg": "EdDSA", "kid": "other"},
        "x",
        oct_key(),
        new.jwk,
    ]
    clock.now += UNKNOWN_KEY_SECONDS
    assert identify(verifier, new.sign()) == "ada"
    assert identify(verifier, old.sign()) == "ada"
    assert verifier.problem is None
    assert verifier.leaves_out_keys
    assert verifier.remote_state is not None
    assert "2 keys of" in verifier.remote_state.describe(0)
    assert "3 left out" in verifier.remote_state.describe(0)
    assert f"JWKS key 2 ('weak') of {server.jwks_url} is left out: it is not a valid" in caplog.text
    assert "JWKS key 4 (without kid)" in caplog.text


def test_redirect_within_the_origin_is_followed(server: KeyServer, build: Build) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    server.location = f"{server.url}/moved"
    assert identify(build(), signer.sign()) == "ada"
    assert server.requests == ["/jwks", "/moved"]


def test_silent_server_is_given_up(
    server: KeyServer, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "FETCH_SECONDS", 0.2)
    server.released.clear()
    verifier = build()
    with pytest.raises(Unavailable):
        identify(verifier, Signer("one").sign())
    assert verifier.remote_state is not None
    assert verifier.remote_state.error == "timeout"


@pytest.mark.parametrize(
    "lines",
    [
        'jwks_url = "http://id.example.org/jwks"',
        'jwks_url = "https://id.example.org/jwks"\nalgorithm = "HS256"',
        "oidc_discovery = true",
        'oidc_discovery = true\nissuer = "http://id.example.org"',
        'jwks_url = "https://a.example/jwks"\noidc_discovery = true\nissuer = "https://a.example"',
    ],
)
def test_unsafe_source_of_keys_is_refused(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "agentctl.toml"
    path.write_text(f"[authorization]\n{lines}\n")
    with pytest.raises(InvalidConfiguration):
        load_settings(path, {})


def test_commands_show_the_state_of_the_keys(server: KeyServer, tmp_path: Path) -> None:
    signer = Signer("one")
    server.keys = [signer.jwk]
    settings(server, tmp_path)
    environment = {"AGENTCTL_TOKEN": signer.sign(), "HOME": str(tmp_path)}
    verified = run_command("token", "verify", environment=environment, folder=tmp_path)
    assert (verified.code, "1 key of" in verified.stderr) == (0, True)
    explained = run_command(
        "auth", "explain", "GET", "/agents", environment=environment, folder=tmp_path
    )
    assert "1 key of http://127.0.0.1" in explained.stdout
    assert "next refresh" in explained.stdout
    server.keys.append({**signer.jwk, "kid": "other", "use": "enc"})
    list_keys = ("keys", "list", "-o", "json")
    listed = run_command(*list_keys, environment=environment, folder=tmp_path)
    assert "1 key of http://127.0.0.1" in listed.stderr
    rows = {row["kid"]: row for row in json.loads(listed.stdout)}
    assert (rows["one"]["used"], rows["one"]["source"]) == (True, server.jwks_url)
    assert (rows["other"]["used"], bool(rows["other"]["reason"])) == (False, True)
    server.status = 503
    listed = run_command(*list_keys, environment=environment, folder=tmp_path)
    (row,) = json.loads(listed.stdout)
    assert (row["used"], "responds with 503" in row["reason"]) == (False, True)
    found = run_command("doctor", environment=environment, folder=tmp_path)
    assert "cannot be fetched: the server responds with 503" in found.stdout + found.stderr


def test_failed_tls_connection_is_a_failed_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = create_certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serve_tls_alerts(certificate) as url, pytest.raises(remote.FetchError) as failed:
        asyncio.run(remote.fetch_key_set(url))
    assert failed.value.detail.startswith("the TLS connection failed")
