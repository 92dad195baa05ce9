"""Checks of `agentctl doctor --production`: intended on a laptop, wrong on a server."""

from __future__ import annotations

import os
import resource
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from agentctl.admin.doctor.files import check_private
from agentctl.auth.explain.credential import quote_value
from agentctl.auth.explain.origins import describe_claims, find_unread_claims, suggest_setting
from agentctl.auth.tokens.grants import ScopeRules, collect_scopes
from agentctl.auth.tokens.mint import inspect_token
from agentctl.config.databases import is_sqlite_url, sqlite_path
from agentctl.config.settings import Settings
from agentctl.errors import InvalidToken
from agentctl.records.system import Finding, note, ok, wrong
from agentctl.records.times import format_span

BACKUPS = Path("/var/lib/agentctl-backups")
"""The folder of the unit `agentctl-backup@.service`."""

BACKUP_SECONDS = 26 * 3600
"""Age of the newest backup: a day, and the time that a nightly backup takes and may be delayed."""

LEAST_DESCRIPTORS = 4096
"""A stream takes a descriptor, and so does each connection of its agent to a model or tool."""

_CHECK = "production"


def check_production(settings: Settings, backups: Path | None) -> Iterator[Finding]:
    """Check what a server in production needs, in addition to the other checks.

    Args:
        backups: the folder with the backups of SQLite databases, by default `BACKUPS`.
    """
    findings = [
        *_check_demo(settings),
        *_check_settings(settings),
        *_check_rights(settings),
        *_check_token(settings),
        *_check_files(settings),
        *_check_limits(),
        *_check_backups(settings, backups),
    ]
    if all(finding.verdict == "ok" for finding in findings):
        yield ok(_CHECK, "the configuration, its files and its limits are those of a server")
    yield from findings


def _check_demo(settings: Settings) -> Iterator[Finding]:
    demo = sorted(model.id for model in settings.models if model.provider == "demo")
    if demo:
        text = f"models without a provider, which repeat their input: {', '.join(demo)}"
        yield wrong(_CHECK, text, 'remove the [[models]] with provider = "demo"')

    folders = {settings.signing.key_file.parent.parent}
    if settings.path is not None:
        folders.add(settings.path.parent)
    if any((folder / "demo_agents.py").exists() for folder in folders):
        remedy = "agentctl init FOLDER, which generates other keys"
        yield wrong(_CHECK, "the configuration and the keys are those of `serve --demo`", remedy)


def _check_settings(settings: Settings) -> Iterator[Finding]:
    if not settings.authorization.enabled:
        text = "authorization is off: everyone who reaches the server is an administrator"
        yield wrong(_CHECK, text, "enabled = true in [authorization]")
    if settings.log.level == "debug":
        yield wrong(_CHECK, "the log is written at level debug", 'level = "info" in [log]')
    if settings.log.format != "json":
        text = "the log has lines for people, which log systems cannot search by field"
        yield note(_CHECK, text, 'format = "json" in [log]')
    if not settings.metrics.listen:
        text = "no metrics are published, so no alert can report a failure"
        yield note(_CHECK, text, 'listen = "127.0.0.1:9107" in [metrics]')

    quotas = settings.quotas
    if not (quotas.sessions_per_user or quotas.bytes_per_user):
        text = "no quota: one user can fill the disk, for sessions are kept until they are deleted"
        yield note(_CHECK, text, "bytes_per_user = 1000000000 in [quotas]")


def _check_rights(settings: Settings) -> Iterator[Finding]:
    table = settings.authorization
    for role, scopes in table.roles.items():
        if table.admin_scope in scopes:
            text = f"the role {quote_value(role)} allows everything, on the data of every user"
            yield note(_CHECK, text, f"remove {table.admin_scope} from it, if that is not meant")


def _check_token(settings: Settings) -> Iterator[Finding]:
    """Describe what the claims of the token in AGENTCTL_TOKEN grant here; nothing is verified."""
    try:
        claims = inspect_token(os.environ.get("AGENTCTL_TOKEN", "").strip())["claims"]
    except InvalidToken:
        return

    rules = ScopeRules.from_settings(settings.authorization)
    text = f"scopes of the token in AGENTCTL_TOKEN: {describe_claims(claims, rules)}"
    if collect_scopes(claims, rules):
        yield ok(_CHECK, text)
        return

    remedy = "grant it scopes"
    unread_claims = find_unread_claims(claims, rules)
    if unread_claims:
        remedy = suggest_setting(unread_claims, rules)
    yield note(_CHECK, text, remedy)


def _check_files(settings: Settings) -> Iterator[Finding]:
    if settings.path is not None and os.access(settings.path, os.R_OK):
        mode = stat.S_IMODE(settings.path.stat().st_mode)
        if mode & stat.S_IROTH:
            text = f"every user may read the configuration {settings.path}"
            yield note(_CHECK, text, f"chmod o-r {shlex.quote(str(settings.path))}")

    for entry in settings.databases:
        if is_sqlite_url(entry.url):
            yield from check_private(_CHECK, sqlite_path(entry.url), f"the database {entry.id}")


def _check_limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < LEAST_DESCRIPTORS:
        text = f"a process started here may open {soft} files and connections"
        yield note(_CHECK, text, "LimitNOFILE=65536 in the unit, or ulimit -n 65536")


def _check_backups(settings: Settings, backups: Path | None) -> Iterator[Finding]:
    folder = BACKUPS if backups is None else backups
    for entry in settings.databases:
        if not is_sqlite_url(entry.url):
            text = f"backups of {entry.id} are those of its PostgreSQL, which are not checked here"
            yield note(_CHECK, text, f"agentctl db backup --db {entry.id} FILE prints a command")
            continue

        copies = [path for path in folder.glob(f"{entry.id}-*.db") if path.is_file()]
        remedy = f"agentctl-backup@{entry.id}.timer, or --backups FOLDER"
        if not copies:
            text = f"no backup of the database {entry.id} in {folder} ({entry.id}-*.db)"
            yield wrong(_CHECK, text, remedy)
            continue

        newest = max(copies, key=lambda path: path.stat().st_mtime)
        age = time.time() - newest.stat().st_mtime
        text = f"the newest backup of the database {entry.id} is {format_span(age)} old: {newest}"
        if age > BACKUP_SECONDS:
            yield wrong(_CHECK, text, remedy)
        else:
            yield ok(_CHECK, text)
