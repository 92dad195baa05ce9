"""Files over HTTP: uploads, refusals, downloads and deletions."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import os
import socket
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import httpx2
import pytest

from agentctl.store.media_types import MEDIA_TYPES
from agentctl.store.uploads import MAXIMUM_UPLOADS
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy, Deployment
from tests.kit.process import ServerProcess
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8
USER = ("sessions:read", "sessions:write", "sessions:delete")
DAY_BYTES = 40_000_000

LIMITS = f"""
[files]
item_bytes = 12_000_000
run_bytes = 20_000_000
user_day_bytes = {DAY_BYTES}
"""


@dataclass(frozen=True)
class Host:
    """A server, its folder, and requests of its users."""

    place: Deployment
    server: ThreadedServer | ServerProcess

    def as_user(self, name: str, *scopes: str) -> httpx2.Client:
        return self.place.client(self.server.url, name, *(scopes or USER))

    def list_bytes(self) -> list[Path]:
        """Return the files in the folder of the store, uploads in progress included."""
        return [path for path in (self.place.folder / "files").rglob("*") if path.is_file()]

    def database_bytes(self) -> int:
        """Return the bytes of the pages of the databases; their logs of writes are used again."""
        size = 0
        for path in self.place.folder.glob("*.db"):
            connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
            size += connection.pragma("page_count") * connection.pragma("page_size")
            connection.close()
        return size


@pytest.fixture(scope="module")
def host(deploy: Deploy) -> Iterator[Host]:
    place = deploy(LIMITS)
    with serve_in_thread(place) as server:
        yield Host(place, server)


def upload(client: httpx2.Client, content: bytes, name: str = "a.png", **query: str) -> Any:
    answer = client.post("/files", params={"name": name, **query}, content=content)
    assert answer.status_code == 201, answer.text
    return answer.json()


def build_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(5_000_000))
    return packed.getvalue()


ACCEPTED = {
    "a.png": (PNG, "image/png"),
    "a.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(64), "image/jpeg"),
    "a.gif": (b"GIF89a" + bytes(64), "image/gif"),
    "a.webp": (b"RIFF\x40\0\0\0WEBPVP8 " + bytes(64), "image/webp"),
    "a.pdf": (b"%PDF-1.7\n" + b" " * 2_000 + b"(<html>) Tj", "application/pdf"),
    "a.wav": (b"RIFF\x40\0\0\0WAVEfmt " + bytes(64), "audio/wav"),
    "a.mp3": (b"ID3\x04\0\0" + bytes(64), "audio/mpeg"),
    "b.mp3": (b"\xff\xfb\x90\x64" + bytes(64), "audio/mpeg"),
    "a.ogg": (b"OggS\0\x02" + bytes(64), "audio/ogg"),
    "a.flac": (b"fLaC\0\0\0\x22" + bytes(64), "audio/flac"),
    "a.m4a": (b"\0\0\0\x20ftypM4A \0\0\0\0" + bytes(64), "audio/mp4"),
    "chance.png": (PNG + bytes(2_000) + b"<svg<script\xff<html\0", "image/png"),
    "naïve.txt": ("\ufeffnaïve 1 < 2".encode(), "text/plain"),
    "README.MD": (b"# Title\n<p>html in markdown</p>", "text/markdown"),
    "a.csv": (b"a,b\n1,2\n", "text/csv"),
    "a.json": (b' {"a": 1}', "application/json"),
    "no-ending": (b"plain", "text/plain"),
}

REFUSED: dict[str, tuple[bytes, str]] = {
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>', ""),
    "svg after spaces": (b"\xef\xbb\xbf \n <SVG onload=alert(1)>", ""),
    "svg as png": (b"<svg/>", "image/png"),
    "html": (b"<!DOCTYPE html><p>x", ""),
    "html as text": (b"<h1>x</h1>", "text/plain"),
    "text as html": (b"x", "text/html"),
    "text as javascript": (b"x", "text/javascript"),
    "xml": (b"<?xml version='1.0'?><a/>", ""),
    "script": (b"#!/bin/sh\nexit", ""),
    "zip": (build_zip(), ""),
    "zip as png": (build_zip(), "image/png"),
    "png and zip": (PNG + build_zip(), ""),
    "gif and zip": (b"GIF89a" + bytes(64) + build_zip(), ""),
    "text and zip": (b"plain text\n" + build_zip(), "text/plain"),
    "png and html": (PNG + bytes(9_000) + b"<ScRiPt>alert(1)</script>", ""),
    "gif and script": (b"GIF89a/*<script>*/=1", ""),
    "gif and svg": (b"GIF89a/*<Svg/onload=alert(1)>", ""),
    "png and pdf": (PNG[:500] + b"%PDF-1.7", ""),
    "pdf and html": (b"%PDF-1.7\n<html>", ""),
    "png as pdf": (PNG, "application/pdf"),
    "png as audio": (PNG, "audio/mpeg"),
    "elf": (b"\x7fELF\x02\x01\x01" + bytes(64), ""),
    "exe": (b"MZ\x90\0" + bytes(64), ""),
    "mp4 video": (b"\0\0\0\x20ftypisom\0\0\0\0", ""),
    "utf-16": ("text".encode("utf-16"), "text/plain"),
    "latin-1": ("naïve".encode("latin-1"), "text/plain"),
    "nul in text": (b"a\0b", "text/plain"),
    "no json": (b"hello", "application/json"),
    "cut utf-8": ("naïve".encode()[:3], "text/plain"),
}
"""Bytes of other types, of two types at once, or with an announced type that is not theirs."""


def test_accepted_types_are_found_by_their_bytes(host: Host) -> None:
    with host.as_user("types") as client:
        for name, (content, expected) in ACCEPTED.items():
            record = upload(client, content, name)
            assert (record["name"], record["media_type"]) == (name, expected)
            sent = client.get(f"/files/{record['file_id']}/content")
            assert (sent.content, sent.status_code) == (content, 200)
            assert sent.headers["content-type"].partition(";")[0] == expected
    assert {kind for _, kind in ACCEPTED.values()} == set(MEDIA_TYPES)


def test_other_types_are_refused_and_nothing_is_kept(host: Host) -> None:
    before = host.list_bytes()
    with host.as_user("wrong") as client:
        for case, (content, announced) in REFUSED.items():
            headers = {"content-type": announced} if announced else {}
            answer = client.post("/files?name=a.txt", content=content, headers=headers)
            assert answer.status_code == 415, (case, answer.text)
            assert "accepted types: image/png" in answer.json()["detail"], case
        assert client.get("/files").json()["data"] == []
    assert host.list_bytes() == before


WRONG_NAMES = (
    "",
    " ",
    ".",
    "..",
    "../a.png",
    "a/b.png",
    "C:\\a.png",
    "/etc/passwd",
    "a\0.png",
    "a\n.png",
    "a\x1b[1m.png",
    "a\u202egnp.exe",
    "a\u2066.png",
    "a\u2028.png",
    "x" * 256,
)
"""Names of no file, with a path, or with characters that hide what the name is."""


def test_wrong_names_are_refused_and_nothing_is_kept(host: Host) -> None:
    before = host.list_bytes()
    with host.as_user("names") as client:
        for name in WRONG_NAMES:
            answer = client.post("/files", params={"name": name}, content=PNG)
            assert (answer.status_code, "name" in answer.text) == (422, True), name
        assert client.post("/files", content=PNG).status_code == 422
        assert client.get("/files").json()["data"] == []
    assert host.list_bytes() == before


def test_wrong_sizes_and_encodings_are_refused_and_nothing_is_kept(host: Host) -> None:
    before = host.list_bytes()

    def send_chunks() -> Iterator[bytes]:
        """Send 13 MB without their length."""
        for _ in range(13):
            yield PNG[:8] + bytes(1_000_000)

    with host.as_user("sizes") as client:
        for body in (PNG + bytes(12_000_000), send_chunks()):
            answer = client.post("/files?name=a.png", content=body)
            assert (answer.status_code, answer.json()["error_code"]) == (413, "TOO_LARGE")
        assert client.post("/files?name=a.png", content=b"").status_code == 422

        encoded = {"content-encoding": "gzip"}
        assert client.post("/files?name=a", content=PNG, headers=encoded).status_code == 415
        assert client.get("/files").json()["data"] == []
    assert host.list_bytes() == before


def begin_upload(host: Host, user: str, *fields: str) -> socket.socket:
    """Send the head of an upload, and return the connection."""
    head = ("POST /files?name=a.png HTTP/1.1", "Host: x", *fields)
    lines = [*head, f"Authorization: Bearer {host.place.token(user, *USER)}", "", ""]
    connection = socket.create_connection(("127.0.0.1", host.server.port), timeout=PATIENCE)
    connection.sendall("\r\n".join(lines).encode())
    return connection


def test_announced_length_is_refused_before_the_body_is_read(host: Host) -> None:
    with begin_upload(host, "early", "Content-Length: 12000001") as connection:
        assert b" 413 " in connection.recv(4_096)


def test_body_without_an_end_is_refused_at_the_bound(host: Host) -> None:
    piece = b"100000\r\n%b\r\n" % bytes(1 << 20)
    with begin_upload(host, "endless", "Transfer-Encoding: chunked") as connection:
        for _ in range(12):
            connection.sendall(piece)
        assert b" 413 " in connection.recv(4_096)


def test_cut_upload_leaves_nothing(host: Host) -> None:
    before = host.list_bytes()
    with begin_upload(host, "cut", "Content-Length: 2000000") as connection:
        connection.sendall(PNG + bytes(1_000_000))
        wait_for(lambda: len(host.list_bytes()) > len(before))
    wait_for(lambda: host.list_bytes() == before)
    with host.as_user("cut") as client:
        assert client.get("/files").json()["data"] == []


def test_uploads_at_once_are_bounded_for_a_caller_and_a_process(host: Host) -> None:
    before = host.list_bytes()
    half = MAXIMUM_UPLOADS // 2
    with contextlib.ExitStack() as stack, host.as_user("slow-0") as first:
        for user in range(2):
            for _ in range(half):
                begun = begin_upload(host, f"slow-{user}", "Content-Length: 1000000")
                stack.enter_context(begun).sendall(PNG + bytes(500_000))
            count = len(before) + half * (user + 1)
            wait_for(lambda count=count: len(host.list_bytes()) == count)  # type: ignore[misc]
            answer = first.post("/files?name=a.png", content=PNG)
            assert (answer.status_code, answer.json()["error_code"]) == (503, "UNAVAILABLE")
            assert answer.headers["retry-after"] == "1"
        with host.as_user("other") as client:
            assert client.post("/files?name=a.png", content=PNG).status_code == 503
    wait_for(lambda: host.list_bytes() == before)
    with host.as_user("slow-0") as client:
        upload(client, PNG)


DIGITS = b"0123456789"

RANGES = {
    "bytes=0-0": (b"0", "0-0"),
    "bytes=3-5": (b"345", "3-5"),
    "bytes=8-": (b"89", "8-9"),
    "bytes=-3": (b"789", "7-9"),
    "bytes=-99": (DIGITS, "0-9"),
    "bytes=4-999": (b"456789", "4-9"),
}
"""The parts of `DIGITS` that are sent, and their places."""


@pytest.fixture(scope="module")
def content_of_digits(host: Host) -> Iterator[tuple[httpx2.Client, str]]:
    """A client, and the path of the content of its file with `DIGITS`."""
    with host.as_user("ranges") as client:
        record = upload(client, DIGITS, "r\"é'%.txt")
        yield client, f"/files/{record['file_id']}/content"


def test_content_is_sent_so_that_no_browser_executes_it(
    content_of_digits: tuple[httpx2.Client, str],
) -> None:
    client, path = content_of_digits
    expected = {
        "accept-ranges": "bytes",
        "content-disposition": "attachment; filename*=UTF-8''r%22%C3%A9%27%25.txt",
        "content-length": "10",
        "content-security-policy": "sandbox; default-src 'none'",
        "etag": f'"{hashlib.sha256(DIGITS).hexdigest()}"',
        "x-content-type-options": "nosniff",
    }
    assert expected.items() <= dict(client.get(path).headers).items()


def test_content_is_sent_in_ranges(content_of_digits: tuple[httpx2.Client, str]) -> None:
    client, path = content_of_digits
    tag = client.get(path).headers["etag"]

    for wanted, (part, place) in RANGES.items():
        answer = client.get(path, headers={"range": wanted, "if-range": tag})
        assert (answer.status_code, answer.content) == (206, part), wanted
        assert answer.headers["content-range"] == f"bytes {place}/10"

    for outside in ("bytes=10-", "bytes=10-12", "bytes=-0", "bytes=99999999999999999-"):
        answer = client.get(path, headers={"range": outside})
        assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */10")
        assert answer.json()["error_code"] == "RANGE_NOT_SATISFIABLE"

    # Several ranges, and what is no range, are ignored (RFC 9110 14.2).
    for ignored in ("bytes=0-1,3-4", "bytes=5-3", "lines=0-1", "bytes=x", "bytes=-"):
        assert client.get(path, headers={"range": ignored}).content == DIGITS


def test_tag_of_the_content_decides_what_is_sent(
    content_of_digits: tuple[httpx2.Client, str],
) -> None:
    client, path = content_of_digits
    tag = client.get(path).headers["etag"]
    assert client.get(path, headers={"if-none-match": tag}).status_code == 304

    other = {"range": "bytes=0-0", "if-range": '"x"'}
    assert client.get(path, headers=other).status_code == 200


@dataclass(frozen=True)
class OwnedFile:
    """A file of `owner`, and a session of the same user."""

    file_id: str
    session_id: str


@pytest.fixture(scope="module")
def owned(host: Host) -> OwnedFile:
    with host.as_user("owner") as owner:
        file_id = upload(owner, PNG)["file_id"]
        session_id = owner.post("/sessions?type=agent", json={}).json()["session_id"]
    return OwnedFile(file_id, session_id)


def test_file_of_another_user_is_as_an_unknown_one(host: Host, owned: OwnedFile) -> None:
    unknown = f"{owned.file_id[:-4]}0000"
    with host.as_user("stranger") as stranger:
        for method, rest in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            for path in (f"/files/{{}}{rest}", f"/files/{{}}{rest}?db_id=second"):
                answers = [
                    stranger.request(method, path.format(file_id), headers={"range": "bytes=0-1"})
                    for file_id in (owned.file_id, unknown)
                ]
                assert [answer.status_code for answer in answers] == [404, 404]
                assert answers[0].content == answers[1].content

        assert stranger.get("/files", params={"user_id": "owner"}).json()["data"] == []


def test_file_cannot_be_given_to_another_user(host: Host, owned: OwnedFile) -> None:
    with host.as_user("stranger") as stranger:
        refused = [
            stranger.post("/files", params={"name": "a.png", "session_id": session_id}, content=PNG)
            for session_id in (owned.session_id, "unknown")
        ]
        assert [answer.status_code for answer in refused] == [404, 404]
        assert refused[0].content == refused[1].content

        named = stranger.post("/files?name=a.png&user_id=owner", content=PNG)
        assert (named.status_code, named.json()["error_code"]) == (403, "FORBIDDEN")

    with host.as_user("reader", "sessions:read") as reader:
        assert reader.post("/files?name=a.png", content=PNG).status_code == 403


def test_upload_of_an_administrator_belongs_to_the_owner_of_the_session(
    host: Host, owned: OwnedFile
) -> None:
    with host.as_user("boss", ADMIN) as admin:
        assert admin.get(f"/files/{owned.file_id}").json()["user_id"] == "owner"
        record = upload(admin, PNG, session_id=owned.session_id)
        assert (record["user_id"], record["session_id"]) == ("owner", owned.session_id)


def test_users_share_no_bytes_and_sessions_of_one_user_do(host: Host) -> None:
    content = PNG + os.urandom(64)
    before = {*host.list_bytes()}
    for name in ("sharer", "sharer", "other-sharer"):
        with host.as_user(name) as client:
            upload(client, content)
    added = {*host.list_bytes()} - before
    assert {path.name for path in added} == {hashlib.sha256(content).hexdigest()}
    assert len(added) == 2
    assert {path.stat().st_mode & 0o777 for path in added} == {0o600}


def test_versions_count_the_files_of_a_session_with_one_name(host: Host) -> None:
    with host.as_user("versions") as client:
        session = client.post("/sessions?type=agent", json={}).json()["session_id"]
        names = ("a.png", "b.png", "a.png", "a.png")
        made = [upload(client, PNG, name, session_id=session) for name in names]
        assert [record["version"] for record in made] == [1, 1, 2, 3]
        page = client.get("/files", params={"session_id": session, "limit": 3}).json()
        assert [record["file_id"] for record in page["data"]] == [
            record["file_id"] for record in reversed(made[1:])
        ]
        assert page["meta"]["total_count"] == 4


def test_files_of_a_session_end_with_it_and_those_of_a_held_one_stay(host: Host) -> None:
    with host.as_user("ends") as client, host.as_user("boss", ADMIN) as admin:
        session = client.post("/sessions?type=agent", json={}).json()["session_id"]
        path = f"/files/{upload(client, PNG, session_id=session)['file_id']}"

        admin.post(f"/sessions/{session}/hold", json={"reason": "case 7"})
        refused = client.delete(path)
        assert (refused.status_code, refused.json()["error_code"]) == (409, "HELD")
        assert refused.json()["session_ids"] == [session]

        admin.delete(f"/sessions/{session}/hold")
        assert client.delete(f"/sessions/{session}").status_code == 204
        assert client.get(path).status_code == 404


def test_file_without_a_session_is_deleted_once(host: Host) -> None:
    with host.as_user("ends") as client:
        path = f"/files/{upload(client, PNG)['file_id']}"
        assert [client.delete(path).status_code for _ in range(2)] == [204, 404]


def list_all_files(client: httpx2.Client) -> list[Any]:
    """Return all pages of the list of files."""
    files = list[Any]()
    query = {"limit": "100"}
    while True:
        page = client.get("/files", params=query).json()
        files += page["data"]
        cursor = page["meta"]["next_cursor"]
        if not cursor:
            return files
        query["cursor"] = cursor


def test_many_uploads_at_once_are_refused_or_whole(host: Host) -> None:
    count = 1_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 60
    # A half of them is too much for the day.
    size = DAY_BYTES // count * 2
    body = os.urandom(size - 12)
    before = {*host.list_bytes()}

    with host.as_user("crowd") as client, ThreadPoolExecutor(24) as pool:

        def send(number: int) -> httpx2.Response:
            content = PNG[:8] + number.to_bytes(4) + body
            return client.post("/files", params={"name": f"{number}.png"}, content=content)

        answers = list(pool.map(send, range(count)))
        for answer in answers:
            if answer.status_code == 503:
                assert answer.headers["retry-after"] == "1"
            elif answer.status_code != 201:
                refusal = answer.json()
                assert (answer.status_code, refusal["error_code"]) == (429, "QUOTA_EXCEEDED")

        stored = [answer.json() for answer in answers if answer.status_code == 201]
        listed = list_all_files(client)
        assert {row["file_id"] for row in listed} == {row["file_id"] for row in stored}
        assert 0 < sum(row["size"] for row in listed) <= DAY_BYTES
        for row in listed[:5]:
            sent = client.get(f"/files/{row['file_id']}/content").content
            assert hashlib.sha256(sent).hexdigest() == row["sha256"]

    kept = {path.name for path in {*host.list_bytes()} - before}
    assert kept >= {row["sha256"] for row in stored}
    assert not list((host.place.folder / "files" / ".incoming").iterdir())


def test_no_byte_or_name_of_a_file_is_in_log_or_audit(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    marker = "topaz-4471"
    with host.as_user("private") as client, host.as_user("boss", ADMIN) as admin:
        record = upload(client, f"bytes {marker}".encode(), f"{marker}.txt")
        client.delete(f"/files/{record['file_id']}")

        entries = admin.get("/audit", params={"principal": "private"}).json()["data"]
        assert [(each["operation"], each["resource"]) for each in entries] == [
            ("delete_file", f"file:{record['file_id']}"),
            ("upload_file", f"file:{record['file_id']}"),
        ]
        assert marker not in json.dumps(entries)

    # The client logs its own requests. A line of the server follows the response.
    lines = wait_for(lambda: find_lines(caplog, "upload_file"))
    assert marker not in str(lines)


def find_lines(caplog: pytest.LogCaptureFixture, operation: str) -> list[dict[str, Any]]:
    """Return the records of the server's log, once one of them is about an operation."""
    lines = [vars(each) for each in caplog.records if each.name.startswith("agentctl")]
    return lines if operation in str(lines) else []


def test_log_names_the_cause_of_a_store_that_does_not_work(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    (deployment.folder / "files").write_text("no folder")
    with serve_in_thread(deployment) as server, deployment.client(server.url) as client:
        refused = client.post("/files?name=a.txt", content=b"plain")
        assert (refused.status_code, "cause" in refused.json()) == (503, False)
    cause = "requests fail with 503: The store of files does not work: not a directory"
    assert cause in caplog.text
