"""Tokens in the documented forms of identity providers, at a server with the settings for each."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentctl.config import load_settings
from agentctl.errors import INSUFFICIENT_SCOPES
from agentctl.server.app import create_app
from tests.kit.deployment import ADMIN, Deployment
from tests.kit.forged_tokens import rs, rsa_pair, token
from tests.kit.in_process import HttpRequest, serve_in_process

ROLES = """
[authorization.roles]
operators = ["agents:read", "agents:run"]
viewer = ["agents:read"]
boss = ["agent_os:admin"]
"Agents.Operator" = ["agents:run"]
"2f5fd1a8-5a3f-4a3e-9a5e-3c1f0b7f8a11" = ["audit:read"]
"example.org" = ["agents:read"]
"""

KEYCLOAK = {
    "jti": "1f6d", "iss": "https://id.example/realms/office", "aud": "account", "typ": "Bearer",
    "azp": "agents", "sid": "7be1", "acr": "1", "allowed-origins": ["https://app.example"],
    "realm_access": {"roles": ["default-roles-office", "offline_access", "viewer"]},
    "resource_access": {
        "account": {"roles": ["manage-account", "boss"]},
        "agents-api": {"roles": ["operators"]},
    },
    "scope": "openid profile email sessions:read", "email_verified": False,
    "preferred_username": "ada",
}  # fmt: skip
AUTH0 = {
    "iss": "https://office.eu.auth0.com/", "aud": ["https://agents", "https://office/userinfo"],
    "azp": "my_client_id", "scope": "openid profile sessions:read",
    "permissions": ["agents:read", "agents:run"], "https://example.org/roles": ["viewer", "boss"],
}  # fmt: skip
OKTA = {
    "ver": 1, "jti": "AT.0m", "iss": "https://dev.okta.com/oauth2/aus9", "aud": "api://agents",
    "cid": "0oa1", "uid": "00u1", "scp": ["openid", "agents:read"], "auth_time": 1_800_000_000,
    "groups": ["Everyone", "operators"],
}  # fmt: skip
ENTRA = {
    "aud": "6e74172b", "iss": "https://login.microsoftonline.com/72f9/v2.0", "aio": "AXQ",
    "azp": "6e74", "azpacr": "0", "oid": "6900", "rh": "I", "tid": "72f9", "uti": "fq",
    "ver": "2.0", "scp": "agents:read agents:run",
}  # fmt: skip
ENTRA_V1 = {
    "aud": "api://6e74172b", "iss": "https://sts.windows.net/72f9/", "acr": "1", "amr": ["pwd"],
    "appid": "6e74", "appidacr": "0", "ver": "1.0", "scp": "agents:read", "unique_name": "ada",
    "wids": ["62e90394-69f5-4237-9190-012177145e10"],
}  # fmt: skip
COGNITO = {
    "cognito:groups": ["operators", "eu-central-1_x_Google"], "client_id": "5l1", "version": 2,
    "iss": "https://cognito-idp.eu-central-1.amazonaws.com/eu-central-1_x", "token_use": "access",
    "scope": "aws.cognito.signin.user.admin agents-api/sessions:read other-api/audit:read",
    "username": "ada",
}  # fmt: skip
GOOGLE = {
    "iss": "https://accounts.google.com", "azp": "1.apps.googleusercontent.com",
    "aud": "1.apps.googleusercontent.com", "email": "ada@example.org", "email_verified": True,
    "at_hash": "HK6E", "hd": "example.org",
}  # fmt: skip
RFC_9068 = {
    "iss": "https://authorization-server.example.com/", "aud": "https://rs.example.com/",
    "client_id": "s6BhdRkqt3", "scope": "openid profile agents:read", "groups": ["viewer"],
    "roles": ["boss"], "entitlements": ["operators"],
}  # fmt: skip

SETTINGS: dict[str, str] = {
    "default": "",
    "Keycloak scopes": 'scopes_claim = "scope"',
    "Keycloak roles": 'scopes_claim = ""\nroles_claim = "realm_access.roles"' + ROLES,
    "Keycloak roles of a client": 'roles_claim = "resource_access.agents-api.roles"' + ROLES,
    "Auth0": 'scopes_claim = "permissions"',
    "Auth0 roles": 'scopes_claim = ["scope", "permissions"]\n'
    'roles_claim = "https://example.org/roles"' + ROLES,
    "Okta": 'scopes_claim = "scp"\nroles_claim = "groups"' + ROLES,
    "Entra ID": 'scopes_claim = "scp"\nscope_prefix = "api://6e74172b/"\n'
    'roles_claim = ["roles", "groups"]' + ROLES,
    "Cognito": 'scopes_claim = "scope"\nscope_prefix = "agents-api/"\n'
    'roles_claim = "cognito:groups"' + ROLES,
    "Google": 'roles_claim = "hd"' + ROLES,
    "RFC 9068": 'scopes_claim = ["scopes", "scope"]\nroles_claim = ["groups", "entitlements"]'
    + ROLES,
    "RFC 9068 with administrators": 'scopes_claim = ["scopes", "scope"]\nroles_claim = "roles"\n'
    "roles_may_grant_admin = true" + ROLES,
}
"""Lines of `[authorization]`; the role "boss" is only in those with `roles_may_grant_admin`."""

OPERATORS = {"agents:read", "agents:run"}
READ = {"agents:read"}
GROUP = "2f5fd1a8-5a3f-4a3e-9a5e-3c1f0b7f8a11"

EXPECTED: dict[str, list[tuple[dict[str, Any], set[str]]]] = {
    "default": [
        *((form, set()) for form in (KEYCLOAK, AUTH0, OKTA, ENTRA, ENTRA_V1, COGNITO, GOOGLE)),
        (RFC_9068, set()),
        (RFC_9068 | {"scopes": ["agents:read"]}, READ),
    ],
    "Keycloak scopes": [(KEYCLOAK, {"sessions:read"}), (KEYCLOAK | {"scope": "openid"}, set())],
    "Keycloak roles": [
        (KEYCLOAK, READ),
        (KEYCLOAK | {"realm_access": {"roles": ["Viewer", "agents:run"]}}, set()),
        (KEYCLOAK | {"realm_access.roles": ["operators"]}, OPERATORS),
    ],
    "Keycloak roles of a client": [
        (KEYCLOAK, OPERATORS),
        (KEYCLOAK | {"resource_access": {"account": {"roles": ["operators"]}}}, set()),
        (KEYCLOAK | {"resource_access": {"agents-api": ["operators"]}}, set()),
    ],
    "Auth0": [(AUTH0, OPERATORS), (AUTH0 | {"permissions": []}, set())],
    "Auth0 roles": [(AUTH0, {"sessions:read", *OPERATORS})],
    "Okta": [(OKTA, OPERATORS), (OKTA | {"groups": ["Everyone"]}, READ)],
    "Entra ID": [
        (ENTRA, OPERATORS),
        (ENTRA_V1, READ),
        (ENTRA | {"scp": "api://6e74172b/agents:read api://other/agents:run"}, READ),
        (ENTRA | {"scp": None, "roles": ["Agents.Operator"], "idtyp": "app"}, {"agents:run"}),
        (ENTRA_V1 | {"groups": [GROUP, GROUP.upper()]}, {"agents:read", "audit:read"}),
        (
            ENTRA_V1
            | {
                "scp": "x",
                "_claim_names": {"groups": "src1"},
                "_claim_sources": {"src1": {"endpoint": "https://graph.windows.net/…"}},
            },
            set(),
        ),
    ],
    "Cognito": [(COGNITO, {"sessions:read", *OPERATORS})],
    "Google": [(GOOGLE, READ), (GOOGLE | {"hd": "example.org.evil"}, set())],
    "RFC 9068": [(RFC_9068, OPERATORS), (RFC_9068 | {"groups": ["boss"]}, OPERATORS)],
    "RFC 9068 with administrators": [
        (RFC_9068, {"agents:read", ADMIN}),
        (RFC_9068 | {"roles": ["admin", ADMIN, "Boss", "boss "]}, READ),
    ],
}
"""Claims, and the scopes that they grant with the settings of that name: these and no other."""

UNREAD = {
    0: "scope, realm_access.roles, resource_access",
    1: "scope, permissions",
    2: "scp, groups",
    3: "scp",
    4: "scp",
    5: "scope, cognito:groups",
    6: None,
    7: "scope, roles, groups, entitlements",
}
"""The names in the text of a 403, by the index in EXPECTED["default"]; None for no names."""


def sign(claims: dict[str, Any]) -> str:
    """Sign an access token as RFC 9068 2.1 has it."""
    given = {"sub": "ada", "exp": int(time.time()) + 600, "iat": int(time.time()), **claims}
    return token({"alg": "RS256", "typ": "at+jwt"}, given, rs(rsa_pair()))


def write_settings(folder: Path, name: str) -> Deployment:
    lines = SETTINGS[name]
    if "roles_may_grant_admin" not in lines:
        lines = lines.replace('boss = ["agent_os:admin"]\n', "")
    (folder / "key.pem").write_text(rsa_pair().pem)
    (folder / "agentctl.toml").write_text(
        f'[authorization]\nverification_key_files = ["key.pem"]\n{lines}\n'
        '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n'
    )
    return Deployment(folder)


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_of_providers_have_the_rights_of_their_settings(name: str, tmp_path: Path) -> None:
    deployment = write_settings(tmp_path, name)
    app = create_app(load_settings(deployment.path, {}))
    with serve_in_process(deployment, app) as served:
        tokens = [sign(claims) for claims, _ in EXPECTED[name]]
        answers = served.answers([HttpRequest("GET", "/auth/me", bearer) for bearer in tokens])
        found = [set(answer.json()["scopes"]) for answer in answers]
        assert found == [scopes for _, scopes in EXPECTED[name]]
        for answer, scopes in zip(answers, found, strict=True):
            assert answer.json()["admin"] == (ADMIN in scopes)
        lists = served.answers([HttpRequest("GET", "/agents", bearer) for bearer in tokens])
        allowed = {"agents:read", ADMIN}
        assert [answer.status_code for answer in lists] == [
            200 if scopes & allowed else 403 for scopes in found
        ]
        if name == "default":
            for index, names in UNREAD.items():
                detail = INSUFFICIENT_SCOPES
                if names is not None:
                    detail += f"; the server does not read these claims: {names}"
                assert lists[index].json()["detail"] == detail


def test_denial_names_only_known_claims(tmp_path: Path) -> None:
    """Names and values of other claims are in no response."""
    deployment = write_settings(tmp_path, "Okta")
    hostile = {
        "scope": ["SECRET", {"SECRET": 1}], "https://x/SECRET/roles": ["SECRET"],
        "groups": ["SECRET"], "resource_access": {"SECRET": {"roles": ["SECRET"]}},
    }  # fmt: skip
    app = create_app(load_settings(deployment.path, {}))
    with serve_in_process(deployment, app) as served:
        (answer,) = served.answers([HttpRequest("GET", "/agents", sign(hostile))])
        (some,) = served.answers([HttpRequest("GET", "/agents", sign({**hostile, **OKTA}))])
    assert answer.status_code == 403
    assert answer.json()["detail"].endswith(" does not read these claims: scope, resource_access")
    assert "SECRET" not in answer.text + str(answer.headers)
    assert some.status_code == 200
