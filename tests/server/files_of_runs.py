"""Files for the tests of runs, and a server with agents that look at them."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import httpx2

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent

PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def build_png(shade: int = 0) -> bytes:
    """Return a picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, shade]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


def upload(client: httpx2.Client, name: str, data: bytes, **query: str) -> str:
    """Upload a file; return its id."""
    response = client.post("/files", params={"name": name, **query}, content=data)
    assert response.status_code == 201, response.text
    return str(response.json()["file_id"])


class Site:
    """A server with its client, its folder and the endpoint of its models."""

    def __init__(self, client: httpx2.Client, folder: Path, endpoint: ModelEndpoint) -> None:
        self.client = client
        self.folder = folder
        self.endpoint = endpoint

    def put(self, name: str, data: bytes) -> str:
        return upload(self.client, name, data)

    def run(self, agent: str, message: str, *files: str, **body: Any) -> dict[str, Any]:
        record = run_agent(self.client, agent, message, files=files, **body)
        assert record.get("status") == "COMPLETED", record
        return record

    def sent(self, model: str = "history") -> list[dict[str, Any]]:
        """Return the messages of the newest request for a model that is no summary."""
        sent = (body["messages"] for body in reversed(self.endpoint.requests(model)))
        return next(messages for messages in sent if "summarize" not in str(messages[0]))
