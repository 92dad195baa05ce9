"""Mistakes in `[[webhooks]]` are errors with file and key, and secrets are never shown."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from agentctl.config import load_settings
from agentctl.config.tables import effective_settings, settings_from_text, settings_to_text
from agentctl.errors import InvalidConfiguration
from agentctl.webhooks.signing import generate_secret, load_signer

VALID = {
    "id": '"ops"',
    "url": '"https://ops.example.org/hook"',
    "events": '["run.failed"]',
    "secret_env": '"OPS_SECRET"',
}


def write(folder: Path, **changes: str) -> Path:
    lines = {**VALID, **changes}
    file = folder / "agentctl.toml"
    entry = "\n".join(f"{key} = {value}" for key, value in lines.items() if value)
    file.write_text(f"[[webhooks]]\n{entry}\n")
    return file


@pytest.mark.parametrize(
    ("changes", "key", "problem"),
    [
        ({"url": '"http://ops.example.org"'}, "url", "must begin with https"),
        ({"url": '""'}, "url", "must not be empty"),
        ({"url": '"ftp://x"'}, "url", "must be a URL"),
        ({"url": '"https://user:pass@x"'}, "url", "without credentials"),
        ({"events": "[]"}, "events", "at least one event"),
        ({"events": '["run.exploded"]'}, "events[0]", "run.completed"),
        ({"events": '["run.failed", "run.failed"]'}, "events", "twice"),
        ({"secret_env": ""}, "secret_env", "must be set"),
        ({"key_file": '"k.pem"'}, "secret_env", "exactly one"),
        (
            {"secret_env": "", "key_file": '"k.pem"', "previous_secret_env": '"A"'},
            "previous_secret_env",
            "has no effect",
        ),
        ({"agents": '["nobody"]'}, "agents", "no entry of [[agents]]"),
        ({"retries": "3"}, "retries", "no such key"),
    ],
)
def test_mistake_is_an_error_with_its_key(
    tmp_path: Path, changes: dict[str, str], key: str, problem: str
) -> None:
    file = write(tmp_path, **changes)
    with pytest.raises(InvalidConfiguration) as caught:
        load_settings(file, {})
    assert f"{file}: webhooks.ops.{key}" in caught.value.detail
    assert problem in caught.value.detail
    assert "pass@" not in str(caught.value.detail)


def test_two_endpoints_must_have_different_ids(tmp_path: Path) -> None:
    file = write(tmp_path)
    file.write_text(file.read_text() * 2)
    with pytest.raises(InvalidConfiguration, match='has the id "ops"'):
        load_settings(file, {})


@pytest.mark.parametrize(
    ("secret", "problem"),
    [
        (None, "OPS_SECRET is not set"),
        ("", "OPS_SECRET is not set"),
        ("whsec_not base64!", "must be whsec_ and base64"),
        ("whsec_" + base64.b64encode(b"x" * 23).decode(), "24 to 64 bytes, not 23"),
        ("whsec_" + base64.b64encode(b"x" * 65).decode(), "24 to 64 bytes, not 65"),
    ],
)
def test_secret_that_cannot_be_used_is_named_but_not_shown(
    tmp_path: Path, secret: str | None, problem: str
) -> None:
    settings = load_settings(write(tmp_path), {})
    environ = {} if secret is None else {"OPS_SECRET": secret}
    with pytest.raises(InvalidConfiguration) as caught:
        load_signer(settings.webhooks[0], str(settings.path), environ)
    assert f"{settings.path}: webhooks.ops.secret_env" in caught.value.detail
    assert problem in caught.value.detail
    assert not secret or secret not in str(caught.value)


def test_key_file_must_have_an_ed25519_key(tmp_path: Path) -> None:
    file = write(tmp_path, secret_env="", key_file='"key.pem"')
    settings = load_settings(file, {})
    with pytest.raises(InvalidConfiguration, match=r"key\.pem: no such file"):
        load_signer(settings.webhooks[0], "x")
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(InvalidConfiguration, match="no private ed25519 key"):
        load_signer(settings.webhooks[0], "x")


def test_settings_have_the_name_of_the_variable_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = generate_secret()
    monkeypatch.setenv("OPS_SECRET", secret)
    settings = load_settings(write(tmp_path))
    assert secret not in settings_to_text(settings)
    assert secret not in str(effective_settings(settings))
    assert secret not in repr(settings)
    assert settings_from_text(settings_to_text(settings)).webhooks == settings.webhooks
    assert settings.webhooks[0].origin == "https://ops.example.org"
