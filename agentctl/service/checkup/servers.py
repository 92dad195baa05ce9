"""A PostgreSQL server: recent, writable, safe, with its clock and its connections in order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from urllib.parse import parse_qsl, urlsplit

from agentctl.config.hosts import is_loopback
from agentctl.config.settings import Database
from agentctl.records.times import spoken
from agentctl.service.checkup.finding import Finding, note, ok, wrong
from agentctl.store.postgres_checkup import Facts, facts_of

__all__ = ["check_server"]

OLDEST = 130_000
"""As PostgreSQL counts its versions: 13."""

OURS_APART = 2
"""Connections of a process beside its pool: one that listens, one that beats."""

_FAR_AHEAD = 300
_AHEAD = 2
"""Seconds: more than a clock that is set by the network is wrong by."""

_CONSOLE = "as its administrator, in psql: "


async def check_server(entry: Database, check: str, processes: int) -> AsyncIterator[Finding]:
    """What a server that has our tables says of itself.

    Args:
        entry: a database of it.
        check: what the findings are named.
        processes: how many of ours use it at once, on this machine.

    Raises:
        Unavailable: it does not answer.
        InvalidConfiguration: its password or its certificates are not there.
    """
    facts = await facts_of(entry)
    for part in (_version, _clock, _writing, _safety):
        for each in part(check, facts):
            yield each
    for each in _room(check, facts, processes * (entry.pool_size + OURS_APART)):
        yield each
    for each in _secrecy(check, facts, entry):
        yield each


def _version(check: str, facts: Facts) -> Iterator[Finding]:
    if facts.number < OLDEST:
        text = f"PostgreSQL {facts.version} is older than what agentctl needs"
        yield wrong(check, text, "update it to 13 or later")
    else:
        yield ok(check, f"it answers, as PostgreSQL {facts.version}")


def _clock(check: str, facts: Facts) -> Iterator[Finding]:
    away = abs(facts.ahead) / 1_000_000
    if away < _AHEAD:
        yield ok(check, "its clock agrees with ours")
        return
    text = f"its clock is {spoken(away)} {'ahead of' if facts.ahead > 0 else 'behind'} ours"
    far = away >= _FAR_AHEAD
    yield (wrong if far else note)(check, text, "set both: timedatectl set-ntp true")


def _writing(check: str, facts: Facts) -> Iterator[Finding]:
    if facts.standby:
        yield wrong(
            check, "it is a standby, which cannot be written", "name its primary in the url"
        )
    elif facts.read_only:
        text = "its transactions are read-only (default_transaction_read_only)"
        yield wrong(check, text, _CONSOLE + "ALTER ROLE or ALTER DATABASE ... RESET it")
    elif facts.missing:
        text = f"its user may not do everything: {'; '.join(facts.missing)}"
        remedy = "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA ... TO ..."
        yield wrong(check, text, _CONSOLE + remedy)
    else:
        yield ok(check, "it can be written")


def _safety(check: str, facts: Facts) -> Iterator[Finding]:
    """Whether what was acknowledged outlives a crash."""
    settings = {
        "fsync": (facts.fsync, "a crash of its machine can damage it"),
        "full_page_writes": (facts.full_pages, "a crash of its machine can damage it"),
        "synchronous_commit": (facts.synchronous, "a crash loses what was acknowledged"),
    }
    off = {name: what for name, (on, what) in settings.items() if not on}
    for name, what in off.items():
        remedy = f"{_CONSOLE}ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
        yield wrong(check, f"{name} is off: {what}", remedy)
    if not off:
        yield ok(check, "what it has acknowledged outlives a crash")


def _room(check: str, facts: Facts, needed: int) -> Iterator[Finding]:
    """Whether the servers of this configuration find the connections that they may open."""
    most = facts.room if facts.bound is None else min(facts.room, facts.bound)
    left = min(most, facts.room - facts.taken)
    remedy = "lower pool_size in [[databases]] or workers in [server], or raise max_connections"
    if needed > most:
        text = f"a server may open {needed} connections, and there are {most} at most"
        yield wrong(check, text, remedy)
    elif needed > left:
        text = f"a server may open {needed} connections, and others leave {left} of {most}"
        yield note(check, text, remedy)
    else:
        yield ok(check, f"a server may open {needed} connections, and {left} are left for it")


def _secrecy(check: str, facts: Facts, entry: Database) -> Iterator[Finding]:
    """Beyond this machine: whether others can read along, or answer in its place."""
    remedy = f'tls = "verify-full" in [[databases]] {entry.id}'
    if _is_near(entry.url):
        return
    if not facts.encrypted:
        yield wrong(check, "what is sent to it over the network is not encrypted", remedy)
    elif not entry.tls.startswith("verify"):
        yield note(check, "nobody looks whether it is the one that answers", remedy)
    else:
        yield ok(check, "what is sent to it is encrypted, and its certificate is looked at")


def _is_near(url: str) -> bool:
    """Whether a server is reached without a network: through a socket, or on this machine."""
    parts = urlsplit(url)
    host = dict(parse_qsl(parts.query)).get("host") or parts.hostname or ""
    return not host or host.startswith("/") or is_loopback(host)
