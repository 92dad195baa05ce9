"""Connections through poolers that drop the settings which a client asks for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.command import Result, run_command
from tests.kit.postgres_server import PostgresServer, execute
from tests.kit.process import serve_config
from tests.outages.proxy import ProxyApart, proxied_apart

SETTINGS = {
    "search_path": "pooled_b",
    "statement_timeout": "5000",
    "idle_in_transaction_session_timeout": "10000",
    "TimeZone": "UTC",
}
"""The settings of a connection with `search_path = "pooled_b"`."""

CONFIG = """
[authorization]
enabled = false

[[databases]]
id = "main"
url = "{url}"
search_path = "{schema}"
tls = "disable"
"""


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[ProxyApart]:
    with proxied_apart(server.socket) as pooler:
        yield pooler


@pytest.fixture(scope="module")
def deployments(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder; its database has the tables of `public` and of the schema `pooled_b`."""
    folder = tmp_path_factory.mktemp("poolers")
    for schema in ("public", "pooled_b"):
        assert run(folder, server.url, schema, "db", "migrate").code == 0
    return folder


def run(folder: Path, url: str, schema: str, *arguments: str) -> Result:
    """Execute a command with a database."""
    (folder / "agentctl.toml").write_text(CONFIG.format(url=url, schema=schema))
    return run_command(*arguments, folder=folder, environment={})


def test_dropped_schema_is_refused(deployments: Path, pooler: ProxyApart) -> None:
    pooler.drop("search_path")
    for command in (("sessions", "list"), ("db", "migrate"), ("memories", "list")):
        refused = run(deployments, pooler.url, "pooled_b", *command)
        assert refused.code == 2, (command, refused)
        assert "the connection to database 'main' has lost settings: search_path" in refused.stderr
        assert "ALTER ROLE … SET search_path = 'pooled_b'" in refused.stderr
    pooler.drop()
    assert run(deployments, pooler.url, "pooled_b", "sessions", "list").code == 0


def test_server_does_not_start_with_another_schema(deployments: Path, pooler: ProxyApart) -> None:
    pooler.drop("search_path", "statement_timeout")
    run(deployments, pooler.url, "pooled_b", "version")
    log = deployments / "server.log"
    with pytest.raises(AssertionError), serve_config(deployments / "agentctl.toml"):
        pass
    assert "has lost settings: search_path" in log.read_text()


def test_doctor_finds_dropped_settings(deployments: Path, pooler: ProxyApart) -> None:
    pooler.drop("search_path")
    found = run(deployments, pooler.url, "pooled_b", "doctor")
    assert found.code != 0
    assert "has lost settings: search_path" in found.stdout + found.stderr


def test_settings_of_the_user_are_enough(
    server: PostgresServer, deployments: Path, pooler: ProxyApart
) -> None:
    execute(
        server,
        "DROP ROLE IF EXISTS pooled_b",
        "CREATE ROLE pooled_b SUPERUSER LOGIN",
        *(f"ALTER ROLE pooled_b SET {name} = '{value}'" for name, value in SETTINGS.items()),
    )
    pooler.drop(*SETTINGS)
    url = pooler.url.replace("postgres@", "pooled_b@")
    done = run(deployments, url, "pooled_b", "sessions", "list")
    assert done.code == 0, done.stderr
    other = run(deployments, url, "pooled_c", "sessions", "list")
    assert "lost settings: search_path" in other.stderr
