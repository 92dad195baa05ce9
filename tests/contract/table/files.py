"""Rows about files."""

from __future__ import annotations

from collections.abc import Iterator

from agentctl.interface.requests import Page
from agentctl.interface.requests.files import FileContent, FileFilter, FileUpload
from tests.contract.rows import INVALID, NOT_FOUND, Call, Row, read_bytes

__all__ = ["file_rows"]


def file_rows() -> Iterator[Row]:
    yield from _upload_rows()
    yield from _read_rows()
    yield from _deletion_rows()


def _upload(upload: FileUpload, content: bytes, media_type: str = "") -> Call:
    body = FileContent(content)
    return lambda o, at: o.files.upload(upload, body, media_type=media_type, size=body.size)


def _upload_rows() -> Iterator[Row]:
    operation = "upload_file"
    digits = b"0123456789"
    yield Row(
        operation,
        "POST /files?name=na%C3%AFve.txt&session_id=mine&user_id=me&db_id=main",
        _upload(FileUpload("naïve.txt", "mine", "me", "main"), digits, "text/plain"),
        status=201,
        has=('"name":"naïve.txt"', '"session_id":"mine"', '"size":10'),
        body=digits,
        headers={"content-type": "text/plain", "content-length": "10"},
        keeps={"file": "file_id"},
    )

    yield Row(
        operation,
        "POST /files?name=a.txt",
        _upload(FileUpload("a.txt"), b"ab"),
        status=201,
        has=('"media_type":"text/plain"', '"session_id":null', '"user_id":"me"'),
        body=b"ab",
        headers={"content-type": "application/octet-stream"},
        keeps={"loose_file": "file_id"},
    )

    for status, text, upload, query, content in (
        (422, "name", FileUpload("a/b"), "name=a%2Fb", b"x"),
        (422, "name", FileUpload("a\0"), "name=a%00", b"x"),
        (404, "NOT_FOUND", FileUpload("a.txt", "nothing"), "name=a.txt&session_id=nothing", b"x"),
        (403, "FORBIDDEN", FileUpload("a", user_id="other"), "name=a&user_id=other", b"x"),
        (415, "UNSUPPORTED_MEDIA_TYPE", FileUpload("a.txt"), "name=a.txt", b"<svg/>"),
    ):
        yield Row(
            operation,
            f"POST /files?{query}",
            _upload(upload, content),
            status=status,
            has=(text,),
            body=content,
        )


def _read_rows() -> Iterator[Row]:
    yield Row(
        "get_file",
        "GET /files/{file}",
        lambda o, at: o.files.get(at["file"]),
        has=('"origin":"upload"',),
    )

    yield Row(
        "get_file",
        "GET /files/{file}?db_id=second",
        lambda o, at: o.files.get(at["file"], db_id="second"),
        status=404,
        has=NOT_FOUND,
    )

    yield Row(
        "get_file",
        "GET /files/{file}",
        lambda o, at: o.files.get(at["file"]),
        "other",
        404,
        NOT_FOUND,
    )

    content = "GET /files/{file}/content"
    yield Row(
        "get_file_content",
        content,
        lambda o, at: read_bytes(o.files.get_content(at["file"])),
        has=("0123456789",),
    )

    yield Row(
        "get_file_content",
        f"{content}?db_id=main",
        lambda o, at: read_bytes(
            o.files.get_content(at["file"], db_id="main", byte_range="bytes=-2")
        ),
        status=206,
        has=("89",),
        lacks=("7",),
        headers={"range": "bytes=-2"},
    )

    yield Row(
        "get_file_content",
        content,
        lambda o, at: read_bytes(o.files.get_content(at["file"], byte_range="bytes=99-")),
        status=416,
        has=("10 bytes",),
        headers={"range": "bytes=99-"},
    )

    yield Row(
        "get_file_content",
        content,
        lambda o, at: read_bytes(o.files.get_content(at["file"])),
        "other",
        404,
        NOT_FOUND,
    )

    yield Row(
        "get_files",
        "GET /files",
        lambda o, at: o.files.list(FileFilter()),
        has=("{file}", "{loose_file}"),
    )

    yield Row(
        "get_files",
        "GET /files?user_id=me&session_id=mine&db_id=main&limit=1&sort_order=asc",
        lambda o, at: o.files.list(
            FileFilter("me", "mine", "main", Page(limit=1, sort_order="asc"))
        ),
        has=("{file}",),
        lacks=("{loose_file}",),
    )

    yield Row(
        "get_files",
        "GET /files?limit=0",
        lambda o, at: o.files.list(FileFilter(page=Page(limit=0))),
        status=422,
        has=("limit", *INVALID),
    )

    yield Row(
        "get_files",
        "GET /files",
        lambda o, at: o.files.list(FileFilter()),
        "other",
        has=('"data":[]',),
    )


def _deletion_rows() -> Iterator[Row]:
    for who, status in (("other", 404), ("powerless", 403), ("me", 204), ("me", 404)):
        yield Row(
            "delete_file",
            "DELETE /files/{file}?db_id=main",
            lambda o, at: o.files.delete(at["file"], db_id="main"),
            who,
            status,
        )
