"""Requests that are rejected for different reasons, with the expected explanations.

The tests send each request to the server too, whose response must match the explanation.
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
from tests.kit.forged_tokens import (
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

__all__ = [
    "ALL",
    "CASES",
    "CONFIGURATIONS",
    "Case",
    "Place",
    "signed",
    "signed_for",
    "write_configuration",
]

FIRST = rsa_pair(1)
SECOND = rsa_pair(2)
STRANGER = rsa_pair(3)
LARGE = rsa_pair(4, 3072)
ALL = [
    "agents:read", "agents:run", "teams:read", "teams:run", "workflows:read", "workflows:run",
    "sessions:read", "sessions:write", "sessions:delete", "config:read",
]  # fmt: skip

CONFIGURATIONS: dict[str, str] = {
    "jwks": 'jwks_file = "jwks.json"',
    "strict": 'jwks_file = "jwks.json"\nverify_audience = true\nrequire_exp = true\n'
    'require_sub = true\nissuer = "https://id.example/"\nadmin_scope = "own:admin"',
    "pem": 'verification_key_files = ["one.pem", "two.pem"]\nuser_isolation = false',
    "es": 'algorithm = "ES256"\nverification_key_files = ["es.pem"]',
    "hs": f'algorithm = "HS256"\nverification_keys = ["{SECRET.decode()}"]',
    "ed": 'algorithm = "EdDSA"\nverification_key_files = ["ed.pem"]',
    "claims": 'jwks_file = "jwks.json"\nscopes_claim = ["scopes", "scope"]\n'
    'scope_prefix = "api://x/"\nroles_claim = ["groups", "realm_access.roles"]\n'
    'roles_may_grant_admin = true\n[authorization.roles]\nviewer = ["agents:read"]\n'
    'boss = ["agent_os:admin"]\nempty = []',
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


def write_configuration(folder: Path, name: str) -> Path:
    """Write a configuration with its keys, and return the path of the file."""
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
    """Ids and accounts of a running server, which cases name; empty without a server."""

    ids: dict[str, str] = field(default_factory=dict)
    accounts: dict[str, str] = field(default_factory=dict)


Make = Callable[[Place], str | None]


@dataclass(frozen=True)
class Case:
    """A request and its expected explanation.

    Attributes:
        request: method and path; `{name}` is replaced with an id of the place.
        token: builds the credential; it returns None for no credential.
        status: the expected status; 200 for any success.
        by: the check that decides.
        expected_texts: parts of the found value, the cause or the remedy of that check.
        where: the configuration.
    """

    request: str
    token: Make
    status: int = 200
    by: str = "data"
    expected_texts: tuple[str, ...] = ()
    where: str = "jwks"

    def asked(self, place: Place) -> tuple[str, str]:
        """Return method and path."""
        text = self.request
        for name, value in place.ids.items():
            text = text.replace(f"{{{name}}}", value)
        method, _, path = text.partition(" ")
        return method, path


HEADER = {"alg": "RS256", "kid": "k1", "typ": "JWT"}
NOW = time.time()
DAY = 86_400


def signed(
    claims: dict[str, Any] | None = None, *, pair: Pair = FIRST, scopes: Any = ALL, **header: Any
) -> str:
    """Return a valid token of `me` with these changes; None removes a member."""
    members = {"sub": "me", "exp": int(NOW) + DAY, "scopes": scopes, **(claims or {})}
    kept = {name: value for name, value in members.items() if value is not None}
    head = {name: value for name, value in {**HEADER, **header}.items() if value is not None}
    return token(head, kept, rs(pair))


def signed_for(where: str, claims: dict[str, Any]) -> str:
    """Return a token with these claims that verifies with the keys of a configuration."""
    if where == "es":
        return token({"alg": "ES256"}, claims, es(ec_pair()))
    if where == "hs":
        return token({"alg": "HS256"}, claims, hs(SECRET))
    if where == "ed":
        return token({"alg": "EdDSA"}, claims, ed(ed_pair()))
    return signed(claims)


def with_token(*args: Any, **kwargs: Any) -> Make:
    """Return a builder of a token with these changes."""
    text = signed(*args, **kwargs)
    return lambda _: text


def text(value: str | None) -> Make:
    """Return a builder of exactly this credential."""
    return lambda _: value


def account(name: str) -> Make:
    """Return a builder of the token of a service account of the server."""
    return lambda place: place.accounts[name]


GOOD = signed()
ONE, TWO, THREE = GOOD.split(".")
AGENT = "GET /agents/echo"


def _credentials() -> Iterator[Case]:
    def rejected(make: Make, by: str, *expected_texts: str) -> Case:
        return Case(AGENT, make, 401, by, expected_texts)

    yield rejected(text(None), "credential", "no credential", "Authorization: Bearer")
    yield rejected(text(f"Bearer {GOOD}"), "transport", "starts with Bearer")
    yield rejected(text(f"{ONE} {TWO}.{THREE}"), "transport", "white space")
    yield rejected(text("b\u00e9\u00e9.b.c"), "transport", "ASCII")
    yield rejected(text("x" * 8_193), "length", "8192 bytes")
    yield rejected(text("opaque"), "form", "opaque token", "naming an audience")
    yield rejected(text(f"{ONE}.{TWO}"), "form", "three segments", "cut off")
    yield rejected(text(f"{ONE}.{TWO}.{THREE}.x.y"), "form", "encrypted", "JWE")
    yield rejected(text(f'"{GOOD}"'), "form", "quotation marks")
    yield rejected(text(f"{ONE}.{TWO}=.{THREE}"), "form", "padded")
    yield rejected(text(f"{ONE}.{TWO}.ab+/"), "form", "base64url")
    yield rejected(text(f"{ONE}.{TWO}.a*b"), "form", "base64url", "copy the whole token again")
    yield rejected(
        text(generate_account_token()), "account.known", "no service account", "accounts list"
    )
    yield rejected(text(generate_account_token()[:-1] + "!"), "account.form", "cut off or mistyped")
    yield rejected(
        text(generate_account_token("other_pat_")), "form", "another deployment", "agentctl_pat_"
    )
    yield rejected(account("revoked"), "account.revoked", "revoked", "accounts create")


def _headers() -> Iterator[Case]:
    def rejected(make: Make, by: str, *expected_texts: str, where: str = "jwks") -> Case:
        return Case(AGENT, make, 401, by, expected_texts, where)

    sign = rs(FIRST)
    yield rejected(text(token(b"nonsense", {}, sign)), "header", "JSON")
    yield rejected(text(token({**HEADER, "alg": "none"}, {}, fixed(b""))), "header", "not signed")
    yield rejected(text(token({**HEADER, "alg": "HS256"}, {}, hs(SECRET))), "header", '"HS256"')
    yield rejected(with_token(alg="rs256"), "header", "upper and lower case differ")
    yield rejected(with_token(alg="RS512"), "header", 'set authorization.algorithm = "RS512"')
    yield rejected(with_token(alg=None), "header", "RS256")
    yield rejected(with_token(crit=["exp"]), "header", "crit", "omit that header member")
    yield rejected(with_token(typ="logout+jwt"), "header", "logout+jwt", "another purpose")
    yield rejected(with_token(kid=7), "header", "kid is not a string")
    yield rejected(with_token(kid="k3"), "key", '"k1", "k2"', "authorization.jwks_file")
    yield rejected(with_token(kid="K1"), "key", 'similar to "k1"', "case")
    yield rejected(with_token(kid="enc", pair=STRANGER), "key", "skipped", '"k1"')
    yield rejected(with_token(kid=None), "key", "no kid", "put the kid")
    yield rejected(with_token(pair=SECOND), "signature", "another key", 'kid "k1"')
    short = seal(f"{ONE}.{TWO}", lambda data: rs(FIRST)(data)[:-1])
    yield rejected(text(short), "signature", "255 bytes", "256 bytes", "cut off")
    yield rejected(text(f"{ONE}.{TWO}."), "signature", "not signed")
    changed = b64(b'{"sub":"you"}')
    yield rejected(text(f"{ONE}.{changed}.{THREE}"), "signature", "changed afterwards")
    yield rejected(with_token(pair=STRANGER, kid=None), "signature", "another key", where="pem")
    es_header = {"alg": "ES256"}
    yield rejected(text(token(es_header, {}, es_der(ec_pair()))), "signature", "DER", where="es")
    yield rejected(
        text(token(es_header, {}, es(ec_pair("P-384")))), "signature", "64 b", where="es"
    )
    yield rejected(
        text(token({"alg": "HS256"}, {}, hs(SECRET[1:]))), "signature", "secret", where="hs"
    )
    yield rejected(
        text(token({"alg": "EdDSA"}, {}, fixed(b"x" * 64))), "signature", "key", where="ed"
    )
    yield rejected(
        text(token({"alg": "EdDSA"}, {}, fixed(b"x" * 63))), "signature", "64", where="ed"
    )


def _claims() -> Iterator[Case]:
    def rejected(make: Make, by: str, *expected_texts: str, where: str = "jwks") -> Case:
        return Case(AGENT, make, 401, f"claims.{by}", expected_texts, where)

    yield rejected(text(token(HEADER, [], rs(FIRST))), "form", "object")
    yield rejected(with_token({"exp": int(NOW) - 4 * DAY}), "exp", "expired 4 d ago", "token mint")
    yield rejected(with_token({"exp": "tomorrow"}), "exp", "not a number", '"tomorrow"')
    yield rejected(
        with_token({"exp": int(NOW) * 1_000_000}), "exp", "seconds since 1970", "milliseconds"
    )
    yield rejected(with_token({"exp": True}), "exp", "true")
    yield rejected(with_token({"nbf": int(NOW) + 2 * DAY}), "nbf", "another 2 d", "leeway is 10 s")
    yield rejected(with_token({"nbf": -5}), "nbf", "1970")
    yield rejected(with_token({"iat": int(NOW) + 3 * DAY}), "iat", "in 3 d", "clocks")
    yield rejected(with_token({"iat": []}), "iat", "[]")
    yield rejected(with_token({"sub": "SA:1"}), "sub", "reserved", "another sub")
    yield rejected(with_token({"sub": ""}), "sub", "1 to 255")
    yield rejected(with_token({"sub": "a\u202eb"}), "sub", "invisible")
    yield rejected(with_token({"sub": 7}), "sub", "not a string")
    yield rejected(with_token({"session_id": "a b"}), "session_id", "1 to 128")
    yield rejected(with_token({"aud": 7}), "aud", "string")

    def strict(by: str, claims: dict[str, Any], *expected_texts: str) -> Case:
        good = {"iss": "https://id.example/", "aud": "here"}
        return rejected(with_token({**good, **claims}), by, *expected_texts, where="strict")

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
    def rejected(
        request: str, scopes: Any, *expected_texts: str, where: str = "jwks", **claims: Any
    ) -> Case:
        return Case(
            request, with_token(claims, scopes=scopes), 403, "policy", expected_texts, where
        )

    yield rejected(AGENT, None, "has no scopes", "agents:echo:read or agents:*:read or agents:read")
    yield rejected(
        AGENT, "agents:read sessions:read", "is a text", '["agents:read", "sessions:read"]'
    )
    yield rejected(
        AGENT, None, "scope", "not read", 'scopes_claim = ["scopes", "scope"]', scope="agents:read"
    )
    yield rejected(AGENT, [], "scp", "not read", scp=["agents:read"])
    yield rejected(AGENT, None, "realm_access.roles", realm_access={"roles": ["agents:read"]})
    spaced = with_token({"https://x/scopes": ["agents:read"]}, scopes=None)
    yield Case(AGENT, spaced, 403, "policy", ("https://x/scopes",))
    yield rejected(AGENT, None, "permissions", permissions=["agents:read"])
    yield rejected(AGENT, ["sessions:read"], "not read: roles", roles=["x"])
    yield rejected(AGENT, ["sessions:read"], "none of its scopes allows it")
    yield rejected(AGENT, ["agents:writer:read"], "for another agent", '"echo"')
    yield rejected(AGENT, ["agents:Echo:read"], "upper and lower case")
    yield rejected(AGENT, ["agents:echo:run"], "allows run, not read")
    yield rejected(AGENT, ["agents:*"], "* is allowed in the middle only", "agents:*:read")
    yield rejected(AGENT, ["agents:read:*"], "* is allowed in the middle only")
    yield rejected(AGENT, ["Agents:read"], "upper and lower case")
    yield rejected(AGENT, [" agents:read"], "white space")
    yield rejected(AGENT, ["read:agents"], "wrong order")
    yield rejected(AGENT, ["agents.read"], "one : separates")
    yield rejected(AGENT, ["agents read"], "one : separates")
    yield rejected(AGENT, ["sessions:read agents:read"], "a separate entry")
    yield rejected(AGENT, ["agent:read"], 'did you mean "agents:read"?')
    yield rejected(AGENT, ["agent_os:ADMIN"], "admin scope", "agent_os:admin")
    yield rejected(AGENT, ["*"], "admin scope")
    yield rejected(AGENT, ["!", "a b:c"], "none of its scopes allows it")
    many = ["agents:read", *(f"agents:a{n}:read" for n in range(300))]
    yield rejected(AGENT, many, "more than 256", "fewer")
    yield rejected("GET /sessions", ["sessions:s1:read"], "one session", "all of them")
    yield rejected("GET /sessions/mine", ["sessions:other:read"], "another session")
    yield rejected("POST /agents/echo/runs", ["agents:read"], "allows read, not run")
    yield rejected("GET /config", ["agents:read"], "config:read or system:read")
    yield rejected("POST /auth/explain", ALL, "agent_os:admin", "authorization.admin_scope")
    yield rejected("GET /audit", ALL, "audit:read")
    yield rejected(
        "DELETE /sessions/mine?cancel=true", ["sessions:write"], "allows write, not delete"
    )
    yield from _roles(rejected)
    default = ["agent_os:admin"]
    good = {"iss": "https://id.example/", "aud": "here"}
    yield rejected("GET /teams", default, '"own:admin" here', where="strict", **good)
    yield Case("GET /teams", account("reader"), 403, "policy", ('"agents:read"', "teams:read"))


def _roles(rejected: Callable[..., Case]) -> Iterator[Case]:
    """Denials with other claims than `scopes`."""

    def unread(line: str, **claims: Any) -> Case:
        return rejected(AGENT, None, f"set {line} in [authorization]", where="claims", **claims)

    yield rejected(AGENT, None, 'roles_claim = ["roles"]', "authorization.roles", roles=["ops"])
    client = {"my.api": {"roles": ["ops"]}, "x\u202e": {"roles": ["agents:read"]}, "n": None}
    yield rejected(
        AGENT, None, "not read: resource_access.my.api.roles", resource_access=client, scope=[]
    )
    yield unread('scopes_claim = ["scopes", "scope", "permissions"]', permissions=["agents:read"])
    yield unread('scopes_claim = ["scopes", "scope", "groups2:scope"]', **{"groups2:scope": ["x"]})
    names = '["groups", "realm_access.roles", "cognito:groups"]'
    yield unread(f"roles_claim = {names}", **{"cognito:groups": ["x"], "scp": "openid"})

    def denied(scopes: Any, *expected_texts: str, **claims: Any) -> Case:
        return rejected(AGENT, scopes, *expected_texts, where="claims", **claims)

    yield denied(None, 'groups: not in [authorization.roles]: "editor"', groups=["editor"])
    line = 'set scopes_claim = ["scopes", "scope", "scp"] in [authorization]'
    some = {"where": "claims", "groups": ["viewer"], "scp": "openid agents:run"}
    yield rejected("POST /agents/echo/runs", None, line, **some)
    yield denied(["sessions:read"], line, groups=["editor"], scp="agents:read", roles=["x"])
    yield denied(None, '"empty" grants nothing', "has the scopes of roles", groups="empty")
    yield denied(None, "groups: 7 is not an array", groups=7)
    yield denied(None, "groups: 257 entries are too many", groups=["viewer"] * 257)
    yield denied(None, "allows run, not read", scope="openid api://x/agents:run")
    yield denied(None, "scope has more than 256", scope="agents:read " * 257)
    yield rejected(
        "POST /agents/echo/runs",
        [],
        '"viewer" grants agents:read',
        where="claims",
        groups=["viewer"],
    )


def _routes() -> Iterator[Case]:
    def not_found(request: str, *expected_texts: str, status: int = 404) -> Case:
        return Case(request, text(GOOD), status, "route", expected_texts)

    yield not_found("GET /nothing", "no path is similar")
    yield not_found("GET /agents/", "no slash at the end")
    yield not_found("GET /agents//echo", "one slash")
    yield not_found("GET /agents%2Fecho", "%2F")
    yield not_found("GET /Agents/echo", "lower case")
    yield not_found("GET /api/v1/agents/echo", '"/agents/echo" is known', "root_path")
    yield not_found("GET /agent", "did you mean /agents?")
    yield not_found("POST /agents", "GET, HEAD", "use GET or HEAD", status=405)
    yield not_found("PUT /sessions/mine", "PATCH", status=405)
    yield not_found("DELETE /runs/x", "GET", status=405)
    yield Case("GET /nothing", text(None), 401, "credential")
    yield Case("POST /agents", text("a.b"), 401, "form")


def _data() -> Iterator[Case]:
    def not_found(
        request: str, *expected_texts: str, status: int = 404, where: str = "jwks"
    ) -> Case:
        return Case(request, text(GOOD), status, "data", expected_texts, where)

    yield not_found("GET /agents/unknown", "Agent not found", "echo, writer", "[[agents]]")
    yield not_found("POST /agents/unknown/runs", "echo, writer")
    yield not_found("GET /sessions/unknown", "no user has a session", "sessions list")
    yield not_found("GET /sessions/theirs", 'belongs to "other"', 'only data that belongs to "me"')
    yield not_found("PATCH /sessions/theirs", 'belongs to "other"')
    yield not_found("DELETE /sessions/theirs", 'belongs to "other"')
    yield not_found("GET /sessions/theirs/runs", 'belongs to "other"')
    yield not_found("GET /sessions/ownerless", "has no owner", "without sub")
    yield not_found("GET /sessions/mine?type=team", "type agent", "remove type")
    yield not_found("GET /sessions/mine?user_id=other", 'belongs to "me"')
    yield not_found("GET /sessions/mine?db_id=none", "main", "db_id")
    for listed in ("GET /sessions", "GET /runs", "POST /sessions"):
        yield not_found(f"{listed}?db_id=none", "main")
    yield not_found("GET /sessions/mine?table=x", "sessions")
    yield not_found("GET /runs/{their_run}", 'belongs to "other"')
    yield not_found("GET /runs/unknown", "no user has a run")
    yield not_found("GET /agents/writer/runs/{my_run}", "agent echo in session mine")
    yield not_found("GET /agents/echo/runs/{my_run}?session_id=other", "agent echo in session mine")
    yield not_found("GET /agents/echo/runs/{their_run}", 'belongs to "other"')
    yield not_found("GET /sessions/mine/runs/{their_run}", 'belongs to "other"')
    yield not_found("POST /agents/echo/runs/{my_run}/cancel", "session_id", status=400)
    yield not_found("POST /agents/echo/runs/{my_run}/resume", "session_id", status=400)
    yield not_found("POST /agents/echo/runs/{their_run}/cancel?session_id=theirs", 'to "other"')
    for part in ("a%00b", "%ff", "a%7f"):
        yield Case(f"GET /agents/{part}", text(GOOD), 404, "parameters", ("no id can be so",))
    admin = signed(scopes=["agent_os:admin"])
    yield Case("DELETE /service-accounts/x", text(admin), 404, "data", ("or it is revoked",))
    nobody = signed({"sub": None})
    yield Case("GET /sessions/mine", text(nobody), 404, "data", ("has no owner",))
    yield Case("GET /sessions/mine", account("sessions"), 404, "data", ('"sa:',))
    yield Case("GET /service-accounts", text(None), 403, "data", ("locally",), "off")


def _allowed() -> Iterator[Case]:
    def allowed(
        request: str, scopes: Any, *expected_texts: str, by: str = "policy", **claims: Any
    ) -> Case:
        return Case(request, with_token(claims, scopes=scopes), 200, by, expected_texts)

    yield allowed(AGENT, ["agents:read"], "granted by agents:read")
    yield allowed(AGENT, ["agents:*:read"], "agents:*:read")

    def by_claims(request: str, *expected_texts: str, **claims: Any) -> Case:
        return Case(
            request, with_token(claims, scopes=None), 200, "policy", expected_texts, "claims"
        )

    yield by_claims(AGENT, "by agents:read, by the claim scope", scope="x api://x/agents:read")
    yield by_claims(AGENT, 'agents:read, by the role "viewer" of groups', groups=["viewer"])
    boss = {"roles": ["boss"]}
    yield by_claims("GET /budgets", 'the role "boss" of realm_access.roles', realm_access=boss)
    yield allowed("HEAD /agents/echo", ["agents:echo:read"], "agents:echo:read")
    yield allowed("GET /agents", ["agents:echo:read"], "in part, for echo")
    yield allowed("GET /ag%65nts/ech%6F?x=%2F#y", ["agents:read"])
    yield allowed("GET /sessions/mine", ALL)
    yield allowed("GET /sessions/theirs", ["agent_os:admin"], "administrator")
    yield allowed("GET /sessions/ownerless", ALL, sub=None)
    yield allowed("GET /service-accounts", ["agent_os:admin"], "administrator")
    yield allowed("GET /auth/me", [], "every valid token")
    yield allowed("GET /config", ["system:read"], "system:read")
    yield allowed("GET /runs/{my_run}", ALL)
    yield allowed("GET /agents/echo/runs/{my_run}?session_id=mine", ALL)
    yield allowed("GET /agents/echo/runs/{their_run}", ["agent_os:admin"])
    yield allowed("GET /sessions/mine/runs/{my_run}", ALL)
    yield allowed("POST /agents/echo/runs/{my_run}/cancel?session_id=mine", ALL)
    yield allowed("POST /agents/echo/runs/{my_run}/cancel", ALL, session_id="mine")
    yield allowed("GET /agents/echo", ["agents:read"], exp=None)
    for credential in (None, "nonsense", GOOD):
        yield Case("GET /health", text(credential), 200, "policy", ("public",))
    yield Case(AGENT, account("reader"), 200, "policy", ("granted by agents:read",))
    yield Case(AGENT, text(signed(kid=None, pair=LARGE)), where="pem", by="policy")
    yield Case("GET /sessions/none", with_token(), 404, "data", ("all users",), "pem")
    for make in (text(None), text("nonsense")):
        yield Case(AGENT, make, 200, "policy", ("administrator",), "off")
        yield Case("GET /nothing", make, 404, "route", (), "off")


CASES = [
    *_credentials(), *_headers(), *_claims(), *_policies(), *_routes(), *_data(), *_allowed(),
]  # fmt: skip
