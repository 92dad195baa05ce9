"""`agentctl init`: something to begin with, and nothing lost."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from agentctl.config import SAMPLE_CONFIG
from tests.cli.conftest import Agentctl


def _files(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_new_project_works(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (0, "")
    assert set(_files(home)) == {"agentctl.toml", "keys/signing.pem", "keys/signing.pub.pem"}
    assert (home / "agentctl.toml").read_text() == SAMPLE_CONFIG
    assert stat.S_IMODE((home / "keys/signing.pem").stat().st_mode) == 0o600
    for said in ("agentctl serve", "agentctl token mint", "agentctl teams list"):
        assert said in ended.stderr
    assert "cd " not in ended.stderr
    assert agentctl("config", "check").code == 0
    token = agentctl("token", "mint", "--sub", "me", "--scope", "teams:read").stdout
    assert agentctl("token", "verify", "-", input=token).code == 0


def test_init_creates_a_given_directory(agentctl: Agentctl, home: Path) -> None:
    ended = agentctl("init", "a b/c")
    assert ended.code == 0
    assert set(_files(home / "a b/c")) == {
        "agentctl.toml",
        "keys/signing.pem",
        "keys/signing.pub.pem",
    }
    assert "cd 'a b/c'" in ended.stderr


@pytest.mark.parametrize("name", ["agentctl.toml", "keys/signing.pem", "keys/signing.pub.pem"])
def test_init_overwrites_nothing(agentctl: Agentctl, home: Path, name: str) -> None:
    (home / "keys").mkdir()
    (home / name).write_text("precious")
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (6, "")
    assert f"{name} already exists" in ended.stderr
    assert _files(home) == {name: "precious"}


def test_a_failed_init_leaves_no_files(agentctl: Agentctl, home: Path) -> None:
    (home / "keys").write_text("precious")
    ended = agentctl("init")
    assert (ended.code, ended.stdout) == (2, "")
    assert _files(home) == {"keys": "precious"}


def test_an_uncreatable_directory_is_reported(agentctl: Agentctl, home: Path) -> None:
    (home / "file").write_text("")
    ended = agentctl("init", "file/inside")
    assert (ended.code, ended.stdout) == (2, "")
    assert "error: " in ended.stderr
