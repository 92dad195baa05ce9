"""Request bodies: content types, sizes, JSON, forms and fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest
from pydantic import ValidationError

from agentctl.errors import ValidationFailed
from agentctl.records.value_types import ValueType
from agentctl.server import requests
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

RUNS = "/agents/echo/runs"
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def send(
    server: ThreadedServer,
    content: bytes,
    content_type: str | None = JSON,
    path: str = RUNS,
    **more: str,
) -> tuple[int, str]:
    headers = as_caller(server, "me") | more
    if content_type is not None:
        headers["Content-Type"] = content_type
    answer = server.client.post(path, headers=headers, content=content)
    return answer.status_code, answer.text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"message":}',
        b"{'message':'a'}",
        b'{"message":"a"} x',
        b"\xff\xfe{}",
        b'{"message":"\xff"}',
        b'{"message":"a","message":"b"}',
        b'{"message":NaN}',
        b'{"message":Infinity}',
        b'{"message":1e999}',
        b'{"message":"a\nb"}',
        b'{"message":' + b"[" * 60_000,
        b'{"message":' + b"9" * 5_000 + b"}",
        b"\xef\xbb\xbf{}",
    ],
    ids=lambda content: repr(content[:24]),
)
def test_invalid_json_is_a_bad_request(server: ThreadedServer, content: bytes) -> None:
    status, text = send(server, content)
    assert status == 400
    assert text == '{"detail":"The body is not valid JSON","error_code":"BAD_REQUEST"}'


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"[]", "object"),
        (b"null", "object"),
        (b'"message"', "object"),
        (b'{"message":1}', "message"),
        (b'{"message":null}', "message"),
        (b'{"message":""}', "message"),
        (b'{"message":"a","stream":"yes"}', "stream"),
        (b'{"message":"a","background":1}', "background"),
        (b'{"message":"a","session_id":1}', "session_id"),
        (b'{"message":"a","user_id":[]}', "user_id"),
        (b'{"message":"a","model":"x"}', "model"),
        (b'{"message":"a","images":["x"]}', "images"),
        (b'{"message":"a","files":{"x":1}}', "files"),
        (b'{"message":"\\u0000"}', "message"),
        (b'{"message":"\\ud800"}', "message"),
        (b'{"message":"a","session_id":"' + b"a" * 129 + b'"}', "session_id"),
        (b'{"message":"a","session_id":""}', "session_id"),
        (b'{"message":"a","":1}', "not known"),
        (b'{"message":"a","<b>":1}', "not known"),
    ],
    ids=lambda content: repr(content)[:40],
)
def test_json_fields_are_checked(server: ThreadedServer, content: bytes, named: str) -> None:
    status, text = send(server, content)
    assert status == 422
    assert named in text
    assert "<b>" not in text


def test_body_with_too_many_values_is_refused(server: ThreadedServer) -> None:
    values = b"[" + b"[]," * 70_000 + b"[]]"
    status, text = send(server, b'{"message":"a","metadata":{"a":' + values + b"}}")
    assert status == 413
    assert "The body has more than 65536 values" in text
    # Brackets in a text are no values.
    status, text = send(server, b'{"message":"' + b"[],{}" * 20_000 + b'"}')
    assert status == 200, text


def test_empty_media_fields_are_accepted(server: ThreadedServer) -> None:
    content = b'{"message":"hi","stream":false,"images":[],"audio":null,"files":""}'
    assert send(server, content)[0] == 200


@pytest.mark.parametrize(
    ("content", "status", "named"),
    [
        (b"message=hi&stream=false", 200, "COMPLETED"),
        (b"message=a%2Bb+c&stream=0", 200, '"input":"a+b c"'),
        (b"message=hi&stream=false&monitor=true&images=", 200, "COMPLETED"),
        (b"message=hi&stream=false&images=&images=", 200, "COMPLETED"),
        (b"message=hi&stream=false&session_id=&user_id=", 200, '"user_id":"me"'),
        (b"message=hi&background=TRUE&stream=false", 202, "run_id"),
        (b"", 422, "message"),
        (b"message=", 422, "message"),
        (b"stream=false", 422, "message"),
        (b"message=a&message=b", 422, "message"),
        (b"message=a&stream=maybe", 422, "stream"),
        (b"message=a&images=x", 422, "images"),
        (b"message=%00", 422, "message"),
        (b"message=a&images=&images=x", 422, "images"),
        (b"message=%ff", 422, "message"),
        (b"message=%ed%a0%80", 422, "message"),
        (b"message=a&" + b"b=1&" * 200, 400, "fields"),
    ],
    ids=lambda content: repr(content)[:40],
)
def test_form_fields_are_converted(
    server: ThreadedServer, content: bytes, status: int, named: str
) -> None:
    found, text = send(server, content, f"{FORM}; charset=utf-8")
    assert (found, named in text) == (status, True), text


def part(name: str, value: bytes, more: str = "") -> bytes:
    """Return a part of a multipart form with the boundary `x`."""
    lines = f'--x\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return lines.encode() + value + b"\r\n"


MESSAGE = part("message", b"hi")
PLAIN = part("stream", b"false")


@pytest.mark.parametrize(
    ("content", "status", "named"),
    [
        (MESSAGE + PLAIN, 200, "COMPLETED"),
        (MESSAGE + PLAIN + part("metadata", b'{"a":1}'), 200, '"metadata":{"a":1}'),
        (MESSAGE + PLAIN + part("files", b"", '; filename=""'), 200, "COMPLETED"),
        (MESSAGE + PLAIN + part("monitor", b"true"), 200, "COMPLETED"),
        (part("message", "é".encode()) + PLAIN, 200, '"input":"é"'),
        (part("message", b"x" * 300_000) + PLAIN, 413, "message"),
        (PLAIN, 422, "message"),
        (MESSAGE * 2, 422, "message is given more than once"),
        (MESSAGE + part("photo", b"\x89PNG", '; filename="a.png"'), 422, "photo is not supported"),
        (MESSAGE + part("images", b"x"), 422, "images is not supported"),
        (MESSAGE + part("stream", b"maybe"), 422, "stream"),
        (MESSAGE + part("a", b"") * 100, 400, "not a valid multipart form"),
        (part("a", b"", '; filename="b"') * 101, 400, "not a valid multipart form"),
        (b"--x\r\nnothing", 400, "not a valid multipart form"),
    ],
    ids=lambda content: repr(content)[:40],
)
def test_multipart_form_has_text_fields(
    server: ThreadedServer, content: bytes, status: int, named: str
) -> None:
    found, text = send(server, content + b"--x--\r\n", "multipart/form-data; boundary=x")
    assert (found, named in text) == (status, True), text


def test_multipart_form_without_a_boundary_is_a_bad_request(server: ThreadedServer) -> None:
    status, text = send(server, MESSAGE + b"--x--\r\n", "multipart/form-data")
    assert (status, "multipart" in text) == (400, True)


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "multipart/mixed; boundary=x", "application/xml"]
)
def test_unsupported_type_error_names_the_supported_ones(
    server: ThreadedServer, content_type: str | None
) -> None:
    status, text = send(server, b'{"message":"a"}', content_type)
    assert status == 415
    assert f"{JSON}, {FORM} or multipart/form-data" in text


def test_only_runs_accept_forms(server: ThreadedServer) -> None:
    status, text = send(server, b"session_id=a", FORM, "/sessions")
    assert status == 415
    assert FORM not in text


def test_compressed_bodies_are_rejected(server: ThreadedServer) -> None:
    status, _ = send(server, b'{"message":"a"}', **{"Content-Encoding": "gzip"})
    assert status == 415


def test_empty_body_creates_a_session(server: ThreadedServer) -> None:
    assert send(server, b"", None, "/sessions")[0] == 201
    assert send(server, b"", JSON, "/sessions")[0] == 201
    assert send(server, b"x", None, "/sessions")[0] == 415


def test_content_type_is_case_insensitive(server: ThreadedServer) -> None:
    content = b'{"message":"hi","stream":false}'
    assert send(server, content, "Application/JSON; charset=UTF-8")[0] == 200


def test_depth_of_free_form_objects_is_limited(server: ThreadedServer) -> None:
    def nested(levels: int) -> bytes:
        return b'{"metadata":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}"

    assert send(server, nested(63), path="/sessions")[0] == 201
    status, text = send(server, nested(64), path="/sessions")
    assert (status, "nests deeper" in text) == (422, True)


def test_free_form_objects_are_returned_unchanged(server: ThreadedServer) -> None:
    content = '{"metadata":{"é":[1,-9223372036854775808,1.5,true,null,"𝄞"],"":{}}}'
    status, text = send(server, content.encode(), path="/sessions")
    assert status == 201
    assert content[1:-1] in text


def test_announced_size_above_the_limit_is_rejected(server: ThreadedServer) -> None:
    status, text = send(server, b"x" * 1_048_577)
    assert status == 413
    assert '"error_code":"TOO_LARGE"' in text


def test_chunked_body_above_the_limit_is_rejected(server: ThreadedServer) -> None:
    def parts() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * 65_536

    headers = as_caller(server, "me") | {"Content-Type": JSON}
    answer = server.client.post(RUNS, headers=headers, content=parts())
    assert answer.status_code == 413


def test_message_has_a_separate_limit(server: ThreadedServer) -> None:
    content = b'{"message":"' + "é".encode() * 131_073 + b'"}'
    status, text = send(server, content)
    assert (status, "message" in text) == (413, True)


def test_missing_session_is_reported_before_an_invalid_body(server: ThreadedServer) -> None:
    for path in ("/agents/nothing/runs", "/sessions/nothing/rename", "/sessions/theirs/rename"):
        assert send(server, b"{bad", path=path)[0] == 404
        assert send(server, b"{}", "text/plain", path)[0] == 404


@pytest.mark.parametrize(
    ("operation", "body", "problem"),
    [
        ("runs.create", {"message": "x", "files": [1] * 60_000}, "files[0] must be a string"),
        ("runs.continue_run", {"decisions": [{}] * 60_000}, "decisions[0].decision is required"),
        (
            "sessions.rename",
            dict.fromkeys((f"x{number:05}" for number in range(60_000)), 1),
            "x00000 is not known; known fields: session_name",
        ),
    ],
)
def test_thousands_of_wrong_values_are_one_error(
    operation: str, body: dict[str, object], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydantic would collect an error for each of them, which blocks a server for long."""
    counts = list[int]()
    describe = requests._describe_problem

    def count(error: ValidationError, fields: Mapping[str, ValueType]) -> str:
        counts.append(error.error_count())
        return describe(error, fields)

    monkeypatch.setattr(requests, "_describe_problem", count)
    with pytest.raises(ValidationFailed) as refused:
        requests.BODIES[operation].check_json(body)
    assert refused.value.detail == problem
    assert sum(counts) <= 1
