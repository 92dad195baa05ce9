"""Warnings at the start of a server about SQLite: an unsafe version or a network filesystem."""

from __future__ import annotations

import logging

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Settings

_log = logging.getLogger("agentctl.store")


def log_startup_warnings(settings: Settings) -> None:
    """Log conditions that can damage a database; `agentctl doctor` reports the remedies."""
    paths = [sqlite_path(entry.url) for entry in settings.databases if is_sqlite_url(entry.url)]
    if not paths:
        return
    from agentctl.service.doctor.configuration import MINIMUM_SQLITE_VERSION, is_at_least
    from agentctl.service.doctor.files import NETWORK_FILESYSTEMS, detect_filesystem
    from agentctl.store.sqlite.inspect import get_sqlite_version

    version = get_sqlite_version()
    if not is_at_least(version, MINIMUM_SQLITE_VERSION):
        _log.warning(
            "SQLite %s can damage a database; %s is required", version, MINIMUM_SQLITE_VERSION
        )
    for path in paths:
        if (kind := detect_filesystem(path)) in NETWORK_FILESYSTEMS:
            _log.warning(
                "%s is on a network filesystem (%s), where SQLite locks are not reliable",
                path,
                kind,
            )
