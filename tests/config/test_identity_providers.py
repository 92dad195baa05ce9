"""`authorization.provider` fills in what the file and the environment do not set."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from agentctl.config import load_settings
from agentctl.config.load import PRESETS
from agentctl.config.settings import Authorization, IdentityProvider, Settings
from agentctl.errors import InvalidConfiguration
from tests.kit.command import run_command


def load(folder: Path, lines: str, **variables: str) -> Settings:
    file = folder / "agentctl.toml"
    file.write_text(f"[authorization]\n{lines}\n")
    return load_settings(file, variables)


def test_every_provider_is_a_value_of_the_setting() -> None:
    assert {*get_args(IdentityProvider)} == {"none", *PRESETS}


@pytest.mark.parametrize("provider", PRESETS)
def test_defaults_of_a_provider_are_filled_in(provider: str, tmp_path: Path) -> None:
    lines = f'provider = "{provider}"\nissuer = "https://id.example.org"\nrequire_exp = false'
    settings = load(tmp_path, lines)
    table = settings.authorization
    plain = Authorization()
    assert table.oidc_discovery
    assert table.require_sub
    assert (table.issuer, table.require_exp) == ("https://id.example.org", False)
    assert (table.scopes_claim, table.roles_claim) != (plain.scopes_claim, plain.roles_claim)
    sources = settings.sources
    assert sources["authorization.oidc_discovery"] == f"provider {provider}"
    assert sources["authorization.issuer"].endswith("agentctl.toml:3")
    assert sources["authorization.admin_scope"] == "default"


def test_setting_of_the_environment_overrides_the_provider(tmp_path: Path) -> None:
    name = "AGENTCTL_AUTHORIZATION__ROLES_CLAIM"
    given = {name: '["groups"]', "AGENTCTL_AUTHORIZATION__PROVIDER": "google"}
    settings = load(tmp_path, 'roles.staff = ["agents:read"]', **given)
    assert settings.authorization.roles_claim == ("groups",)
    assert settings.authorization.issuer == "https://accounts.google.com"
    assert settings.sources["authorization.roles_claim"] == f"env {name}"


def test_keys_of_a_file_or_url_replace_discovery(tmp_path: Path) -> None:
    lines = 'provider = "okta"\nissuer = "https://id.example.org"\n'
    for key in ('jwks_file = "keys.json"', 'jwks_url = "https://id.example.org/keys"'):
        assert not load(tmp_path, lines + key).authorization.oidc_discovery
    settings = load(tmp_path, lines, JWT_JWKS_FILE="keys.json")
    assert not settings.authorization.oidc_discovery


def test_unknown_provider_and_missing_issuer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration) as unknown:
        load(tmp_path, 'provider = "azure"')
    assert all(f" {name}," in unknown.value.detail for name in PRESETS)
    with pytest.raises(InvalidConfiguration) as missing:
        load(tmp_path, 'provider = "entra"')
    assert "authorization.provider: needs the issuer" in missing.value.detail
    assert "login.microsoftonline.com" in str(missing.value.hint)


def test_sources_name_the_provider(tmp_path: Path) -> None:
    load(tmp_path, 'provider = "google"')
    shown = run_command("config", "show", "--sources", "-o", "tsv", environment={}, folder=tmp_path)
    assert 'authorization.roles_claim\t["hd"]\tprovider google' in shown.lines
