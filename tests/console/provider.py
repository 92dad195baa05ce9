"""A small OIDC provider in a process: `python -m tests.console.provider CLIENT_ID`.

It prints its issuer, registers the redirect URI that is sent to `/register`, shows a form for the
name of the user, and checks everything that a public client sends: the registered redirect URI,
PKCE with S256, one use of each code. A user named `refused` is sent back with an error; tokens of a
user named `stranger` have another audience.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from agentctl.auth.keys.signing import generate_key

__all__ = ["AUDIENCE", "run_provider"]

AUDIENCE = "world"

SCOPES = ["sessions:read", "agents:read", "agents:run"]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


class _Provider(BaseHTTPRequestHandler):
    """The endpoints: configuration, keys, authorization, token."""

    key: ClassVar[Any] = load_pem_private_key(generate_key("RS256"), None)
    issuer: ClassVar[str] = ""
    client_id: ClassVar[str] = ""
    redirect_uri: ClassVar[str] = ""
    codes: ClassVar[dict[str, dict[str, str]]] = {}

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        place = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        if place.path == "/.well-known/openid-configuration":
            self._send_json(
                {
                    "issuer": self.issuer,
                    "jwks_uri": f"{self.issuer}/jwks",
                    "authorization_endpoint": f"{self.issuer}/authorize",
                    "token_endpoint": f"{self.issuer}/token",
                }
            )
        elif place.path == "/jwks":
            self._send_json({"keys": [self._public_key()]})
        elif place.path == "/authorize":
            self._authorize(query)
        else:
            self._send(404, "text/plain", b"not found")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(content).items()}
        if self.path == "/register":
            type(self).redirect_uri = form["redirect_uri"]
            self._send(204, "text/plain", b"")
        elif self.path == "/token":
            self._exchange(form)
        else:
            self._log_in(form)

    def _authorize(self, query: dict[str, str]) -> None:
        expected = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "code_challenge_method": "S256",
        }
        wrong = [name for name, value in expected.items() if query.get(name) != value]
        wrong += [name for name in ("state", "nonce", "code_challenge") if not query.get(name)]
        if wrong or "openid" not in query.get("scope", "").split():
            self._send(400, "text/plain", f"wrong: {wrong}".encode())
            return
        fields = "".join(
            f'<input type="hidden" name="{name}" value="{html.escape(query[name])}">'
            for name in ("state", "nonce", "code_challenge")
        )
        page = (
            f'<!doctype html><title>Provider</title><form method="post" action="/login">{fields}'
            '<label>Name <input name="user"></label><button>Log in</button></form>'
        )
        self._send(200, "text/html", page.encode())

    def _log_in(self, form: dict[str, str]) -> None:
        answer = {"state": form["state"], "iss": self.issuer}
        if form["user"] == "refused":
            answer["error"] = "access_denied"
        else:
            answer["code"] = secrets.token_urlsafe(16)
            self.codes[answer["code"]] = form
        self.send_response(303)
        self.send_header("Location", f"{self.redirect_uri}?{urlencode(answer)}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _exchange(self, form: dict[str, str]) -> None:
        granted = self.codes.pop(form.get("code", ""), None)
        digest = _encode(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (
            granted is None
            or form.get("grant_type") != "authorization_code"
            or form.get("client_id") != self.client_id
            or form.get("redirect_uri") != self.redirect_uri
            or digest != granted["code_challenge"]
        ):
            self._send_json({"error": "invalid_grant"}, 400)
            return
        user = granted["user"]
        now = int(time.time())
        common = {"iss": self.issuer, "sub": user, "iat": now, "exp": now + 600}
        audience = "elsewhere" if user == "stranger" else AUDIENCE
        access = {**common, "aud": audience, "scopes": SCOPES}
        identity = {**common, "aud": self.client_id, "nonce": granted["nonce"]}
        self._send_json(
            {
                "access_token": self._sign(access),
                "id_token": self._sign(identity),
                "token_type": "Bearer",
                "expires_in": 600,
            }
        )

    def _public_key(self) -> dict[str, str]:
        numbers = self.key.public_key().public_numbers()
        modulus = numbers.n.to_bytes((numbers.n.bit_length() + 7) // 8, "big")
        exponent = numbers.e.to_bytes(3, "big")
        fields = {"n": _encode(modulus), "e": _encode(exponent)}
        return {"kty": "RSA", "use": "sig", "alg": "RS256", "kid": "provider", **fields}

    def _sign(self, claims: dict[str, Any]) -> str:
        from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
        from cryptography.hazmat.primitives.hashes import SHA256

        header = {"alg": "RS256", "typ": "JWT", "kid": "provider"}
        signed = ".".join(_encode(json.dumps(part).encode()) for part in (header, claims))
        return f"{signed}.{_encode(self.key.sign(signed.encode(), PKCS1v15(), SHA256()))}"

    def _send_json(self, value: Any, status: int = 200) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _send(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def run_provider(client_id: str) -> Iterator[str]:
    """Start a provider; yield its issuer, and end the process after the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.console.provider", client_id],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def main() -> None:
    """Serve until the process is terminated."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Provider)
    _Provider.client_id = sys.argv[1]
    _Provider.issuer = f"http://127.0.0.1:{server.server_port}"
    print(_Provider.issuer, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
