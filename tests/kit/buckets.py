"""A local server with the interface of S3, from `.peers/s3`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.kit.conditions import wait_for
from tests.kit.ports import find_free_port

MOTO = Path(__file__).parents[2] / ".peers/s3/bin/moto_server"

KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""The variables of programs that use the server."""


@contextmanager
def serve_bucket() -> Iterator[str]:
    """Serve a bucket `files`, or skip the test; yield the address of the server."""
    if not MOTO.exists():
        pytest.skip("needs a server with the interface of S3: make .peers/s3/.installed")
    port = find_free_port()
    process = subprocess.Popen(
        [MOTO, "-H", "127.0.0.1", "-p", str(port)], stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"

    def is_ready() -> bool:
        try:
            return httpx2.put(f"{url}/files").status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        wait_for(is_ready)
        yield url
    finally:
        process.terminate()
        process.wait()


def build_files_table(endpoint: str, prefix: str, bucket: str = "files") -> str:
    """Return the table of a configuration that keeps files under a prefix of a bucket."""
    return f"""
[files]
store = "s3"
bucket = "{bucket}"
prefix = "{prefix}"
endpoint = "{endpoint}"
region = "eu-central-1"
"""
