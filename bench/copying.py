"""Move a large database to PostgreSQL by `agentctl db copy`, during HTTP requests.

    python -m bench.copying [SESSIONS [search]]

Clients start runs, and create, read and delete sessions all the time, at a server of the source,
and then at one of the target, which is started when `--finish` has ended. Printed are the durations
and delays as clients see them, and the number of rows, after a comparison of the hashes of both.
With `search`, the texts of the sessions are indexed, too.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import httpx2

from agentctl.config.settings import Database
from agentctl.store.databases import open_sqlite
from tests.generated.fill import fill_database
from tests.generated.population import Population
from tests.postgres import drop_schema, running_postgres
from tests.process import AGENTCTL, base_environment, serve_config
from tests.store.sums import add_up

CLIENTS = 3
PAUSE = 0.05
"""Seconds between two requests of a client."""

QUIET = 15.0
"""Seconds of the load before and after each part of a move."""

CONFIG = """
[authorization]
enabled = false

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
model = "echo"
"""

SEARCH = "[search]\nenabled = true\n"


@dataclass(frozen=True)
class Sent:
    """A request: its kind, its beginning and end, and its status; 0 without a response."""

    kind: str
    began: float
    ended: float
    status: int

    @property
    def is_done(self) -> bool:
        return 200 <= self.status < 300


class Load:
    """Clients that work until the end of the block, at the server of the present URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.sent = list[Sent]()
        self._stopped = threading.Event()
        self._clients = [threading.Thread(target=self._work) for _ in range(CLIENTS)]

    def __enter__(self) -> Load:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for client in self._clients:
            client.join()

    def _work(self) -> None:
        with httpx2.Client(timeout=60) as http:
            while not self._stopped.is_set():
                name = uuid4().hex
                body = {"session_id": name, "session_name": f"Created {name}"}
                run = {"message": "hello there", "session_id": name, "stream": "false"}
                self._send(http, "create", "POST", "/sessions", json=body)
                self._send(http, "run", "POST", "/agents/echo/runs", data=run)
                self._send(http, "read", "GET", f"/sessions/{name}")
                oldest = {"limit": "3", "sort_by": "created_at", "sort_order": "asc"}
                listed = self._send(http, "list", "GET", "/sessions", params=oldest)
                for row in [] if listed is None else listed.json()["data"]:
                    self._send(http, "delete", "DELETE", f"/sessions/{row['session_id']}")

    def _send(
        self, http: httpx2.Client, kind: str, method: str, path: str, **body: Any
    ) -> httpx2.Response | None:
        began = time.monotonic()
        response = None
        try:
            response = http.request(method, f"{self.url}{path}", **body)
        except httpx2.HTTPError:
            status = 0
        else:
            status = response.status_code
        self.sent.append(Sent(kind, began, time.monotonic(), status))
        self._stopped.wait(PAUSE)
        return response if self.sent and status == 200 else None

    def show(self, name: str, since: float, until: float) -> None:
        """Print the median duration of runs, and the responses of a time."""
        sent = [each for each in self.sent if since <= each.began < until]
        runs = sorted(each.ended - each.began for each in sent if each.kind == "run")
        statuses = Counter(f"{each.kind} {each.status}" for each in sent)
        slow = runs[len(runs) * 99 // 100] if runs else 0.0
        print(
            f"  {name}: {until - since:.1f} s; a run {median(runs or [0]) * 1e3:.0f} ms,"
            f" p99 {slow * 1e3:.0f} ms; {dict(sorted(statuses.items()))}",
            flush=True,
        )

    def longest_gap(self, kind: str, since: float) -> float:
        """Return the most seconds between the ends of two successful requests of a kind."""
        ends = sorted(s.ended for s in self.sent if s.kind == kind and s.is_done)
        return max(later - earlier for earlier, later in pairwise(ends) if later >= since)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with (
        tempfile.TemporaryDirectory(prefix="agentctl-copy-") as name,
        running_postgres(durable=True) as url,
    ):
        folder = Path(name)
        first = Database("main", f"sqlite:///{folder / 'first.db'}")
        second = Database("main", url, search_path=f"copy_{uuid4().hex}")
        open_sqlite("main", folder / "first.db", create=True).close_blocking()
        asyncio.run(fill_database(first.url, Population(count, 1)))
        print(f"{count:,} sessions, {(folder / 'first.db').stat().st_size / 1e6:,.0f} MB")
        try:
            with ExitStack() as servers:
                server = servers.enter_context(serve_config(write_config(folder, "first", first)))
                with Load(server.url) as load:
                    move(folder, servers, load, first, second)
        finally:
            asyncio.run(drop_schema(second))


def move(folder: Path, servers: ExitStack, load: Load, source: Database, target: Database) -> None:
    """Move a database, and let the clients continue with the target."""
    config = write_config(folder, f"move-{uuid4().hex}", source, replace(target, id="new"))
    with load_shown(load, "before"):
        time.sleep(QUIET)
    with load_shown(load, "copy"):
        run_copy(config)
    with load_shown(load, "changes are recorded"):
        time.sleep(QUIET)
    began = time.monotonic()
    with load_shown(load, "finish"):
        facts = run_copy(config, "--finish", "--wait", "60")
    with load_shown(load, "start of the new server"):
        new = write_config(folder, f"served-{uuid4().hex}", target)
        load.url = servers.enter_context(serve_config(new)).url
        time.sleep(QUIET)
    for kind in ("run", "create", "list"):
        print(f"  no {kind} for {load.longest_gap(kind, began):.2f} s")
    print(f"  by the command: starts {facts['starts_refused']}, writes {facts['writes_refused']} s")
    copied = {each["table"]: each["digest"] for each in facts["tables"]}
    present = {name: each.digest for name, each in asyncio.run(add_up(source)).items()}
    assert present == copied, "the source has changed after the end of the copy"
    print(f"  {facts['rows']:,} rows in {len(copied)} tables with equal hashes", flush=True)


@contextmanager
def load_shown(load: Load, name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    load.show(name, began, time.monotonic())


def run_copy(config: Path, *options: str) -> dict[str, Any]:
    """Run `db copy` to the database `new` and return its facts."""
    line = [*AGENTCTL, "db", "copy", "--to", "new", "--config", str(config), "-o", "json", *options]
    ended = subprocess.run(
        line, env=base_environment(), capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


def write_config(folder: Path, name: str, *entries: Database) -> Path:
    config = folder / name / "agentctl.toml"
    config.parent.mkdir()
    databases = [
        f'[[databases]]\nid = "{entry.id}"\nurl = "{entry.url}"\n'
        + (f'search_path = "{entry.search_path}"\n' if entry.search_path else "")
        for entry in entries
    ]
    config.write_text("\n".join([CONFIG, SEARCH if "search" in sys.argv else "", *databases]))
    return config


if __name__ == "__main__":
    main()
