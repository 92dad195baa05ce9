"""Move a large database to PostgreSQL by `agentctl db copy`.

    python -m bench.copying [SESSIONS [search]]

Printed are the number of rows, and the seconds of the command. With `search`, the texts of the
sessions are indexed, too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from agentctl.config.settings import Database
from agentctl.store.databases import open_sqlite
from tests.generated.fill import fill_database
from tests.generated.population import Population
from tests.kit.postgres import running_postgres
from tests.kit.process import AGENTCTL, base_environment

SEARCH = "[search]\nenabled = true\n\n"


def main() -> None:
    sessions = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with (
        tempfile.TemporaryDirectory(prefix="agentctl-copy-") as name,
        running_postgres(durable=True) as url,
    ):
        folder = Path(name)
        file = folder / "main.db"
        source = Database("main", f"sqlite:///{file}")
        open_sqlite(source.id, file, create=True).close_blocking()
        asyncio.run(fill_database(source.url, Population(sessions, 1)))
        megabytes = file.stat().st_size / 1e6
        print(f"{sessions:,} sessions, {megabytes:,.0f} MB", flush=True)

        facts = copy(folder, source, url)
        print(f"  {facts['rows']:,} rows in {facts['seconds']:.1f} s")


def copy(folder: Path, source: Database, target: str) -> dict[str, Any]:
    """Run `db copy` in a process and return its facts."""
    config = folder / "agentctl.toml"
    search = SEARCH if "search" in sys.argv else ""
    config.write_text(f'{search}[[databases]]\nid = "{source.id}"\nurl = "{source.url}"\n')
    line = [*AGENTCTL, "db", "copy", "--to", target, "--config", str(config), "--yes", "-o", "json"]
    ended = subprocess.run(
        line, env=base_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


if __name__ == "__main__":
    main()
