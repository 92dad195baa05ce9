"""Known identity providers: `authorization.provider` fills in the settings for their tokens.

A setting of the file or of the environment stays. docs/identity-providers.md has the form of the
tokens of each provider, and what to configure there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from agentctl.config.places import Place

if TYPE_CHECKING:
    from agentctl.config.settings import Authorization


class _Preset(NamedTuple):
    """The form of the issuer of a provider, and the settings that differ from `_COMMON`."""

    issuer: str
    settings: Mapping[str, Any]


_COMMON: Mapping[str, Any] = {
    "oidc_discovery": True,
    "verify_audience": True,
    "require_exp": True,
    "require_sub": True,
}

_GOOGLE = "https://accounts.google.com"

PRESETS: Mapping[str, _Preset] = {
    "auth0": _Preset("https://TENANT.auth0.com/", {"scopes_claim": ("scope", "permissions")}),
    "cognito": _Preset(
        "https://cognito-idp.REGION.amazonaws.com/POOL",
        {
            # Access tokens have no `aud`.
            "verify_audience": False,
            "scopes_claim": ("scope",),
            "scope_prefix": "agentctl/",
            "roles_claim": ("cognito:groups",),
        },
    ),
    "entra": _Preset(
        "https://login.microsoftonline.com/TENANT-ID/v2.0",
        {"scopes_claim": ("scp",), "roles_claim": ("roles", "groups")},
    ),
    "google": _Preset(_GOOGLE, {"issuer": _GOOGLE, "scopes_claim": (), "roles_claim": ("hd",)}),
    "keycloak": _Preset(
        "https://HOST/realms/REALM",
        {"scopes_claim": ("scope",), "roles_claim": ("realm_access.roles",)},
    ),
    "okta": _Preset(
        "https://ORG.okta.com/oauth2/default",
        {"scopes_claim": ("scp",), "roles_claim": ("groups",)},
    ),
}
"""The providers by the values of `authorization.provider`."""


def fill_in_provider(table: Authorization, places: dict[str, Place]) -> Authorization:
    """Return the table with the settings of its provider in the place of defaults.

    Args:
        places: those of all keys; those of the settings that are filled in name the provider.

    Raises:
        InvalidConfiguration: the provider needs an issuer, and there is none.
    """
    preset = PRESETS.get(table.provider)
    if preset is None:
        return table
    values = {**_COMMON, **preset.settings}
    if table.jwks_url or table.jwks_file:
        del values["oidc_discovery"]
    keys = {name: f"authorization.{name}" for name in values}
    values = {name: value for name, value in values.items() if not places[keys[name]].given}
    if not table.issuer and "issuer" not in values:
        places["authorization.provider"].refuse(
            "needs the issuer", hint=f'set issuer = "{preset.issuer}" in [authorization]'
        )
    for name in values:
        places[keys[name]] = replace(places[keys[name]], provider=table.provider)
    return replace(table, **values)
