"""Sixteen pictures of 10 MB in one run: the growth of the database and of the server's memory."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import ADMIN, Deploy
from tests.kit.process import serve_config
from tests.server.test_files import PNG, Host, upload

CONFIG = """
[files]
run_bytes = 200_000_000

[[models]]
id = "seeing"
provider = "openai"
model = "seeing"
base_url = "{url}"
takes = ["image"]

[[agents]]
id = "seeing"
model = "seeing"
"""

ITEM = 10_000_000


class Looking(BaseHTTPRequestHandler):
    """An endpoint of OpenAI's interface that keeps the hashes of the pictures of a request."""

    seen: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        pictures = re.finditer(rb'"data:image/png;base64,([^"]*)"', body)
        type(self).seen = [
            hashlib.sha256(base64.b64decode(each[1], validate=True)).hexdigest()
            for each in pictures
        ]
        chunk = {"choices": [{"index": 0, "delta": {"content": "seen"}, "finish_reason": "stop"}]}
        answer = b"data: %b\n\ndata: [DONE]\n\n" % json.dumps(chunk).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Looking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def store(client: httpx2.Client, size: int) -> dict[str, str]:
    """Upload sixteen different pictures of a size; return their hashes by their ids."""
    piece = random.Random(size).randbytes(size - 16)
    records = [
        upload(client, PNG[:8] + number.to_bytes(8) + piece, f"{number}.png")
        for number in range(16)
    ]
    return {each["file_id"]: each["sha256"] for each in records}


def look(client: httpx2.Client, stored: dict[str, str]) -> None:
    form = {"stream": False, "files": [*stored]}
    record = client.post("/agents/seeing/runs", json=form).json()
    assert (record.get("status"), record.get("content")) == ("COMPLETED", "seen"), record
    assert Looking.seen == [*stored.values()]


def download(client: httpx2.Client, stored: dict[str, str]) -> None:
    """Read each file in pieces, and compare its hash."""
    for file_id, expected in stored.items():
        hashed = hashlib.sha256()
        with client.stream("GET", f"/files/{file_id}/content") as response:
            for part in response.iter_bytes():
                hashed.update(part)
        assert hashed.hexdigest() == expected


def read_peak(host: Host) -> int:
    """Return the largest resident memory of the server since the last call of `forget_peak`."""
    status = Path(f"/proc/{host.server.process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1_024


def forget_peak(host: Host) -> int:
    """Begin a new peak of the resident memory; return the present memory."""
    Path(f"/proc/{host.server.process.pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{host.server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1_024


def test_sixteen_large_pictures_of_a_run_are_small_in_database_and_memory(
    deploy: Deploy, endpoint: str
) -> None:
    place = deploy(CONFIG.format(url=endpoint))
    with serve_config(place.path) as server:
        host = Host(place, server)
        with host.as_user("boss", ADMIN) as client:
            look(client, store(client, 1_000_000))  # Libraries are loaded, and pages written.
            database = host.database_bytes()
            memory = forget_peak(host)
            stored = store(client, ITEM)
            assert host.database_bytes() - database < 65_536
            download(client, stored)
            assert read_peak(host) - memory < ITEM
            database = host.database_bytes()
            memory = forget_peak(host)
            look(client, stored)
            assert host.database_bytes() - database < 65_536
            assert read_peak(host) - memory < ITEM
