"""Key sets, discovery and ID tokens of an identity provider, against PyJWT and mcp."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Iterator
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pydantic
import pytest
from mcp.client.auth.utils import build_oauth_authorization_server_metadata_discovery_urls
from mcp.shared.auth import OAuthMetadata

from agentctl.auth import oidc
from agentctl.auth.keys.remote import FetchError, fetch_key_set, is_allowed_url
from agentctl.auth.oidc import OidcClient
from agentctl.auth.verifier import Verifier
from agentctl.config.settings import Authorization, Console, Settings
from agentctl.errors import BadRequest, InvalidToken, Unavailable
from agentctl.records.strict import encode_base64url
from tests.auth.key_server import KeyServer, serve_keys
from tests.auth.test_remote_keys import Signer
from tests.differential.comparison import Comparison, Outcome, attempt
from tests.kit.forged_tokens import b64, compact

FETCH_RULES = {
    "the response names a member twice": "RFC 7517 4",
    "the response has a number": "RFC 8259 6",
    "the response is nested deeper": "docs/internals/security-cases.md J13",
    "the response is not UTF-8": "RFC 8259 8.1",
    "the response has more than": "docs/limits.md",
}
WIDER = {"Fail to fetch data": "decision 139: a redirect to the same origin is followed"}


@pytest.fixture
def server() -> Iterator[KeyServer]:
    with serve_keys() as state:
        yield state


def change_server(chance: Random, server: KeyServer, number: int) -> None:
    """Let the server respond in another way: with each body once, then with random responses."""
    document: Any = {"keys": [{"kty": "oct", "k": chance.randbytes(4).hex()}]}
    text = json.dumps(document)
    server.status = chance.choice([200] * 12 + [404, 500, 204])
    server.location = chance.choice([""] * 12 + ["/keys", f"{server.url}/keys", "http://[::1]:1/"])
    bodies = [
        text.encode(),
        text.encode(),
        text.encode("utf-8-sig"),
        text.encode("utf-16"),
        text.replace("}", ', "kty": "RSA"}', 1).encode(),
        *(text.replace('"oct"', value).encode() for value in ("NaN", "1e999", "[" * 20 + "]" * 20)),
        b"[]",
        b"",
        text.encode() + b" " * 1_100_000,
    ]
    server.body = chance.choice(bodies)
    if number < len(bodies):
        server.status = 200
        server.location = ""
        server.body = bodies[number]


def test_fetched_key_sets_are_those_of_pyjwt(server: KeyServer) -> None:
    client = jwt.PyJWKClient(server.jwks_url, cache_jwk_set=False)
    refusals = (jwt.PyJWTError, ValueError)
    with Comparison("fetched key sets", stricter=FETCH_RULES, wider=WIDER) as comparison:
        for number in comparison.rounds(40):
            change_server(comparison.chance, server, number)
            exchange = server.status, server.location, (server.body or b"")[:80]
            own = attempt(lambda: asyncio.run(fetch_key_set(server.jwks_url)), FetchError)
            comparison.compare(exchange, own, attempt(client.fetch_data, *refusals))
        assert comparison.accepted > 3


def test_verifier_keeps_no_key_that_the_provider_has_removed(server: KeyServer) -> None:
    """One verifier over all rotations; its answers are those of PyJWT with a new key set."""
    table = Authorization(algorithm="EdDSA", jwks_url=server.jwks_url)
    kept = Verifier(Settings(authorization=table))
    signers = [Signer(name) for name in ("a", "b", "c")]
    tokens = {signer.kid: signer.sign() for signer in signers}
    impostor = Signer("a").sign()
    with Comparison("rotations of a key set") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(12):
            server.keys = [each.jwk for each in chance.sample(signers, chance.choice([1, 2, 3]))]
            kept.fetch_remote_keys()
            client = jwt.PyJWKClient(server.jwks_url)
            for text in (*tokens.values(), impostor):

                def library(text: str = text, client: Any = client) -> Any:
                    key = client.get_signing_key_from_jwt(text)
                    return jwt.decode(text, key, algorithms=["EdDSA"])["sub"]

                comparison.compare(
                    (server.keys, text),
                    attempt(
                        lambda text=text: kept.identify_jwt(f"Bearer {text}").subject,  # type: ignore[misc]
                        InvalidToken,
                    ),
                    attempt(library, jwt.PyJWTError),
                )


URL_RULES = {
    "The provider names no": "RFC 8414 2: https, or this machine for a provider on it",
    "The provider of the sign-in": "OpenID Connect Discovery 4.3: the issuer is the same text",
}
URLS: list[Any] = [
    "https://id.example/x", "http://id.example/x", "http://127.0.0.1/x", "https://u:p@id.example/",
    "ftp://id.example/", "id.example", "", None, 1, "https://", "https://id.example/?a=b",
]  # fmt: skip


def test_every_discovered_provider_is_accepted_by_mcp(server: KeyServer) -> None:
    """The library has models of the metadata; the challenge of PKCE is compared with RFC 7636."""
    documents: list[Any] = []
    server.respond = lambda path: json.dumps(documents[-1]).encode()  # type: ignore[method-assign]
    with Comparison("discovered providers", stricter=URL_RULES) as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(20):
            document = {
                "issuer": chance.choice([server.url] * 4 + [server.url + "/", "https://else"]),
                "authorization_endpoint": chance.choice([server.url + "/a"] * 20 + URLS),
                "token_endpoint": chance.choice([server.url + "/t"] * 20 + URLS),
            }
            documents.append(document)
            client = OidcClient(Console(oidc_issuer=server.url, oidc_client_id="console"))

            def own(client: OidcClient = client) -> str:
                started = asyncio.run(client.start("https://here/console"))
                query = parse_qs(urlsplit(started.url).query)
                digest = hashlib.sha256(started.code_verifier.encode()).digest()
                assert query["code_challenge"] == [encode_base64url(digest)]
                return started.url.partition("?")[0]

            def library(document: Any = document) -> str:
                urls = build_oauth_authorization_server_metadata_discovery_urls(server.url, "")
                assert server.url + "/.well-known/openid-configuration" in urls
                found = OAuthMetadata.model_validate(document)
                return str(found.authorization_endpoint).partition("?")[0]

            comparison.compare(
                document, attempt(own, Unavailable), attempt(library, pydantic.ValidationError)
            )


def test_every_accepted_url_has_the_parts_of_pydantic() -> None:
    adapter = pydantic.TypeAdapter(pydantic.AnyHttpUrl)
    hosts = ["id.example", "127.0.0.1", "[::1]", "localhost", "0.0.0.0", "127.0.0.1.id.example", ""]
    with Comparison("URLs of providers", stricter={"refused": "RFC 8414 2: https"}) as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(3_000):
            text = (
                chance.choice(["https", "http", "HTTPS", "ftp", ""])
                + chance.choice(["://", ":/", "//"])
                + chance.choice(["", "", "", "u@", "u:p@"])
                + chance.choice(hosts)
                + chance.choice(["", ":8", ":"])
                + chance.choice(["", "/", "/a?b#c"])
            )

            def library(text: str = text) -> bool:
                url = adapter.validate_python(text)
                assert url.scheme == "https" or url.host in ("127.0.0.1", "[::1]", "localhost")
                return True

            def own(text: str = text) -> bool:
                if not is_allowed_url(text):
                    raise ValueError("refused")
                return True

            refusals = (pydantic.ValidationError, AssertionError)
            comparison.compare(text, attempt(own, ValueError), attempt(library, *refusals))


class RandomSignIns:
    """Ends of a sign-in, each with an ID token that the provider gives for its code.

    Attributes:
        id_token: the token of the last end.
        claims: the claims that it was made of.
    """

    def __init__(self, chance: Random, issuer: str, start: oidc.SignInStart) -> None:
        self.id_token: Any = None
        self.claims: dict[str, Any] = {}
        self._chance = chance
        self._issuer = issuer
        self._start = start

    def end(self) -> oidc.SignInEnd:
        """Return the end of a sign-in, for which there is a token of random claims then."""
        start = self._start
        choices: dict[str, list[Any]] = {
            "iss": [self._issuer] * 9 + [self._issuer + "/", None, [self._issuer]],
            "aud": ["console"] * 9 + [["other", "console"], "other", [], None, {"console": 1}],
            "exp": [time.time() + 600] * 9 + [time.time() - 1, None, True, math.inf],
            "nonce": [start.nonce] * 9 + ["None", "", None, 1],
        }
        self.claims = {name: self._chance.choice(values) for name, values in choices.items()}
        self._text = f"{b64(b'{}')}.{b64(compact(self.claims))}.{b64(b'x')}"
        others = [None, "", "a.b.c", self._text[:-9], self.claims]
        self.id_token = self._chance.choice([self._text] * 12 + others)
        nonce = self._chance.choice([start.nonce] * 9 + ["None", ""])
        return oidc.SignInEnd("c", start.code_verifier, nonce, "https://here/console")

    async def exchange(self, url: str, fields: Any, **options: Any) -> dict[str, Any]:
        """Answer as the provider does; it takes the place of `oidc.post_form`."""
        return {"id_token": self.id_token, "access_token": "a"}

    def expect(self, end: oidc.SignInEnd) -> Outcome:
        """Return what the rules of OpenID Connect Core 1.0, 3.1.3.7, make of the claims."""
        expiry = self.claims["exp"]
        is_right = (
            self.id_token == self._text
            and self.claims["iss"] == self._issuer
            and self.claims["aud"] in ("console", ["other", "console"])
            and type(expiry) is float
            and time.time() < expiry < math.inf
            and self.claims["nonce"] == end.nonce
        )
        return Outcome("a") if is_right else Outcome(refusal="refused")


def test_every_accepted_id_token_is_for_the_sign_in(
    server: KeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = OidcClient(Console(oidc_issuer=server.url, oidc_client_id="console"))
    start = asyncio.run(client.start("https://here/console"))
    with Comparison("ID tokens") as comparison:
        sign_ins = RandomSignIns(comparison.chance, server.url, start)
        monkeypatch.setattr(oidc, "post_form", sign_ins.exchange)
        for _ in comparison.rounds(400):
            end = sign_ins.end()
            expected = sign_ins.expect(end)
            found = attempt(lambda end=end: asyncio.run(client.finish(end)).token, BadRequest)  # type: ignore[misc]
            comparison.compare((sign_ins.id_token, sign_ins.claims, end.nonce), found, expected)
        assert comparison.accepted > 50
