"""Raw requests of attackers, broken programs and honest clients, with the expected responses.

The names start with the case id of `docs/internals/security-cases.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["CASES", "Case"]

HOST = b"Host: x\r\n"
AUTH = b"Authorization: Bearer {token}\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True)
class Case:
    """Raw bytes with `{token}` in place of a credential, and the expected response.

    Attributes:
        bytes_or_build: the bytes to send on one connection, or a function that builds them: all
            processes of the tests would keep 100 MB.
        status: status of the response.
        closes: True if the server closes the connection after it.
    """

    bytes_or_build: bytes | Callable[[], bytes]
    status: int
    closes: bool

    @property
    def sent(self) -> bytes:
        """The bytes to send on one connection."""
        given = self.bytes_or_build
        return given if isinstance(given, bytes) else given()


def _get(fields: bytes = b"", path: bytes = b"/teams", host: bytes = HOST) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + host + AUTH + fields + b"\r\n"


def _post(
    fields: bytes, body: bytes = b"", path: bytes = b"/sessions", auth: bytes = AUTH
) -> bytes:
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + auth + fields + b"\r\n" + body


def _line(line: bytes, fields: bytes = HOST + AUTH) -> bytes:
    return line + b"\r\n" + fields + b"\r\n"


def _no_http() -> Iterator[tuple[str, bytes]]:
    """Yield requests with a 400, after which the connection is closed."""
    yield "T04 the same credential twice", _get(AUTH)
    yield "T04 two credentials", _get(b"authorization: Bearer other\r\n")
    yield "T04 a second credential that is empty", _get(b"Authorization:\r\n")
    yield (
        "T07 NUL in a credential",
        _line(b"GET /teams HTTP/1.1", HOST + b"Authorization: a\0b\r\n"),
    )
    yield "T07 CR in a credential", _line(b"GET /teams HTTP/1.1", HOST + b"Authorization: a\rb\r\n")
    yield "T07 control in a field", _get(b"X: a\x1bb\r\n")
    yield from _framing()
    yield from _chunks()
    yield from _hosts()
    yield from _lines()


def _framing() -> Iterator[tuple[str, bytes]]:
    length = b"Content-Length: 2\r\n"
    yield "T11 length and chunks", _post(JSON + length + CHUNKED, b"0\r\n\r\n")
    yield "T11 chunks and length", _post(JSON + CHUNKED + length, b"0\r\n\r\n")
    yield "T11 a length twice", _post(JSON + length + length, b"{}")
    yield "T11 two lengths", _post(JSON + length + b"Content-Length: 3\r\n", b"{}")
    for value in (b"2, 2", b"+2", b"-1", b"", b"0x2", b"2 2", b"9" * 25, b"2.0"):
        name = f"T11 the length {value[:4].decode()!r}"
        yield name, _post(JSON + b"Content-Length: " + value + b"\r\n", b"{}")
    for value in (b"xchunked", b"gzip, chunked", b"chunked, identity", b"identity", b"chunked;q=1"):
        name = f"T11 the coding {value.decode()!r}"
        yield name, _post(JSON + b"Transfer-Encoding: " + value + b"\r\n", b"0\r\n\r\n")
    yield "T11 chunks twice", _post(JSON + CHUNKED + CHUNKED, b"0\r\n\r\n")
    yield "T11 chunks in HTTP/1.0", _line(b"POST /sessions HTTP/1.0", HOST + AUTH + CHUNKED)
    yield "T11 line feeds alone", b"GET /teams HTTP/1.1\nHost: x\n\n"
    yield "T11 a line feed behind the line", b"GET /teams HTTP/1.1\n" + HOST + b"\r\n"
    yield "T11 a line feed behind a field", _get(b"X: a\nY: b\r\n")
    yield "T11 line feeds before the line", b"\n\n" + _get()
    yield "T11 a folded field", _get(b"X: a\r\n b\r\n")
    yield "T11 a folded credential", _line(b"GET /teams HTTP/1.1", HOST + AUTH + b"\tx\r\n")
    yield "T11 space before the colon", _get(b"X : a\r\n")
    yield "T11 a field without a name", _get(b": a\r\n")
    yield "T11 a field without a colon", _get(b"abc\r\n")
    yield "T11 space before the first field", _line(b"GET /teams HTTP/1.1", b" X: a\r\n" + HOST)
    yield "T18 two content types", _post(JSON + b"Content-Type: text/plain\r\n" + length, b"{}")


def _chunks() -> Iterator[tuple[str, bytes]]:
    bodies = {
        "the size 0x2": b"0x2\r\n{}\r\n0\r\n\r\n",
        "a size and a space": b"2 \r\n{}\r\n0\r\n\r\n",
        "a space and a size": b" 2\r\n{}\r\n0\r\n\r\n",
        "the size -2": b"-2\r\n{}\r\n0\r\n\r\n",
        "a huge size": b"f" * 17 + b"\r\n",
        "no size": b"\r\n",
        "a line feed behind a size": b"2\n{}\r\n0\r\n\r\n",
        "a line feed behind a chunk": b"2\r\n{}\n0\r\n\r\n",
        "nothing behind a chunk": b"2\r\n{}0\r\n\r\n",
        "a chunk that is too long": b"2\r\n{ }\r\n0\r\n\r\n",
        "a line feed at the end": b"2\r\n{}\r\n0\r\n\n",
        "an extension of 100 KB": b"2;" + b"a" * 100_000 + b"\r\n{}\r\n0\r\n\r\n",
        "a size of 100,000 zeros": b"0" * 100_000 + b"2\r\n{}\r\n0\r\n\r\n",
        "trailers of 100 KB": b"0\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        "a length as a trailer": b"2\r\n{}\r\n0\r\nContent-Length: 3\r\n\r\n",
        "a coding as a trailer": b"2\r\n{}\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
    }
    for name, body in bodies.items():
        yield f"T11 {name}", _post(JSON + CHUNKED, body)


def _hosts() -> Iterator[tuple[str, bytes]]:
    yield "T12 no host", _get(host=b"")
    yield "T12 two hosts", _get(b"Host: x\r\n")
    yield "T12 no host in HTTP/1.0", _line(b"GET /health HTTP/1.0", b"")
    hosts = (
        b"", b"a/health?x=", b"a?b", b"a#b", b"u@a", b"a b", b"a,b", b"a:b", b"a:", b"a:65536",
        b"a:123456", b"a:80:80", b"[::1", b"::1", b"[::1]x", b"http://a", b"a\\b", b"\xc3\xa9",
    )  # fmt: skip
    for host in hosts:
        yield f"T12 the host {host!r}", _get(host=b"Host: " + host + b"\r\n")


def _lines() -> Iterator[tuple[str, bytes]]:
    targets = (
        b"http://x/teams",
        b"https://evil/teams",
        b"*",
        b"x:80",
        b"teams",
        b"/teams#a",
        b"?a",
    )
    for target in targets:
        yield f"T14 the target {target.decode()!r}", _get(path=target)
    yield "T14 authority of CONNECT", _line(b"CONNECT x:80 HTTP/1.1")
    yield "T14 CONNECT to a path", _line(b"CONNECT /teams HTTP/1.1")
    yield "T14 asterisk of OPTIONS", _line(b"OPTIONS * HTTP/1.1")
    for version in (b"0.9", b"1.2", b"2.0", b"3.0", b"1.1.1", b"11"):
        yield f"T14 HTTP/{version.decode()}", _line(b"GET /teams HTTP/" + version)
    yield "T14 no version", _line(b"GET /teams")
    yield "T14 the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    yield "T14 TLS", b"\x16\x03\x01\x02\x00\x01\r\n\r\n"
    for method in (b"get", b"FOO", b"G\xc3\x89T", b""):
        yield f"T15 the method {method!r}", _line(method + b" /teams HTTP/1.1")
    yield "T15 two spaces before the target", _line(b"GET  /teams HTTP/1.1")
    yield "T15 two spaces behind the target", _line(b"GET /teams  HTTP/1.1")
    yield "T15 a tab in the line", _line(b"GET\t/teams HTTP/1.1")
    yield "T15 a space behind the line", _line(b"GET /teams HTTP/1.1 ")
    yield "T15 a space in the target", _line(b"GET /agents/a b HTTP/1.1")
    yield "T15 a target beyond ASCII", _line(b"GET /agents/\xc3\xa9 HTTP/1.1")


def _too_large() -> Iterator[tuple[str, bytes | Callable[[], bytes]]]:
    """Yield requests with a 431, after which the connection is closed."""
    yield "T09 a field of 17 KB", _get(b"X: " + b"a" * 17_000 + b"\r\n")
    yield (
        "T09 fields of 17 KB",
        _get(b"".join(b"X%d: %b\r\n" % (n, b"a" * 1_000) for n in range(17))),
    )
    yield "T09 101 fields", _get(b"X: a\r\n" * 99)
    yield "T09 5,000 fields", _get(b"X: a\r\n" * 5_000)
    yield (
        "T09 a credential of 1 MB",
        _line(
            b"GET /teams HTTP/1.1", HOST + b"Authorization: Bearer " + b"a" * 1_000_000 + b"\r\n"
        ),
    )
    yield "T09 a field of 30 MB", lambda: _get(b"X: " + b"a" * 30_000_000 + b"\r\n")
    yield "T09 spaces of 1 MB", _get(b"X:" + b" " * 1_000_000 + b"a\r\n")
    yield "T09 a name of 1 MB", _get(b"a" * 1_000_000 + b": a\r\n")
    yield "T09 empty lines of 1 MB", b"\r\n" * 500_000 + _get()
    yield "T09 a target of 17 KB", _get(path=b"/" + b"a" * 17_000)
    yield "T09 a query of 1 MB", _get(path=b"/teams?" + b"a" * 1_000_000)
    yield (
        "T09 a body behind a field of 17 KB",
        _post(b"X: " + b"a" * 17_000 + b"\r\nContent-Length: 9\r\n", b"{}       "),
    )


def _answered() -> Iterator[tuple[str, Case]]:
    """Yield requests that reach the application."""
    yield "T01 no credential", Case(_line(b"GET /teams HTTP/1.1", HOST), 401, False)
    for query in (b"access_token", b"token"):
        line = b"GET /teams?" + query + b"={token} HTTP/1.1"
        yield f"T05 {query.decode()} in the query", Case(_line(line, HOST), 401, False)
    cookie = HOST + b"Cookie: Authorization=Bearer {token}\r\n"
    yield "T05 a cookie", Case(_line(b"GET /teams HTTP/1.1", cookie), 401, False)
    form = b"access_token={token}"
    fields = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 9\r\n"
    yield "T05 a form", Case(_post(fields, form[:9], b"/agents/echo/runs", b""), 401, False)
    yield "T06 header and query", Case(_get(path=b"/teams?access_token=x"), 200, False)
    latin = HOST + b"Authorization: Bearer \xe9\xff\r\n"
    yield "T07 latin-1 in a credential", Case(_line(b"GET /teams HTTP/1.1", latin), 401, False)
    yield "T07 spaces behind a credential", Case(_get(b"X: a   \r\n"), 200, False)
    most = b"X: " + b"a" * 15_000 + b"\r\n"
    yield "T09 15 KB are taken", Case(_get(most), 200, False)
    yield "T09 100 fields are taken", Case(_get(b"X: a\r\n" * 98), 200, False)
    trailer = b"0\r\nAuthorization: Bearer {token}\r\n\r\n"
    yield "T08 a credential as a trailer", Case(_post(CHUNKED, trailer, auth=b""), 401, True)
    for host in (b"x", b"a-b.example:80", b"127.0.0.1:65535", b"[::1]:7777", b"a_b.", b"X:0"):
        sent = _get(host=b"host: " + host + b"\r\n")
        yield f"T12 the host {host.decode()} is taken", Case(sent, 200, False)
    yield "T11 an empty line before is skipped", Case(b"\r\n" + _get(), 200, False)
    yield "T11 chunks", Case(_post(JSON + CHUNKED, b"2;a=b\r\n{}\r\n0\r\n\r\n"), 201, False)
    yield (
        "T11 chunks in capitals",
        Case(
            _post(JSON + b"Transfer-Encoding: CHUNKED\r\n", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"),
            201,
            False,
        ),
    )
    yield "HTTP/1.0", Case(_line(b"GET /teams HTTP/1.0"), 200, True)
    yield "a last request", Case(_get(b"Connection: close\r\n"), 200, True)


def _paths() -> Iterator[tuple[str, Case]]:
    """Yield almost correct paths: 404 and never a redirect, 401 without a credential."""
    paths = (
        b"//teams", b"/teams/", b"/./teams", b"/health/../teams", b"/%2e/teams", b"/%2e%2e/teams",
        b"/teams%2f", b"/%2fteams", b"/teams;x", b"/TEAMS", b"/Teams", b"/teams%00", b"/teams%20",
        b"/teams%0d%0a", b"/teams%ff", b"/teams\\", b"/sessions/mine%2fruns",
        b"/sessions/mine%2Fruns", b"/sessions/.", b"/sessions/..", b"/sessions/%2e%2e",
        b"/sessions/../runs", b"/sessions/%ff%fe", b"/sessions/a%00b", b"/sessions/a%0d%0ab",
        b"/sessions/a%1b", b"/sessions/a%7f", b"/sessions/a%c2%85", b"/sessions/%ed%a0%80",
        b"/sessions//runs", b"/sessions/mine/", b"//", b"/agents/echo/runs/%2e%2e",
        b"/docs/assets/../docs.js", b"/docs/assets/..%2fdocs.js", b"/docs/assets/%2e%2e",
    )  # fmt: skip
    for path in paths:
        name = f"T13 the path {path.decode()}"
        yield name, Case(_get(path=path), 404, False)
        if not path.startswith(b"/docs/assets/%"):
            sent = _line(b"GET " + path + b" HTTP/1.1", HOST)
            yield f"{name}, of nobody", Case(sent, 401, False)


def _methods() -> Iterator[tuple[str, Case]]:
    for method in (b"OPTIONS", b"TRACE", b"PUT", b"PROPFIND", b"M-SEARCH"):
        name = f"T15 {method.decode()}"
        yield name, Case(_line(method + b" /teams HTTP/1.1"), 405, False)
        yield f"{name} of nobody", Case(_line(method + b" /teams HTTP/1.1", HOST), 401, False)
    for field in (b"X-HTTP-Method-Override", b"X-HTTP-Method", b"X-Method-Override"):
        sent = _post(field + b": DELETE\r\n" + JSON + b"Content-Length: 2\r\n", b"{}")
        yield f"T16 {field.decode()}", Case(sent, 201, False)
    for field in (b"X-Original-URL", b"X-Rewrite-URL", b"X-Forwarded-Prefix"):
        fields = HOST + field + b": /health\r\n"
        yield f"T16 {field.decode()}", Case(_line(b"GET /teams HTTP/1.1", fields), 401, False)
    yield "T19 a range", Case(_get(b"Range: bytes=0-1\r\n"), 200, False)


def _bodies() -> Iterator[tuple[str, Case]]:
    yield (
        "T18 10 MB",
        Case(lambda: _post(JSON + b"Content-Length: 10000000\r\n", b" " * 10_000_000), 413, True),
    )
    many = b"10000\r\n" + b" " * 65_536 + b"\r\n"
    yield (
        "T18 10 MB in chunks",
        Case(lambda: _post(JSON + CHUNKED, many * 160 + b"0\r\n\r\n"), 413, True),
    )
    yield "T18 10 MB announced", Case(_post(JSON + b"Content-Length: 10000000\r\n"), 413, True)
    yield (
        "T18 10 MB of nobody",
        Case(
            lambda: _post(b"Content-Length: 10000000\r\n", b" " * 10_000_000, auth=b""), 401, True
        ),
    )
    for coding in (
        b"gzip",
        b"deflate",
        b"br",
        b"identity, gzip",
        b"identity\r\nContent-Encoding: gzip",
    ):
        fields = JSON + b"Content-Encoding: " + coding + b"\r\nContent-Length: 2\r\n"
        yield f"T18 the encoding {coding!r}", Case(_post(fields, b"\x1f\x8b"), 415, False)
    fields = JSON + b"Content-Encoding: identity\r\nContent-Length: 2\r\n"
    yield "T18 no encoding", Case(_post(fields, b"{}"), 201, False)
    fields = b"Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 2\r\n"
    yield "T19 multipart", Case(_post(fields, b"--"), 415, False)
    fields = b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 3\r\n"
    yield "T19 a form where JSON is read", Case(_post(fields, b"a=b"), 415, False)
    keys = b"{" + b",".join(b'"k%d":1' % number for number in range(100_000)) + b"}"
    fields = JSON + b"Content-Length: %d\r\n" % len(keys)
    yield "T18 100,000 keys", Case(_post(fields, keys), 413, True)
    fields = JSON + b"Content-Length: 13\r\n"
    yield "T18 a key twice", Case(_post(fields, b'{"a":1,"a":1}'), 400, False)


CASES: dict[str, Case] = {
    **{name: Case(sent, 400, True) for name, sent in _no_http()},
    **{name: Case(sent, 431, True) for name, sent in _too_large()},
    **dict(_answered()),
    **dict(_paths()),
    **dict(_methods()),
    **dict(_bodies()),
}
