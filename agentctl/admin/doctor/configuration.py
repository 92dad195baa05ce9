"""Checks of the configuration, the exposure of the server, versions and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime

from agentctl.admin.doctor.files import check_permissions, check_private
from agentctl.admin.doctor.finding import Finding, from_failure, note, ok, wrong
from agentctl.config import require_verification_key
from agentctl.config.databases import is_loopback_host, split_address
from agentctl.config.extras import build_install_command
from agentctl.config.settings import Authorization, Settings
from agentctl.errors import InvalidConfiguration
from agentctl.records.times import format_rfc3339
from agentctl.store.sqlite.inspect import MINIMUM_SQLITE_VERSION, get_sqlite_version, is_at_least

MINIMUM_VERSIONS = {
    "pyjwt": "2.15.1",
    "cryptography": "49",
    "starlette": "1.3.1",
    "uvicorn": "0.54",
    "httptools": "0.8",
    "h11": "0.16",
}
"""Minimum versions of distributions: older ones have security advisories."""

_CHECK = "versions"

_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_LATEST = datetime(2100, 1, 1, tzinfo=UTC).timestamp()


def check_configuration(settings: Settings) -> Iterator[Finding]:
    """Check the configuration file, which was loaded."""
    check = "configuration"
    agents, teams, workflows = settings.agents, settings.teams, settings.workflows
    counts = {"agent": len(agents), "team": len(teams), "workflow": len(workflows)}
    hosted = ", ".join(f"{n} {name}{'' if n == 1 else 's'}" for name, n in counts.items())
    yield ok(check, f"{settings.path} is valid: {hosted}")
    try:
        require_verification_key(settings)
    except InvalidConfiguration as failure:
        yield from_failure(check, failure)
    if settings.path is None:
        return
    yield from check_permissions(check, settings.path, "the configuration")
    authorization = settings.authorization
    written = settings.sources.get("authorization.verification_keys", "").startswith("/")
    if authorization.algorithm.startswith("HS") and authorization.verification_keys and written:
        yield from check_private(check, settings.path, "the shared secret in")


def check_exposure(settings: Settings) -> Iterator[Finding]:
    """Check the addresses, authorization and origins that a server accepts."""
    check, server, authorization = "exposure", settings.server, settings.authorization
    near = is_loopback_host(server.host)
    if near and authorization.enabled:
        yield ok(check, f"{server.host} is local to this machine, and requests need a token")
    elif near:
        text = "authorization is off: every process of this machine is an administrator"
        yield note(check, text, "enabled = true in [authorization]")
    elif authorization.enabled:
        text = f"{server.host} is reachable from other machines, and agentctl does not encrypt"
        remedy = 'host = "127.0.0.1" in [server], and a TLS proxy in front of it'
        yield note(check, text, remedy)
    else:
        text = f"authorization is off and {server.host} is reachable from other machines"
        yield wrong(check, text, 'enabled = true in [authorization], or host = "127.0.0.1"')
    if "*" in server.cors_origins:
        remedy = 'cors_origins = ["https://app.example.org"] in [server]'
        if authorization.enabled:
            text = "web pages of every origin may send requests with a token"
            yield note(check, text, remedy)
        else:
            yield wrong(check, "every web page may send requests without a token", remedy)
    listen = settings.metrics.listen
    if listen and not is_loopback_host(split_address(listen)[0]):
        text = f"metrics at {listen} are reachable from other machines without a token"
        yield note(check, text, 'listen = "127.0.0.1:9464" in [metrics]')


def check_settings(settings: Settings, *, foreign: bool) -> Iterator[Finding]:
    """Check for settings that are allowed and weak.

    Args:
        foreign: the JWKS has keys of an identity provider, which issues tokens for other services
            as well.
    """
    findings = list[Finding]()
    if settings.server.on_disconnect == "detach":
        text = "a run continues, at its cost, after its client disconnects"
        findings.append(_weak(text, 'on_disconnect = "cancel" in [server]'))
    if settings.authorization.enabled:
        findings += _check_tokens(settings.authorization, foreign)
    yield from findings or [ok("settings", "no weak settings")]


def _check_tokens(authorization: Authorization, foreign: bool) -> Iterator[Finding]:
    section = "in [authorization]"
    if not authorization.require_exp:
        yield _weak("tokens without exp never expire", f"require_exp = true {section}")
    if not authorization.require_sub:
        text = "tokens without sub are accepted and share the data without an owner"
        yield _weak(text, f"require_sub = true {section}")
    if foreign and not authorization.verify_audience and not authorization.issuer:
        text = "all tokens of the identity provider are accepted, also those for other services"
        yield wrong("settings", text, f'verify_audience = true and issuer = "..." {section}')
    elif not authorization.verify_audience:
        text = "tokens for other services (aud) are accepted"
        yield _weak(text, f"verify_audience = true {section}")
    if authorization.algorithm.startswith("HS"):
        text = f"{authorization.algorithm}: every program that can verify tokens can also mint them"
        yield _weak(text, "agentctl keys generate --algorithm ES256")
    if not authorization.user_isolation:
        text = "a scope such as sessions:read grants the data of every user"
        yield _weak(text, f"user_isolation = true {section}")


def _weak(what: str, remedy: str) -> Finding:
    return note("settings", what, remedy)


def check_versions() -> Iterator[Finding]:
    """Check the versions of SQLite in apsw and of every distribution of `MINIMUM_VERSIONS`."""
    from importlib import metadata

    sqlite = get_sqlite_version()
    if is_at_least(sqlite, MINIMUM_SQLITE_VERSION):
        yield ok(_CHECK, f"SQLite {sqlite}")
    else:
        text = f"SQLite {sqlite} can damage a database; {MINIMUM_SQLITE_VERSION} is required"
        yield wrong(_CHECK, text, build_install_command("--upgrade", "apsw"))
    good = []
    for name, floor in MINIMUM_VERSIONS.items():
        try:
            version = metadata.version(name)
            text = f"{name} {version} has known weaknesses"
            if is_at_least(version, floor):
                good.append(f"{name} {version}")
                continue
        except metadata.PackageNotFoundError:
            text = f"{name} is not installed"
        yield wrong(_CHECK, text, build_install_command("--upgrade", f"{name}>={floor}"))
    if good:
        yield ok(_CHECK, ", ".join(good))


def check_clock(present: float | None = None) -> Finding:
    """Check that the clock is between 2026 and 2100; tokens depend on it."""
    present = time.time() if present is None else present
    text = f"it is {format_rfc3339(int(present) * 1_000_000)[:19]}Z"
    if _EARLIEST <= present < _LATEST:
        return ok("clock", text)
    return wrong(
        "clock", f"{text}, which is implausible", "set the clock: timedatectl set-ntp true"
    )
