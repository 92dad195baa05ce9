"""Warnings at the start of a server about the filesystem of SQLite."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentctl.config import load_settings
from agentctl.service.service import log_startup_warnings


def logged_warnings(folder: Path, caplog: pytest.LogCaptureFixture, url: str) -> list[str]:
    file = folder / "agentctl.toml"
    file.write_text(
        f'[authorization]\nenabled = false\n[[databases]]\nid = "main"\nurl = "{url}"\n'
    )
    with caplog.at_level(logging.WARNING, "agentctl.store"):
        log_startup_warnings(load_settings(file))
    return [record.getMessage() for record in caplog.records]


def test_local_filesystem_logs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.store.sqlite.inspect.NETWORK_FILESYSTEMS", frozenset())
    assert logged_warnings(tmp_path, caplog, "sqlite:///a.db") == []


def test_network_filesystem_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentctl.store.sqlite.inspect import detect_filesystem

    kind = detect_filesystem(tmp_path)
    monkeypatch.setattr("agentctl.store.sqlite.inspect.NETWORK_FILESYSTEMS", frozenset({kind}))
    (place,) = logged_warnings(tmp_path, caplog, "sqlite:///a.db")
    assert place.startswith(f"{tmp_path}/a.db is on a network filesystem ({kind})")


def test_postgres_logs_no_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentctl.store.sqlite.inspect import detect_filesystem

    kind = detect_filesystem(tmp_path)
    monkeypatch.setattr("agentctl.store.sqlite.inspect.NETWORK_FILESYSTEMS", frozenset({kind}))
    assert logged_warnings(tmp_path, caplog, "postgresql://ann@db.example/agents") == []
