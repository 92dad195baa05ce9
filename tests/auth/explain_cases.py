"""Requests that are refused, each in a way of its own: what explain says of them.

The same request is made of the server, which has to answer what explain says.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentctl.auth.tokens.account_tokens import generate_account_token
from agentctl.auth.tokens.jwk import public_jwk
from tests.auth.forge import (
    SECRET,
    Pair,
    b64,
    ec_pair,
    ed,
    ed_pair,
    es,
    es_der,
    fixed,
    hs,
    rs,
    rsa_pair,
    seal,
    token,
)

__all__ = ["ALL", "CASES", "CONFIGURATIONS", "Case", "Place", "configured", "signed", "signed_for"]

FIRST, SECOND, STRANGER, LARGE = rsa_pair(1), rsa_pair(2), rsa_pair(3), rsa_pair(4, 3072)
ALL = [
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete", "config:read",
]  # fmt: skip

CONFIGURATIONS: dict[str, str] = {
    "jwks": 'jwks_file = "jwks.json"',
    "strict": 'jwks_file = "jwks.json"\nverify_audience = true\nrequire_exp = true\n'
    'require_sub = true\nissuer = "https://id.example/"\nadmin_scope = "own:admin"\n'
    'token_prefix = "acme"',
    "pem": 'verification_key_files = ["one.pem", "two.pem"]\nuser_isolation = false',
    "es": 'algorithm = "ES256"\nverification_key_files = ["es.pem"]',
    "hs": f'algorithm = "HS256"\nverification_keys = ["{SECRET.decode()}"]',
    "ed": 'algorithm = "EdDSA"\nverification_key_files = ["ed.pem"]',
    "off": "enabled = false",
}
"""Lines of `[authorization]`."""

_REST = """
[server]
id = "here"

[[databases]]
id = "main"
url = "sqlite:///main.db"

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
name = "Echo"
model = "echo"

[[agents]]
id = "writer"
name = "Writer"
model = "echo"
"""


def configured(folder: Path, name: str) -> Path:
    """Write a configuration with its keys; the path of its file."""
    encryption = public_jwk(STRANGER.public) | {"kid": "enc", "use": "enc"}
    keys = [_jwk("k1", FIRST), _jwk("k2", SECOND), encryption]
    (folder / "jwks.json").write_text(json.dumps({"keys": keys}))
    pems = {"one": FIRST, "two": LARGE, "es": ec_pair(), "ed": ed_pair()}
    for stem, pair in pems.items():
        (folder / f"{stem}.pem").write_text(pair.pem)
    file = folder / "agentctl.toml"
    file.write_text(f"[authorization]\n{CONFIGURATIONS[name]}\n{_REST}")
    return file


def _jwk(kid: str, pair: Pair) -> dict[str, Any]:
    return {**public_jwk(pair.public), "kid": kid, "use": "sig", "alg": "RS256"}


@dataclass(frozen=True)
class Place:
    """What cases may name: ids of a running server. Empty where it has none."""

    ids: dict[str, str] = field(default_factory=dict)
    accounts: dict[str, str] = field(default_factory=dict)


Make = Callable[[Place], str | None]


@dataclass(frozen=True)
class Case:
    """A request, and what is said of it.

    Attributes:
        request: method and path; `{name}` stands for an id of the place.
        token: makes the credential; None for none.
        status: that is answered; 200 for any success.
        by: the step that decides.
        told: what cause, remedy or findings of that step must say.
        where: the configuration.
    """

    request: str
    token: Make
    status: int = 200
    by: str = "data"
    told: tuple[str, ...] = ()
    where: str = "jwks"

    def asked(self, place: Place) -> tuple[str, str]:
        """Method and path."""
        text = self.request
        for name, value in place.ids.items():
            text = text.replace(f"{{{name}}}", value)
        method, _, path = text.partition(" ")
        return method, path


HEADER = {"alg": "RS256", "kid": "k1", "typ": "JWT"}
NOW = time.time()
DAY = 86_400


def signed(
    claims: dict[str, Any] | None = None,
    *,
    pair: Pair = FIRST,
    scopes: Any = ALL,
    **header: Any,
) -> str:
    """A good token of `me`, but for what is given; a None takes a member away."""
    members = {"sub": "me", "exp": int(NOW) + 3_600, "scopes": scopes, **(claims or {})}
    kept = {name: value for name, value in members.items() if value is not None}
    head = {name: value for name, value in {**HEADER, **header}.items() if value is not None}
    return token(head, kept, rs(pair))


def signed_for(where: str, claims: dict[str, Any]) -> str:
    """A token with these claims that holds by the keys of a configuration."""
    if where == "es":
        return token({"alg": "ES256"}, claims, es(ec_pair()))
    if where == "hs":
        return token({"alg": "HS256"}, claims, hs(SECRET))
    if where == "ed":
        return token({"alg": "EdDSA"}, claims, ed(ed_pair()))
    return signed(claims)


def made(*args: Any, **kwargs: Any) -> Make:
    """What makes such a token."""
    text = signed(*args, **kwargs)
    return lambda _: text


def text(value: str | None) -> Make:
    """The credential as it stands."""
    return lambda _: value


def account(name: str) -> Make:
    """The token of a service account of the server."""
    return lambda place: place.accounts[name]


GOOD = signed()
ONE, TWO, THREE = GOOD.split(".")
AGENT = "GET /agents/echo"


def _credentials() -> Iterator[Case]:
    def no(make: Make, by: str, *told: str) -> Case:
        return Case(AGENT, make, 401, by, told)

    yield no(text(None), "credential", "no credential", "Authorization: Bearer")
    yield no(text(f"Bearer {GOOD}"), "transport", "starts with Bearer")
    yield no(text(f"{ONE} {TWO}.{THREE}"), "transport", "white space")
    yield no(text("b\u00e9\u00e9.b.c"), "transport", "ASCII")
    yield no(text("x" * 8_193), "length", "limits.token_bytes", "8192")
    yield no(text("opaque"), "form", "opaque token", "naming an audience")
    yield no(text(f"{ONE}.{TWO}"), "form", "three segments", "cut off")
    yield no(text(f"{ONE}.{TWO}.{THREE}.x.y"), "form", "encrypted", "JWE")
    yield no(text(f'"{GOOD}"'), "form", "quotation marks")
    yield no(text(f"{ONE}.{TWO}=.{THREE}"), "form", "padded")
    yield no(text(f"{ONE}.{TWO}.ab+/"), "form", "base64url")
    yield no(text(f"{ONE}.{TWO}.a*b"), "form", "base64url", "copy the whole token again")
    yield no(
        text(generate_account_token("agentctl")),
        "account.known",
        "no service account",
        "accounts list",
    )
    yield no(
        text(generate_account_token("agentctl")[:-1] + "!"), "account.form", "cut off or mistyped"
    )
    yield no(text(generate_account_token("other")), "form", "another deployment", "agentctl_pat_")
    yield no(account("revoked"), "account.revoked", "revoked", "accounts create")
    yield Case(
        AGENT, text(generate_account_token("agentctl")), 401, "form", ("acme_pat_",), "strict"
    )


def _headers() -> Iterator[Case]:
    def no(make: Make, by: str, *told: str, where: str = "jwks") -> Case:
        return Case(AGENT, make, 401, by, told, where)

    sign = rs(FIRST)
    yield no(text(token(b"nonsense", {}, sign)), "header", "JSON")
    yield no(text(token({**HEADER, "alg": "none"}, {}, fixed(b""))), "header", "not signed")
    yield no(text(token({**HEADER, "alg": "HS256"}, {}, hs(SECRET))), "header", '"HS256"')
    yield no(made(alg="rs256"), "header", "upper and lower case differ")
    yield no(made(alg="RS512"), "header", 'set authorization.algorithm = "RS512"')
    yield no(made(alg=None), "header", "RS256")
    yield no(made(crit=["exp"]), "header", "crit", "omit that header member")
    yield no(made(typ="logout+jwt"), "header", "logout+jwt", "another purpose")
    yield no(made(kid=7), "header", "kid is not a string")
    yield no(made(kid="k3"), "key", '"k1", "k2"', "authorization.jwks_file")
    yield no(made(kid="K1"), "key", 'similar to "k1"', "case")
    yield no(made(kid="enc", pair=STRANGER), "key", "skipped", '"k1"')
    yield no(made(kid=None), "key", "no kid", "put the kid")
    yield no(made(pair=SECOND), "signature", "another key", 'kid "k1"')
    short = seal(f"{ONE}.{TWO}", lambda data: rs(FIRST)(data)[:-1])
    yield no(text(short), "signature", "255 bytes", "256 bytes", "cut off")
    yield no(text(f"{ONE}.{TWO}."), "signature", "not signed")
    changed = b64(b'{"sub":"you"}')
    yield no(text(f"{ONE}.{changed}.{THREE}"), "signature", "changed afterwards")
    yield no(made(pair=STRANGER, kid=None), "signature", "another key", where="pem")
    es_header = {"alg": "ES256"}
    yield no(text(token(es_header, {}, es_der(ec_pair()))), "signature", "DER", where="es")
    yield no(text(token(es_header, {}, es(ec_pair("P-384")))), "signature", "64 b", where="es")
    yield no(text(token({"alg": "HS256"}, {}, hs(SECRET[1:]))), "signature", "secret", where="hs")
    yield no(text(token({"alg": "EdDSA"}, {}, fixed(b"x" * 64))), "signature", "key", where="ed")
    yield no(text(token({"alg": "EdDSA"}, {}, fixed(b"x" * 63))), "signature", "64", where="ed")


def _claims() -> Iterator[Case]:
    def no(make: Make, by: str, *told: str, where: str = "jwks") -> Case:
        return Case(AGENT, make, 401, f"claims.{by}", told, where)

    yield no(text(token(HEADER, [], rs(FIRST))), "form", "object")
    yield no(made({"exp": int(NOW) - 4 * DAY}), "exp", "expired 4 d ago", "token mint")
    yield no(made({"exp": "tomorrow"}), "exp", "not a number", '"tomorrow"')
    yield no(made({"exp": int(NOW) * 1_000_000}), "exp", "seconds since 1970", "milliseconds")
    yield no(made({"exp": True}), "exp", "true")
    yield no(made({"nbf": int(NOW) + 2 * DAY}), "nbf", "another 2 d", "leeway_seconds is 10")
    yield no(made({"nbf": -5}), "nbf", "1970")
    yield no(made({"iat": int(NOW) + 3 * DAY}), "iat", "in 3 d", "clocks")
    yield no(made({"iat": []}), "iat", "[]")
    yield no(made({"sub": "SA:1"}), "sub", "reserved", "another sub")
    yield no(made({"sub": ""}), "sub", "1 to 255")
    yield no(made({"sub": "a\u202eb"}), "sub", "invisible")
    yield no(made({"sub": 7}), "sub", "not a string")
    yield no(made({"session_id": "a b"}), "session_id", "1 to 128")
    yield no(made({"aud": 7}), "aud", "string")

    def strict(by: str, claims: dict[str, Any], *told: str) -> Case:
        good = {"iss": "https://id.example/", "aud": "here"}
        return no(made({**good, **claims}), by, *told, where="strict")

    yield strict("exp", {"exp": None}, "authorization.require_exp")
    yield strict("sub", {"sub": None}, "authorization.require_sub")
    yield strict("iss", {"iss": None}, "https://id.example/", "add iss")
    yield strict("iss", {"iss": "https://id.example"}, "slash", "authorization.issuer")
    yield strict("iss", {"iss": "http://id.example/"}, "before :// differs")
    yield strict("iss", {"iss": "https://ID.example/"}, "upper and lower case")
    yield strict("iss", {"iss": "https://id.example/tenant"}, "extra text")
    yield strict("iss", {"iss": ["https://id.example/"]}, "authorization.issuer")
    yield strict("aud", {"aud": None}, "server.id", "add aud")
    yield strict("aud", {"aud": "here/"}, "slash")
    yield strict("aud", {"aud": ["Here", "there"]}, "case", "authorization.audience")
    yield strict("aud", {"aud": "there", "azp": "here"}, "azp", "not read")
    yield strict("aud", {"aud": "her"}, "only a part")


def _policies() -> Iterator[Case]:
    def no(request: str, scopes: Any, *told: str, where: str = "jwks", **claims: Any) -> Case:
        return Case(request, made(claims, scopes=scopes), 403, "policy", told, where)

    yield no(AGENT, None, "has no scopes", "agents:echo:read or agents:*:read or agents:read")
    yield no(AGENT, "agents:read sessions:read", "is a text", '["agents:read", "sessions:read"]')
    yield no(AGENT, None, "scope", "not read", "array named scopes", scope="agents:read")
    yield no(AGENT, [], "scp", "not read", scp=["agents:read"])
    yield no(AGENT, None, "realm_access.roles", realm_access={"roles": ["agents:read"]})
    spaced = made({"https://x/scopes": ["agents:read"]}, scopes=None)
    yield Case(AGENT, spaced, 403, "policy", ("https://x/scopes",))
    yield no(AGENT, None, "permissions", permissions=["agents:read"])
    yield no(AGENT, ["sessions:read"], "not read: roles", roles=["x"])
    yield no(AGENT, ["sessions:read"], "none of its scopes allows it")
    yield no(AGENT, ["agents:writer:read"], "for another agent", '"echo"')
    yield no(AGENT, ["agents:Echo:read"], "upper and lower case")
    yield no(AGENT, ["agents:echo:run"], "allows run, not read")
    yield no(AGENT, ["agents:*"], "* is allowed in the middle only", "agents:*:read")
    yield no(AGENT, ["agents:read:*"], "* is allowed in the middle only")
    yield no(AGENT, ["Agents:read"], "upper and lower case")
    yield no(AGENT, [" agents:read"], "white space")
    yield no(AGENT, ["read:agents"], "wrong order")
    yield no(AGENT, ["agents.read"], "one : separates")
    yield no(AGENT, ["agents read"], "one : separates")
    yield no(AGENT, ["sessions:read agents:read"], "a separate entry")
    yield no(AGENT, ["agent:read"], 'did you mean "agents:read"?')
    yield no(AGENT, ["agent_os:ADMIN"], "admin scope", "agent_os:admin")
    yield no(AGENT, ["*"], "admin scope")
    yield no(AGENT, ["!", "a b:c"], "none of its scopes allows it")
    many = ["agents:read", *(f"agents:a{n}:read" for n in range(300))]
    yield no(AGENT, many, "more than 256", "fewer")
    yield no("GET /sessions", ["sessions:s1:read"], "one session", "all of them")
    yield no("GET /sessions/mine", ["sessions:other:read"], "another session")
    yield no("POST /agents/echo/runs", ["agents:read"], "allows read, not run")
    yield no("GET /config", ["agents:read"], "config:read or system:read")
    yield no("POST /auth/explain", ALL, "agent_os:admin", "authorization.admin_scope")
    yield no("GET /audit", ALL, "audit:read")
    yield no("DELETE /sessions/mine?cancel=true", ["sessions:write"], "allows write, not delete")
    default = ["agent_os:admin"]
    good = {"iss": "https://id.example/", "aud": "here"}
    yield no("GET /teams", default, '"own:admin" here', where="strict", **good)
    yield Case("GET /teams", account("reader"), 403, "policy", ('"agents:read"', "teams:read"))


def _routes() -> Iterator[Case]:
    def lost(request: str, *told: str, status: int = 404) -> Case:
        return Case(request, text(GOOD), status, "route", told)

    yield lost("GET /nothing", "no path is similar")
    yield lost("GET /agents/", "no slash at the end")
    yield lost("GET /agents//echo", "one slash")
    yield lost("GET /agents%2Fecho", "%2F")
    yield lost("GET /Agents/echo", "lower case")
    yield lost("GET /api/v1/agents/echo", '"/agents/echo" is known', "root_path")
    yield lost("GET /agent", "did you mean /agents?")
    yield lost("POST /agents", "GET, HEAD", "use GET or HEAD", status=405)
    yield lost("PUT /sessions/mine", "PATCH", status=405)
    yield lost("DELETE /runs/x", "GET", status=405)
    yield Case("GET /nothing", text(None), 401, "credential")
    yield Case("POST /agents", text("a.b"), 401, "form")


def _data() -> Iterator[Case]:
    def lost(request: str, *told: str, status: int = 404, where: str = "jwks") -> Case:
        return Case(request, text(GOOD), status, "data", told, where)

    yield lost("GET /agents/unknown", "Agent not found", "echo, writer", "[[agents]]")
    yield lost("POST /agents/unknown/runs", "echo, writer")
    yield lost("GET /sessions/unknown", "no user has a session", "sessions list")
    yield lost("GET /sessions/theirs", 'belongs to "other"', 'only data that belongs to "me"')
    yield lost("PATCH /sessions/theirs", 'belongs to "other"')
    yield lost("DELETE /sessions/theirs", 'belongs to "other"')
    yield lost("GET /sessions/theirs/runs", 'belongs to "other"')
    yield lost("GET /sessions/ownerless", "has no owner", "without sub")
    yield lost("GET /sessions/mine?type=team", "type agent", "remove type")
    yield lost("GET /sessions/mine?user_id=other", 'belongs to "me"')
    yield lost("GET /sessions/mine?db_id=none", "main", "db_id")
    for listed in ("GET /sessions", "GET /runs", "POST /sessions"):
        yield lost(f"{listed}?db_id=none", "main")
    yield lost("GET /sessions/mine?table=x", "sessions")
    yield lost("GET /runs/{their_run}", 'belongs to "other"')
    yield lost("GET /runs/unknown", "no user has a run")
    yield lost("GET /agents/writer/runs/{my_run}", "agent echo in session mine")
    yield lost("GET /agents/echo/runs/{my_run}?session_id=other", "agent echo in session mine")
    yield lost("GET /agents/echo/runs/{their_run}", 'belongs to "other"')
    yield lost("GET /sessions/mine/runs/{their_run}", 'belongs to "other"')
    yield lost("POST /agents/echo/runs/{my_run}/cancel", "session_id", status=400)
    yield lost("POST /agents/echo/runs/{my_run}/resume", "session_id", status=400)
    yield lost("POST /agents/echo/runs/{their_run}/cancel?session_id=theirs", 'to "other"')
    for part in ("a%00b", "%ff", "a%7f"):
        yield Case(f"GET /agents/{part}", text(GOOD), 404, "parameters", ("no id can be so",))
    admin = signed(scopes=["agent_os:admin"])
    yield Case("DELETE /service-accounts/x", text(admin), 404, "data", ("or it is revoked",))
    nobody = signed({"sub": None})
    yield Case("GET /sessions/mine", text(nobody), 404, "data", ("has no owner",))
    yield Case("GET /sessions/mine", account("sessions"), 404, "data", ('"sa:',))
    yield Case("GET /service-accounts", text(None), 403, "data", ("locally",), "off")


def _allowed() -> Iterator[Case]:
    def yes(request: str, scopes: Any, *told: str, by: str = "policy", **claims: Any) -> Case:
        return Case(request, made(claims, scopes=scopes), 200, by, told)

    yield yes(AGENT, ["agents:read"], "granted by agents:read")
    yield yes(AGENT, ["agents:*:read"], "agents:*:read")
    yield yes("HEAD /agents/echo", ["agents:echo:read"], "agents:echo:read")
    yield yes("GET /agents", ["agents:echo:read"], "in part, for echo")
    yield yes("GET /ag%65nts/ech%6F?x=%2F#y", ["agents:read"])
    yield yes("GET /sessions/mine", ALL)
    yield yes("GET /sessions/theirs", ["agent_os:admin"], "administrator")
    yield yes("GET /sessions/ownerless", ALL, sub=None)
    yield yes("GET /service-accounts", ["agent_os:admin"], "administrator")
    yield yes("GET /auth/me", [], "every valid token")
    yield yes("GET /config", ["system:read"], "system:read")
    yield yes("GET /runs/{my_run}", ALL)
    yield yes("GET /agents/echo/runs/{my_run}?session_id=mine", ALL)
    yield yes("GET /agents/echo/runs/{their_run}", ["agent_os:admin"])
    yield yes("GET /sessions/mine/runs/{my_run}", ALL)
    yield yes("POST /agents/echo/runs/{my_run}/cancel?session_id=mine", ALL)
    yield yes("POST /agents/echo/runs/{my_run}/cancel", ALL, session_id="mine")
    yield yes("GET /agents/echo", ["agents:read"], exp=None)
    for credential in (None, "nonsense", GOOD):
        yield Case("GET /health", text(credential), 200, "policy", ("public",))
    yield Case(AGENT, account("reader"), 200, "policy", ("granted by agents:read",))
    yield Case(AGENT, text(signed(kid=None, pair=LARGE)), where="pem", by="policy")
    yield Case("GET /sessions/none", made(), 404, "data", ("all users",), "pem")
    for make in (text(None), text("nonsense")):
        yield Case(AGENT, make, 200, "policy", ("administrator",), "off")
        yield Case("GET /nothing", make, 404, "route", (), "off")


CASES = [
    *_credentials(), *_headers(), *_claims(), *_policies(), *_routes(), *_data(), *_allowed(),
]  # fmt: skip
