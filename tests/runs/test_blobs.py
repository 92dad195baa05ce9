"""The bytes of files in a folder, and in a bucket of a local server with the interface of S3."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl import errors
from agentctl.config.files import Files
from agentctl.records.times import HOUR, now
from agentctl.store import blobs
from agentctl.store.blobs import BlobStore, build_key, open_blob_store
from tests.kit.buckets import KEYS, build_files_table, serve_bucket
from tests.kit.deployment import create_deployment
from tests.kit.threaded_server import serve_in_thread

KEY = build_key("ann", "ab" * 32)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with serve_bucket() as url:
        yield url


@pytest.fixture(params=["folder", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> BlobStore:
    if request.param == "folder":
        return open_blob_store(Files(folder=tmp_path / "files"))
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    url = request.getfixturevalue("endpoint")
    region = "eu-central-1"
    prefix = tmp_path.name
    settings = Files("s3", tmp_path / "files", "files", prefix, url, region)
    return open_blob_store(settings)


async def put(store: BlobStore, key: str, content: bytes) -> None:
    store.incoming.mkdir(parents=True, exist_ok=True)
    received = store.incoming / "received"
    received.write_bytes(content)
    await store.keep(received, key)


async def read(store: BlobStore, key: str, start: int, end: int) -> bytes:
    return b"".join([piece async for piece in store.read(key, start, end)])


async def test_bytes_are_kept_read_in_ranges_and_removed(store: BlobStore) -> None:
    content = os.urandom(11_000_000)  # several parts of an upload to S3
    await put(store, KEY, content)
    assert await store.measure(KEY) == len(content)
    assert [each.blob async for page in store.list_stored("") for each in page] == [KEY]
    assert [page async for page in store.list_stored(KEY)] == []
    size = len(content)
    for start, end in ((0, size), (0, 1), (262_143, 262_145), (size - 3, size), (5, 5)):
        assert await read(store, KEY, start, end) == content[start:end]
    assert not await store.remove(KEY, now() - HOUR)
    await put(store, KEY, b"again")
    assert await read(store, KEY, 0, 5) == b"again"
    assert await store.remove(KEY, now() + HOUR)
    assert await store.measure(KEY) is None
    assert await store.remove(KEY, now() + HOUR)
    with pytest.raises(errors.Unavailable, match="The bytes of the file are missing"):
        await read(store, KEY, 0, 5)


async def test_bytes_that_are_shorter_than_their_row_are_missing(store: BlobStore) -> None:
    await put(store, KEY, b"cut")
    with pytest.raises(errors.Unavailable):
        await read(store, KEY, 0, 10)


async def test_store_that_works_passes_its_check(store: BlobStore, tmp_path: Path) -> None:
    await store.check()
    assert not (tmp_path / "files").exists()


async def test_bucket_that_does_not_exist_fails_without_details(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEYS:
        monkeypatch.setenv(name, "secret-4471")
    absent = open_blob_store(Files("s3", tmp_path, "absent", "", endpoint, "eu-central-1"))
    for work in (absent.check, partial(put, absent, KEY, b"x")):
        with pytest.raises(errors.Unavailable) as failed:
            await work()
        assert failed.value.detail == "The store of files does not work"
        assert "secret" not in f"{failed.value.cause}"


async def test_bucket_that_does_not_respond_is_not_asked_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    # The library waits in threads of its own, for which no test can let time pass.
    monkeypatch.setattr(blobs, "_S3_SECONDS", timedelta(seconds=1))

    async def count_requests(work: Callable[[BlobStore], Awaitable[object]]) -> int:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            silent = open_blob_store(Files("s3", tmp_path, "files", "", url, "eu-central-1"))
            with pytest.raises(errors.Unavailable):
                await work(silent)
            return len(accept_all(server))

    counts = await asyncio.gather(
        count_requests(lambda store: put(store, KEY, b"x")),
        count_requests(lambda store: read(store, KEY, 0, 1)),
    )
    assert set(counts) <= {1, 2}


def accept_all(server: socket.socket) -> list[Any]:
    """Accept the connections that clients have opened; return their addresses."""
    addresses = []
    with contextlib.suppress(BlockingIOError):
        while True:
            connection, address = server.accept()
            connection.close()
            addresses.append(address)
    return addresses


def test_server_keeps_files_in_a_bucket_alone(
    endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    table = build_files_table(endpoint, "of/a-server")
    place = create_deployment(tmp_path, "http://127.0.0.1:9", extra=table)
    content = b"\x89PNG\r\n\x1a\n" + os.urandom(7_000_000)
    with (
        serve_in_thread(place) as server,
        place.client(server.url, "me", "sessions:read", "sessions:write") as client,
    ):
        answer = client.post("/files?name=a.png", content=content)
        assert answer.status_code == 201, answer.text
        record = answer.json()
        path = f"/files/{record['file_id']}/content"
        assert client.get(path).content == content
        assert (
            client.get(path, headers={"range": "bytes=5000000-5000009"}).content
            == (content[5_000_000:5_000_010])
        )
    assert [each for each in (tmp_path / "files").rglob("*") if each.is_file()] == []
    listed = httpx2.get(f"{endpoint}/files?list-type=2&prefix=of/a-server/").text
    assert f"<Key>of/a-server/{build_key('me', record['sha256'])}</Key>" in listed
