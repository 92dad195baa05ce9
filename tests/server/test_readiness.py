"""`/ready` and `/health` while a database accepts connections and never responds."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, urlsplit

import httpx2

from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.kit.threaded_server import serve_in_thread

AT_ONCE = 40
MOST = 8
"""Maximum number of new connections: far fewer than requests."""

CHUNK = 65_536


class Hole:
    """A socket in front of a PostgreSQL server that can stop all traffic."""

    def __init__(self, front: Path, server: str | tuple[str, int]) -> None:
        self.open = threading.Event()
        self.open.set()
        self.connections = 0
        self._server = server
        self._front = socket.socket(socket.AF_UNIX)
        self._front.bind(str(front))
        self._front.listen()
        self._ends: list[socket.socket] = [self._front]
        self._start(self._accept)

    def close(self) -> None:
        self.open.set()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _start(self, work: object, *args: object) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._front.accept()
                self.connections += 1
                family = socket.AF_UNIX if isinstance(self._server, str) else socket.AF_INET
                server = socket.socket(family)
                server.connect(self._server)
                self._ends += [client, server]
                self._start(self._pass_on, client, server)
                self._start(self._pass_on, server, client)

    def _pass_on(self, here: socket.socket, there: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := here.recv(CHUNK):
                self.open.wait()
                there.sendall(data)
            there.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def hole(url: str) -> Iterator[tuple[Hole, str]]:
    """Return the proxy socket and a database URL through it."""
    parts = urlsplit(url)
    name = ".s.PGSQL.5432"
    folders = parse_qs(parts.query).get("host")
    server = f"{folders[0]}/{name}" if folders else (parts.hostname or "", parts.port or 5432)
    with TemporaryDirectory(prefix="hole-") as front:
        made = Hole(Path(front, name), server)
        user = f"&user={parts.username}" if parts.username else ""
        try:
            yield made, f"postgresql://{parts.path}?host={front}{user}"
        finally:
            made.close()


def test_unresponsive_database_is_reported_in_time(
    tmp_path: Path, model_endpoint: ModelEndpoint, postgres_url: str
) -> None:
    with postgres_schemas(postgres_url) as places, hole(postgres_url) as (between, url):
        through = {name: lines.replace(postgres_url, url) for name, lines in places.items()}
        deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=through)
        with (
            serve_in_thread(deployment) as served,
            httpx2.Client(base_url=served.url, timeout=PATIENCE) as client,
        ):
            assert client.get("/ready").json()["status"] == "ready"
            between.open.clear()
            check_unavailable(client, between)
            between.open.set()
            wait_for(lambda: client.get("/ready").status_code == 200)
        between.open.set()


def check_unavailable(client: httpx2.Client, between: Hole) -> None:
    before = between.connections
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(lambda _: client.get("/ready"), range(AT_ONCE)))
        assert client.get("/health").json() == {"status": "ok"}
    for answer in answers:
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json() == {
            "status": "unavailable",
            "checks": {"database": "failed", "runs": "ok"},
        }
    assert between.connections - before <= MOST, between.connections - before
    assert client.get("/health").status_code == 200
