"""The tokens of the page "Identity providers" have the rights that the page states."""

from __future__ import annotations

import json
import re
import shlex
import time
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w

from agentctl.config.load import PRESETS
from tests.kit.command import Result, run_command
from tests.kit.deployment import ADMIN
from tests.kit.documents import page
from tests.kit.forged_tokens import rs, rsa_pair, token


class Section(NamedTuple):
    """A section of the page: the configuration, the claims of a token, and their rights."""

    settings: dict[str, Any]
    claims: dict[str, Any]
    rights: set[str]


def read_section(text: str) -> Section:
    settings, claims = (
        re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        for language in ("toml", "json")
    )
    [rights] = re.findall(r"^Rights: (.*?)\.$", text, re.MULTILINE | re.DOTALL)
    return Section(
        tomllib.loads(settings[0]), json.loads(claims[0]), set(re.findall(r"`(.*?)`", rights))
    )


PAGE = page("docs/identity-providers.md")

SECTIONS = {
    section.settings["authorization"]["provider"]: section
    for section in map(read_section, PAGE.text.split("\n## ")[1:])
}

AGENT = {
    "models": [{"id": "fast", "provider": "demo", "model": "echo"}],
    "agents": [{"id": "writer", "model": "fast"}],
}

UNREAD = {"scopes": [ADMIN], "role": "admin", "scp ": [ADMIN], "Scope": ADMIN, "admin": True}
"""Claims that grant nothing with any provider."""


def ask(folder: Path, section: Section, *command: str, **changes: Any) -> Result:
    """Run a command with the token of a section, which a key of the file has signed."""
    table = section.settings["authorization"]
    own = {"verification_key_files": ["key.pem"], "oidc_discovery": False}
    document = {**section.settings, **AGENT, "authorization": {**table, **own}}
    (folder / "agentctl.toml").write_text(tomli_w.dumps(document))
    (folder / "key.pem").write_bytes(rsa_pair().pem.encode())
    now = int(time.time())
    claims = {**section.claims, "iat": now, "exp": now + 600, **changes}
    header = {"alg": "RS256", "typ": "JWT", "kid": "any"}
    (folder / "ada.token").write_text(token(header, claims, rs(rsa_pair())))
    return run_command(*command, "-o", "json", environment={}, folder=folder)


VERIFY = ("token", "verify", "--token-file", "ada.token")


def test_page_has_a_section_for_each_provider() -> None:
    assert SECTIONS.keys() == PRESETS.keys()


@pytest.mark.parametrize("provider", PRESETS)
def test_token_has_the_stated_rights_and_no_other(provider: str, tmp_path: Path) -> None:
    section = SECTIONS[provider]
    for changes in ({}, UNREAD):
        verified = json.loads(ask(tmp_path, section, *VERIFY, **changes).stdout)
        assert set(verified["scopes"]) == section.rights
        assert verified["admin"] is False


@pytest.mark.parametrize("provider", PRESETS)
def test_commands_of_the_page_explain_a_token(provider: str, tmp_path: Path) -> None:
    [block] = PAGE.blocks("sh")
    for line in block.text.splitlines():
        result = ask(tmp_path, SECTIONS[provider], *shlex.split(line)[1:])
        assert result.code == 0, result.stderr
    refused = ("auth", "explain", "GET", "/audit", *VERIFY[2:])
    assert ask(tmp_path, SECTIONS[provider], *refused).code == 1


@pytest.mark.parametrize("provider", PRESETS)
def test_token_for_another_service_is_refused(provider: str, tmp_path: Path) -> None:
    section = SECTIONS[provider]
    for changes in ({"aud": "elsewhere"}, {"iss": "https://other.example.org/"}):
        verified = ask(tmp_path, section, *VERIFY, **changes)
        is_accepted = provider == "cognito" and "aud" in changes
        assert verified.code == (0 if is_accepted else 4), changes
