"""What is said at the start of a server of what its databases stand on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentctl.config import load_settings
from agentctl.service.startup_warnings import log_startup_warnings


def told(folder: Path, caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    file = folder / "agentctl.toml"
    file.write_text(
        f'[authorization]\nenabled = false\n[[databases]]\nid = "main"\nurl = "{url}"\n'
    )
    with caplog.at_level(logging.WARNING, "agentctl.store"):
        log_startup_warnings(load_settings(file))
    return [record.getMessage() for record in caplog.records]


def test_of_a_good_library_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.service.doctor.files.NETWORK_FILESYSTEMS", frozenset())
    assert told(tmp_path, caplog, "sqlite:///a.db") == []


def test_a_library_and_a_filesystem_that_may_damage_a_database_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentctl.service.doctor.files import detect_filesystem

    kind = detect_filesystem(tmp_path)
    monkeypatch.setattr("agentctl.service.doctor.files.NETWORK_FILESYSTEMS", frozenset({kind}))
    monkeypatch.setattr("agentctl.service.doctor.configuration.MINIMUM_SQLITE_VERSION", "99.1.0")
    library, place = told(tmp_path, caplog, "sqlite:///a.db")
    assert "can damage a database; 99.1.0 is required" in library
    assert place.startswith(f"{tmp_path}/a.db is on a network filesystem ({kind})")


def test_of_a_server_nothing_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.service.doctor.configuration.MINIMUM_SQLITE_VERSION", "99.1.0")
    assert told(tmp_path, caplog, "postgresql://ann@db.example/agents") == []
