"""The steps of verification by name, in the order in which a token goes through them.

`InvalidToken.check` is one of these names; explain shows them, the audit counts by them. Each step
is a small function of `verifier`, `jws` or `claims` that can be called by itself.
"""

from __future__ import annotations

__all__ = ["ACCOUNT_CHECKS", "CHECKS"]

CHECKS: dict[str, str] = {
    "transport": "the Authorization header is Bearer and one token",
    "length": "the token is not longer than limits.token_bytes",
    "form": "the token is three segments of canonical base64url",
    "header": "the header is an access token's, with the configured algorithm",
    "key": "a key for the token's kid is in use",
    "signature": "the signature holds",
    "claims.form": "the payload is one strict JSON object",
    "claims.exp": "exp is a time that lies ahead",
    "claims.nbf": "nbf is a time that has come",
    "claims.iat": "iat is a time that has come",
    "claims.iss": "iss is the configured issuer",
    "claims.aud": "aud is the configured audience",
    "claims.sub": "sub is a plain name that is not reserved",
    "claims.scopes": "scopes are well-formed; others grant nothing",
    "claims.session_id": "session_id is the id of a session",
}
"""Name of each step, and what it demands."""

ACCOUNT_CHECKS: dict[str, str] = {
    "account.form": "the token of a service account has its length, alphabet and checksum",
    "account.known": "a service account has the token",
    "account.revoked": "the service account is not revoked",
    "account.expired": "the service account has not expired",
}
"""The same for tokens of service accounts: behind `transport` and `length`, instead of others."""
