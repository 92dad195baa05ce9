"""The checks of `agentctl doctor --production`: each one finds its mistake, and no other."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentctl.admin.doctor.production import LEAST_DESCRIPTORS, check_production
from agentctl.config.settings import (
    Authorization,
    Database,
    Log,
    Metrics,
    Model,
    Quotas,
    Settings,
    Signing,
)
from agentctl.records.system import Finding
from tests.kit.forged_tokens import fixed, token

HOUR = 3600
PROVIDER = Authorization(issuer="https://id.example", jwks_url="https://id.example/keys")
ROLES = replace(
    PROVIDER,
    roles_claim=("groups",),
    roles={"ops": ("agents:read", "agent_os:admin"), "viewer": ("agents:read",)},
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The files of a server without any finding: a configuration, a database and its backup."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "backups").mkdir()
    for name in ("agentctl.toml", "main.db", "backups/main-1.db"):
        (tmp_path / name).touch(0o600)
    return tmp_path


@pytest.fixture
def settings(place: Path) -> Settings:
    """The settings of that server."""
    return Settings(
        log=Log(format="json"),
        metrics=Metrics(listen="127.0.0.1:9107"),
        quotas=Quotas(bytes_per_user=1_000_000_000),
        signing=Signing(key_file=place / "keys/signing.pem"),
        databases=(Database("main", f"sqlite:///{place}/main.db"),),
        path=place / "agentctl.toml",
    )


@pytest.fixture(autouse=True)
def enough_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def check(settings: Settings, place: Path) -> list[Finding]:
    """Return the findings except the age of a recent backup."""
    return [
        finding
        for finding in check_production(settings, place / "backups")
        if not (finding.verdict == "ok" and "newest backup" in finding.what)
    ]


def test_server_without_mistakes_has_no_findings(settings: Settings, place: Path) -> None:
    (finding,) = check(settings, place)
    assert (finding.verdict, "those of a server" in finding.what) == ("ok", True)


Change = Callable[[Settings, Path], Settings]


def add_demo_agents(settings: Settings, place: Path) -> Settings:
    (place / "demo_agents.py").touch()
    return settings


def open_file(name: str) -> Change:
    def change(settings: Settings, place: Path) -> Settings:
        (place / name).chmod(0o644)
        return settings

    return change


def lower_descriptors(settings: Settings, place: Path) -> Settings:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (LEAST_DESCRIPTORS - 1, hard))
    return settings


def age_backup(settings: Settings, place: Path) -> Settings:
    old = time.time() - 27 * HOUR
    os.utime(place / "backups/main-1.db", (old, old))
    return settings


def remove_backup(settings: Settings, place: Path) -> Settings:
    (place / "backups/main-1.db").rename(place / "backups/other-1.db")
    return settings


CASES: dict[str, tuple[Change, str, str, str]] = {
    "demo model": (
        lambda settings, _: replace(settings, models=(Model("m", "demo", "echo"),)),
        "wrong",
        "models without a provider",
        "[[models]]",
    ),
    "demo keys": (add_demo_agents, "wrong", "those of `serve --demo`", "agentctl init"),
    "open server": (
        lambda settings, _: replace(settings, authorization=Authorization(enabled=False)),
        "wrong",
        "authorization is off",
        "enabled = true",
    ),
    "role of administrators": (
        lambda settings, _: replace(settings, authorization=ROLES),
        "note",
        'the role "ops" allows everything',
        "remove agent_os:admin",
    ),
    "debug log": (
        lambda settings, _: replace(settings, log=Log(format="json", level="debug")),
        "wrong",
        "level debug",
        'level = "info"',
    ),
    "log for people": (
        lambda settings, _: replace(settings, log=Log()),
        "note",
        "lines for people",
        'format = "json"',
    ),
    "no metrics": (
        lambda settings, _: replace(settings, metrics=Metrics()),
        "note",
        "no metrics",
        "[metrics]",
    ),
    "no quota": (
        lambda settings, _: replace(settings, quotas=Quotas(memories_per_user=5)),
        "note",
        "sessions are kept until",
        "[quotas]",
    ),
    "open configuration": (
        open_file("agentctl.toml"),
        "note",
        "every user may read the configuration",
        "chmod o-r",
    ),
    "open database": (
        open_file("main.db"),
        "wrong",
        "other users may read the database main",
        "chmod 600",
    ),
    "few descriptors": (lower_descriptors, "note", "may open 4095 files", "LimitNOFILE="),
    "old backup": (age_backup, "wrong", "1 d 3 h old", "agentctl-backup@main.timer"),
    "no backup": (remove_backup, "wrong", "no backup of the database main", "--backups FOLDER"),
    "PostgreSQL": (
        lambda settings, _: replace(settings, databases=(Database("main", "postgresql://h/d"),)),
        "note",
        "which are not checked here",
        "agentctl db backup --db main",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_each_mistake_is_the_one_finding(settings: Settings, place: Path, name: str) -> None:
    change, verdict, what, remedy = CASES[name]
    (finding,) = check(change(settings, place), place)
    assert finding.verdict == verdict
    assert what in finding.what
    assert remedy in str(finding.remedy)


def test_token_of_the_environment_is_described(
    settings: Settings, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(claims: dict[str, object]) -> tuple[str, str, str | None]:
        monkeypatch.setenv("AGENTCTL_TOKEN", token({"alg": "RS256"}, claims, fixed(b"x" * 256)))
        with_roles = replace(settings, authorization=replace(ROLES, roles={"ops": ("usage:read",)}))
        (finding,) = [
            one for one in check(with_roles, place) if "those of a server" not in one.what
        ]
        start = "scopes of the token in AGENTCTL_TOKEN: "
        assert finding.what.startswith(start)
        return finding.verdict, finding.what.removeprefix(start), finding.remedy

    assert describe({"groups": ["ops", "x"]}) == (
        "ok", 'groups: "ops" grants usage:read; not in [authorization.roles]: "x"', None,
    )  # fmt: skip
    assert describe({"scope": "agents:read"}) == (
        "note",
        'none; not read: scope ("agents:read")',
        'set scopes_claim = ["scopes", "scope"] in [authorization]',
    )
    assert describe({}) == ("note", "none", "grant it scopes")
