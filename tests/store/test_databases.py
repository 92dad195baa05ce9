"""The configured databases: in order, opened when needed, closed together."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.config.settings import Database, Settings
from agentctl.store.databases import Databases


def configured(folder: Path, *names: str) -> Settings:
    return Settings(
        databases=tuple(Database(name, f"sqlite:///{folder / name}.db") for name in names)
    )


def test_they_are_in_the_order_of_the_configuration(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "zeta", "alpha"), create=True)
    assert list(databases) == list(databases.ids) == ["zeta", "alpha"]
    assert len(databases) == 2


def test_one_is_opened_when_it_is_asked_for_and_once(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "one", "two"), create=True)
    assert databases.opened() == {}
    one = databases["one"]
    assert databases["one"] is one
    assert databases.opened() == {"one": one}
    assert not (tmp_path / "two.db").exists()
    asyncio.run(databases.close())
    assert databases.opened() == {}


def test_when_one_is_refused_the_others_can_be_closed(tmp_path: Path) -> None:
    (tmp_path / "two.db").write_bytes(b"something else")
    databases = Databases(configured(tmp_path, "one", "two"), create=True)
    with pytest.raises(errors.Unavailable):
        asyncio.run(databases.open_all())
    asyncio.run(databases.close())
    assert not (tmp_path / "one.db-wal").exists()


def test_one_that_is_not_there_is_not_made_without_leave(tmp_path: Path) -> None:
    databases = Databases(configured(tmp_path, "one"), create=False)
    with pytest.raises(errors.Unavailable, match="no database yet"):
        databases["one"]
    assert list(tmp_path.iterdir()) == []
