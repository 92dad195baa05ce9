"""Precedence of environment, file and default, and the source of each value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentctl.config import effective_settings, require_verification_key
from agentctl.errors import InvalidConfiguration
from tests.config.conftest import AGENT, Reads, Refuses

GIVEN: list[tuple[str, str, Any]] = [
    ("server.port", "8080", 8080),
    ("server.host", "0.0.0.0", "0.0.0.0"),
    ("server.name", "7", "7"),
    ("server.name", 'with "quotes" and = signs', 'with "quotes" and = signs'),
    ("server.cors_origins", '["https://a.example", "https://b.example"]',
     ("https://a.example", "https://b.example")),
    ("server.cors_origins", "['https://a.example']", ("https://a.example",)),
    ("server.cors_origins", "[]", ()),
    ("server.drain_seconds", "2.5", 2.5),
    ("server.workers", "4", 4),
    ("server.on_disconnect", "detach", "detach"),
    ("authorization.enabled", "false", False),
    ("authorization.enabled", "True", True),
    ("authorization.algorithm", "ES256", "ES256"),
    ("authorization.verification_keys", '["one\\nline"]', ("one\nline",)),
    ("limits.body_bytes", "1_000", 1000),
]  # fmt: skip


@pytest.mark.parametrize(("key", "text", "expected"), GIVEN)
def test_variable_overrides_file_and_default(
    key: str, text: str, expected: object, reads: Reads
) -> None:
    section, _, name = key.partition(".")
    variable = f"AGENTCTL_{section}__{name}".upper()
    settings = reads("[server]\nport = 1\n", {variable: text})
    assert getattr(getattr(settings, section), name) == expected
    assert settings.sources[key] == f"env {variable}"


WRONG = {
    ("AGENTCTL_SERVER__PORT", "x"): 'must be an integer from 0 to 65535, not "x"',
    ("AGENTCTL_SERVER__PORT", ""): 'must be an integer from 0 to 65535, not ""',
    ("AGENTCTL_SERVER__PORT", "1\nport = 2"): (
        'must be an integer from 0 to 65535, not "1\\nport = 2"'
    ),
    ("AGENTCTL_SERVER__PORT", "9" * 5000): (
        f'must be an integer from 0 to 65535, not "{"9" * 40}…"'
    ),
    ("AGENTCTL_AUTHORIZATION__ENABLED", "yes"): 'must be true or false, not "yes"',
    ("AGENTCTL_SERVER__CORS_ORIGINS", "https://a.example"): (
        'must be a list, each element an origin like "https://app.example.org" without a path, '
        'or "*", not "https://a.example"'
    ),
    ("AGENTCTL_SERVER__PRT", "1"): (
        "this version has no such key; did you mean AGENTCTL_SERVER__PORT?"
    ),
    ("AGENTCTL_SERVER__WORKERS", "0"): "must be an integer from 1 to 64, not 0",
    ("AGENTCTL_DATABASES__MAIN__URL", "x"): "this version has no such key",
    ("JWT_VERIFICATION_KEY", "a\udc80"): ("must not contain NUL or lone surrogates"),
}


@pytest.mark.parametrize(("given", "expected"), WRONG.items())
def test_error_names_the_wrong_variable(
    given: tuple[str, str], expected: str, refuses: Refuses
) -> None:
    assert refuses("", dict([given])) == f"{given[0]}: {expected}"


def test_other_variables_are_ignored(reads: Reads) -> None:
    others = ("CONFIG", "TOKEN", "CONTEXT", "OUTPUT", "NO_INPUT", "TEST_A__B", "PORT", "PORT_80")
    settings = reads("", {f"AGENTCTL_{name}": "tcp://10.0.0.1:80" for name in others})
    assert set(settings.sources.values()) == {"default"}


def test_verification_key_variable_is_added(reads: Reads, file: Path) -> None:
    text = '[authorization]\nverification_keys = ["first"]\n'
    settings = reads(text, {"JWT_VERIFICATION_KEY": "second"})
    assert settings.authorization.verification_keys == ("first", "second")
    source = settings.sources["authorization.verification_keys"]
    assert source == f"{file}:2, env JWT_VERIFICATION_KEY"

    alone = reads("", {"JWT_VERIFICATION_KEY": "second"})
    assert alone.sources["authorization.verification_keys"] == "env JWT_VERIFICATION_KEY"
    again = reads(text, {"JWT_VERIFICATION_KEY": "first"})
    assert again.authorization.verification_keys == ("first",)


def test_jwks_file_variable_is_added(reads: Reads, file: Path) -> None:
    text = '[authorization]\njwks_file = "c.json"\n'
    variable = {"JWT_JWKS_FILE": "a.json"}
    names = {name: file.parent / name for name in ("a.json", "b.json", "c.json")}

    def read(*given: dict[str, str], text: str = text) -> tuple[tuple[Path, ...], str]:
        settings = reads(text, {name: one[name] for one in given for name in one})
        return settings.authorization.jwks_file, settings.sources["authorization.jwks_file"]

    assert read(variable) == ((names["c.json"], names["a.json"]), f"{file}:2, env JWT_JWKS_FILE")
    assert read(variable, text="") == ((names["a.json"],), "env JWT_JWKS_FILE")
    assert read({"JWT_JWKS_FILE": ""}) == ((names["c.json"],), f"{file}:2")
    assert read({"JWT_JWKS_FILE": "./c.json"})[0] == (names["c.json"],)
    override = {"AGENTCTL_AUTHORIZATION__JWKS_FILE": "b.json"}
    assert read(override)[0] == (names["b.json"],)
    assert read(override, variable)[0] == (names["b.json"], names["a.json"])
    several = {"AGENTCTL_AUTHORIZATION__JWKS_FILE": '["a.json", "b.json"]'}
    assert read(several)[0] == (names["a.json"], names["b.json"])
    assert read({"AGENTCTL_AUTHORIZATION__JWKS_FILE": ""})[0] == ()


def test_sources_cover_every_key(reads: Reads, file: Path) -> None:
    settings = reads("[server]\nport = 1\n" + AGENT)
    assert settings.sources["server.port"] == f"{file}:2"
    assert settings.sources["agents.writer.model"] == f"{file}:11"
    assert settings.sources["agents.writer.name"] == "default"
    assert settings.sources["databases.main.url"] == "default"
    shown: set[str] = set()
    for table, value in effective_settings(settings).items():
        for entry in value if isinstance(value, list) else [value]:
            prefix = f"{table}.{entry['id']}" if isinstance(value, list) else table
            shown |= {f"{prefix}.{key}" for key in entry}
    assert shown == settings.sources.keys()


def test_effective_settings_mask_keys(reads: Reads) -> None:
    settings = reads("", {"JWT_VERIFICATION_KEY": "hunter2"})
    shown = effective_settings(settings)
    assert shown["authorization"]["verification_keys"] == ["********"]
    assert "hunter2" not in f"{shown} {settings!r} {settings.sources}"
    assert shown["authorization"]["jwks_file"] == []


def test_server_with_authorization_needs_a_key(reads: Reads) -> None:
    with pytest.raises(InvalidConfiguration, match="no verification key is configured") as caught:
        require_verification_key(reads(""))
    assert "JWT_VERIFICATION_KEY" in (caught.value.hint or "")
    require_verification_key(reads("[authorization]\nenabled = false\n"))
    require_verification_key(reads("", {"JWT_VERIFICATION_KEY": "k"}))
    require_verification_key(reads("", {"JWT_JWKS_FILE": "k.json"}))
    require_verification_key(reads('[authorization]\nverification_key_files = ["k.pem"]\n'))
