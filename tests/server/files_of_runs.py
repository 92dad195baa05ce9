"""Files for the tests of runs: their bytes, and rows in the database of a server."""

from __future__ import annotations

import hashlib
import sqlite3
import struct
import time
import zlib
from pathlib import Path
from uuid import uuid4

from agentctl.store.blobs import build_key


def build_png(shade: int = 0) -> bytes:
    """Return a picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    pixel = zlib.compress(bytes([0, shade]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def put_file(folder: Path, user_id: str | None, name: str, media_type: str, data: bytes) -> str:
    """Store a file without a session in the deployment in a folder; return its id."""
    file_id, digest = str(uuid4()), hashlib.sha256(data).hexdigest()
    blob = build_key(user_id, digest)
    path = folder / "files" / blob
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    names = "file_id, user_id, name, media_type, size, sha256, blob, origin, version, created_at"
    values = (file_id, user_id, name, media_type, len(data), digest, blob, "upload", 1)
    with sqlite3.connect(folder / "main.db", timeout=30) as database:
        database.execute(
            f"INSERT INTO files ({names}) VALUES (?,?,?,?,?,?,?,?,?,?)",
            (*values, time.time_ns() // 1_000),
        )
    database.close()
    return file_id
