"""What SQLite stands on, when a server starts: a library and a filesystem that lose no data."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Settings

__all__ = ["log_startup_warnings"]

log = logging.getLogger("agentctl.store")


def log_startup_warnings(settings: Settings) -> None:
    """Log what can damage a database of this configuration (`agentctl doctor` says more)."""
    for text in _find_warnings(settings):
        log.warning("%s", text)


def _find_warnings(settings: Settings) -> Iterator[str]:
    paths = [sqlite_path(entry.url) for entry in settings.databases if is_sqlite_url(entry.url)]
    if not paths:
        return
    from agentctl.service.doctor.configuration import MINIMUM_SQLITE_VERSION, is_at_least
    from agentctl.service.doctor.files import NETWORK_FILESYSTEMS, detect_filesystem
    from agentctl.store.sqlite.inspect import get_sqlite_version

    if not is_at_least(get_sqlite_version(), MINIMUM_SQLITE_VERSION):
        yield (
            f"SQLite {get_sqlite_version()} can damage a database; "
            f"{MINIMUM_SQLITE_VERSION} is needed"
        )
    for path in paths:
        if (kind := detect_filesystem(path)) in NETWORK_FILESYSTEMS:
            yield f"{path} is on a filesystem of the network ({kind}), which SQLite cannot share"
