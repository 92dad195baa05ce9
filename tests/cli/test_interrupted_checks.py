"""`doctor --runs` and `doctor --db` that Ctrl-C ends, and that continue where they were."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from agentctl.admin import databases
from agentctl.admin.runs_doctor import find
from agentctl.config import settings
from agentctl.store.repositories import integrity
from tests.cli.conftest import Agentctl
from tests.cli.test_runs_doctor import CALLS
from tests.generated.fill import fill_database
from tests.generated.population import Population
from tests.kit.postgres import ConnectedTo, drop_schema

SEARCH_PATH = "interrupted"

DAMAGE = f"""
UPDATE runs SET messages = '{CALLS}' WHERE finished_at IS NOT NULL AND seq = 2;
UPDATE runs SET finished_at = NULL WHERE status = 'ERROR';
UPDATE sessions SET run_count = run_count + 1;
DELETE FROM sessions WHERE session_id IN (SELECT max(session_id) FROM sessions
                                          UNION SELECT min(session_id) FROM sessions);
"""

PAGES = 9
"""A command reads so many pages, of seven runs each, before it gets SIGINT."""


@pytest.fixture
def interrupts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let each command get SIGINT before it reads a page.

    The list has the number of pages that are left until then. A test writes it for each command.
    """
    left = [0]

    def interrupt_before(read: Callable[..., Any]) -> Callable[..., Any]:
        def read_page(*args: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGINT)
            return read(*args)

        return read_page

    monkeypatch.setattr(find, "PAGE_SIZE", 7)
    monkeypatch.setattr(databases, "PAGE_SIZE", 7)
    for name in ("scan_runs", "check_page"):
        monkeypatch.setattr(integrity, name, interrupt_before(getattr(integrity, name)))
    return left


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path, postgres_url: str) -> Iterator[Path]:
    """The configuration of a damaged database."""
    path = tmp_path / "agentctl.toml"
    if request.param == "sqlite":
        entry = settings.Database("main", f"sqlite:///{tmp_path / 'agentctl.db'}")
        asyncio.run(fill_database(entry.url, Population(30, 5)))
        with apsw.Connection(str(tmp_path / "agentctl.db")) as connection:
            connection.execute(DAMAGE).fetchall()
        connection.close()
    else:
        entry = settings.Database("main", postgres_url, search_path=SEARCH_PATH)
        asyncio.run(_damage_postgres(entry))
    path.write_text(
        f'[[databases]]\nid = "main"\nurl = "{entry.url}"\n'
        + (f'search_path = "{SEARCH_PATH}"\n' if entry.search_path else "")
        + "[authorization]\nenabled = false\n"
        '[[models]]\nid = "echo"\nprovider = "demo"\nmodel = "echo"\n'
        '[[agents]]\nid = "echo"\nmodel = "echo"\n'
    )
    yield path
    if entry.search_path:
        asyncio.run(drop_schema(entry))


async def _damage_postgres(entry: settings.Database) -> None:
    async with ConnectedTo(entry) as connection:
        await connection.execute(f"CREATE SCHEMA {SEARCH_PATH}")
    sign = "&" if "?" in entry.url else "?"
    place = f"{entry.url}{sign}options=-csearch_path%3D{SEARCH_PATH}"
    await fill_database(place, Population(30, 5))
    async with ConnectedTo(entry) as connection:
        # Foreign keys are triggers of the role "origin".
        await connection.execute(f"SET session_replication_role = replica; {DAMAGE}")


def count(rows: list[dict[str, Any]]) -> Counter[str]:
    """Count the problems of `doctor --runs`, or the violations of each rule of `doctor --db`."""
    counts = Counter[str]()
    for row in rows:
        if "kind" in row:
            counts[f"{row['kind']} {row['run_id']}"] += 1
        elif row["verdict"] == "wrong":
            rule, number = re.findall(r"^(.*: )?(\d+)", row["what"])[0]
            counts[rule or row["what"]] += int(number)
    return counts


# Both engines and both commands, without the whole matrix: a command reads either engine alike.
@pytest.mark.parametrize(
    ("config", "command"),
    [("sqlite", "agentctl doctor --runs"), ("postgres", "agentctl doctor --db")],
    indirect=["config"],
)
def test_interrupted_check_continues_where_it_was(
    agentctl: Agentctl, config: Path, command: str, interrupts: list[int]
) -> None:
    words = [*command.split()[1:], "--config", str(config)]
    whole = agentctl(*words, "-o", "json")
    expected = count(json.loads(whole.stdout))
    assert whole.code == 1
    assert len(expected) > 2, expected

    found = Counter[str]()
    parts = 0
    while True:
        interrupts[0] = PAGES
        ended = agentctl(*words, "-o", "json")
        found += count(json.loads(ended.stdout))
        parts += 1
        if ended.code != 130:
            break
        again = ended.stderr.partition("interrupted; continue with: ")[2].splitlines()[0]
        assert "--cursor main:" in again
        words = shlex.split(again)[1:]

    assert ended.code == 1
    assert parts > 2
    assert found == expected
