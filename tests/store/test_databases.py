"""The configured databases: order, opening on first use, closing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.config.settings import Database, Settings
from agentctl.store.databases import Databases, open_sqlite

pytestmark = pytest.mark.usefixtures("without_copies")


def configured(folder: Path, *names: str) -> Settings:
    return Settings(
        databases=tuple(Database(name, f"sqlite:///{folder / name}.db") for name in names)
    )


def test_databases_have_the_order_of_the_configuration(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "zeta", "alpha"), create=True)
    assert list(databases) == ["zeta", "alpha"]
    assert len(databases) == 2


def test_a_database_is_opened_once_on_first_use(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "one", "two"), create=True)
    assert databases.get_open() == {}
    one = databases["one"]
    assert databases["one"] is one
    assert databases.get_open() == {"one": one}
    assert not (tmp_path / "two.db").exists()
    asyncio.run(databases.close())
    assert databases.get_open() == {}


def test_databases_share_their_webhooks_but_not_their_totals(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "one", "two"), create=True)
    one = databases["one"]
    two = databases["two"]
    assert one.outbox is two.outbox
    one.totals.learn("list", 5)
    assert one.totals.has("list")
    assert not two.totals.has("list")
    asyncio.run(databases.close())


def test_database_of_a_command_has_no_webhooks(tmp_path: Path) -> None:
    database = open_sqlite("one", tmp_path / "one.db", create=True)
    assert not database.outbox.is_used
    database.close_blocking()


def test_the_others_close_after_one_fails_to_open(tmp_path: Path) -> None:
    (tmp_path / "two.db").write_bytes(b"something else")
    databases = Databases(configured(tmp_path, "one", "two"), create=True)
    with pytest.raises(errors.Unavailable):
        asyncio.run(databases.open_all())
    asyncio.run(databases.close())
    assert not (tmp_path / "one.db-wal").exists()


def test_a_missing_database_is_created_only_if_allowed(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "one"), create=False)
    with pytest.raises(errors.Unavailable, match="no database yet"):
        databases["one"]
    assert list(tmp_path.iterdir()) == []
