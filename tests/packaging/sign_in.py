"""Sign a person in at an identity provider, as a browser does: OpenID Connect with a code and PKCE.

Arguments: issuer, name. Prints the access token.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import sys
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import httpx2

REDIRECT = "https://app.example.com/signed-in"


def main() -> None:
    """Get a token and print it."""
    issuer, name = sys.argv[1:]
    with httpx2.Client(timeout=30) as client:
        known = client.get(f"{issuer}/.well-known/openid-configuration").json()
        verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest())
        query = {
            "client_id": "app",
            "redirect_uri": REDIRECT,
            "response_type": "code",
            "scope": "openid",
            "code_challenge": challenge.rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        url = f"{known['authorization_endpoint']}?{urlencode(query)}"
        fields = {
            "grant_type": "authorization_code",
            "code": follow_forms(client, url, name, REDIRECT)["code"],
            "redirect_uri": REDIRECT,
            "code_verifier": verifier,
        }
        answer = client.post(known["token_endpoint"], data=fields, auth=("app", "secret"))
        print(answer.raise_for_status().json()["access_token"])


def follow_forms(client: httpx2.Client, url: str, name: str, back: str) -> dict[str, str]:
    """Send the forms for the name and the consent; return the query of the redirect to `back`."""
    response = client.get(url)
    for _ in range(20):
        if response.is_redirect:
            url = urljoin(url, response.headers["Location"])
            if url.startswith(back):
                return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
            response = client.get(url)
            continue
        found = re.search(r'<form[^>]* action="([^"]+)"', response.text)
        prompt = re.search(r'name="prompt" value="(\w+)"', response.text)
        if found is None or prompt is None:
            break
        url = urljoin(url, found[1])
        fields = {"prompt": prompt[1], "login": name, "password": "any"}
        response = client.post(url, data=fields)
    raise SystemExit(f"{url}: status {response.status_code}\n{response.text}")


if __name__ == "__main__":
    main()
