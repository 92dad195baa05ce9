"""Quotas of files bound the disk: what is refused was never kept, and deletions give nothing back.

The witness is the folder of the store, with uploads in progress. Both engines: the lock of an owner
is another one on each.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import create_deployment
from tests.kit.engines import Engine
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

SCOPES = ("agents:run", "sessions:read", "sessions:write", "sessions:delete")

QUOTA = 500_000
DAY_BYTES = 1_000_000
SIZE = 190_000

EXTRA = f"""
[quotas]
bytes_per_user = {QUOTA}

[files]
item_bytes = 400_000
run_bytes = 400_000
user_day_bytes = {DAY_BYTES}

[openai]
enabled = true

[[agents]]
id = "saver"
object = "saving:save_many"
"""

SAVING = f"""
import asyncio


async def save_many(message, context):
    async def save(number):
        try:
            data = f"{{message}} {{number}}".encode() * {SIZE // 10}
            await context.save_file(f"{{number}}.txt", data)
        except Exception as error:
            return str(error)
        return "saved"

    if message == "together":
        return "; ".join(await asyncio.gather(*map(save, range(6))))
    return "; ".join([await save(number) for number in range(6)])
"""


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def limited(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
) -> Iterator[ThreadedServer]:
    named = request.param == "postgres"
    engine = Engine(request.getfixturevalue("postgres_url") if named else None)
    with engine.databases() as databases:
        folder = tmp_path_factory.mktemp("file-quotas")
        (folder / "saving.py").write_text(SAVING)
        deployment = create_deployment(
            folder,
            model_endpoint.base_url,
            extra=EXTRA,
            server='compatibility = "agentos"',
            databases=databases,
        )
        with serve_in_thread(deployment) as host:
            yield host


def list_stored(limited: ThreadedServer, user: str) -> list[Path]:
    """Return the kept bytes of a user and all uploads in progress: the tests have one at a time."""
    folder = limited.deployment.folder / "files"
    own = folder / hashlib.sha256(user.encode()).hexdigest()[:16]
    paths = [*own.glob("*"), *(folder / ".incoming").glob("*")]
    return [path for path in paths if path.is_file()]


def count_bytes(limited: ThreadedServer, user: str) -> int:
    return sum(path.stat().st_size for path in list_stored(limited, user))


def upload(
    limited: ThreadedServer, user: str, number: int, size: int = SIZE, **query: str
) -> httpx2.Response:
    """Upload bytes that no other number has."""
    content = f"{number:010}".encode() * (size // 10)
    headers = limited.bearer(user, *SCOPES)
    params = {"name": f"{number}.txt", **query}
    return limited.client.post("/files", params=params, content=content, headers=headers)


def assert_refused(answer: Any, key: str) -> None:
    assert answer.status_code == 429, answer.text
    assert answer.json()["error_code"] == "QUOTA_EXCEEDED"
    assert key in answer.json()["detail"]


def test_uploads_beyond_the_bytes_of_a_user_leave_nothing(limited: ThreadedServer) -> None:
    answers = [upload(limited, "ann", number) for number in range(8)]
    assert [answer.status_code for answer in answers] == [201] * 2 + [429] * 6
    for answer in answers[2:]:
        assert_refused(answer, "quotas.bytes_per_user")
    assert count_bytes(limited, "ann") == 2 * SIZE


def test_deleted_files_count_in_their_day(limited: ThreadedServer) -> None:
    headers = limited.bearer("ben", *SCOPES)
    statuses = []
    for number in range(10):
        answer = upload(limited, "ben", number)
        statuses.append(answer.status_code)
        if answer.status_code == 201:
            path = f"/files/{answer.json()['file_id']}"
            assert limited.client.delete(path, headers=headers).status_code == 204
        else:
            assert_refused(answer, "files.user_day_bytes")
    assert statuses == [201] * 5 + [429] * 5
    assert count_bytes(limited, "ben") <= DAY_BYTES


def test_uploads_of_one_owner_at_once_do_not_take_the_last_place_twice(
    limited: ThreadedServer,
) -> None:
    for user in ("cleo-1", "cleo-2", "cleo-3"):
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(partial(upload, limited, user), range(6)))
        assert sorted(answer.status_code for answer in answers) == [201] * 2 + [429] * 4
        assert count_bytes(limited, user) == 2 * SIZE


def test_body_without_a_length_is_cut_at_the_quota(limited: ThreadedServer) -> None:
    taken = 0
    headers = limited.bearer("dora", *SCOPES)
    assert upload(limited, "dora", 1, 300_000).status_code == 201

    def pieces() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(390):
            taken += 1
            yield b"x" * 1_000

    path = "/files?name=a.txt"
    refused = limited.client.post(path, content=pieces(), headers=headers)
    assert_refused(refused, "quotas.bytes_per_user")
    assert count_bytes(limited, "dora") == 300_000
    # A smaller one of the same kind fits.
    answer = limited.client.post(path, content=iter([b"x" * 1_000] * 100), headers=headers)
    assert answer.status_code == 201


def test_form_of_the_openai_face_is_refused_and_leaves_nothing(limited: ThreadedServer) -> None:
    headers = limited.bearer("eve", *SCOPES)
    statuses = []
    for number in range(5):
        content = f"{number:010}".encode() * (SIZE // 10)
        answer = limited.client.post(
            "/v1/files",
            headers=headers,
            data={"purpose": "user_data"},
            files={"file": ("a.txt", content, "text/plain")},
        )
        statuses.append(answer.status_code)
    assert statuses == [200] * 2 + [429] * 3
    assert count_bytes(limited, "eve") == 2 * SIZE


@pytest.mark.parametrize("message", ["in turn", "together"])
def test_files_that_a_run_may_not_save_leave_nothing(limited: ThreadedServer, message: str) -> None:
    user = f"fay-{message}"
    headers = limited.bearer(user, *SCOPES)
    body = {"message": message, "stream": False}
    run = limited.client.post("/agents/saver/runs", json=body, headers=headers).json()
    results = run["content"].split("; ")
    listed = limited.client.get("/files", headers=headers).json()["data"]
    sizes = {each["sha256"]: each["size"] for each in listed}
    assert results.count("saved") == len(sizes) == 2, results
    assert {path.name for path in list_stored(limited, user)} == {*sizes}
    assert count_bytes(limited, user) == sum(sizes.values()) <= QUOTA
