"""Raw requests over a socket: responses, rejections and the end of the connection."""

from __future__ import annotations

import pytest

from tests.kit.callers import USER
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer
from tests.server.http_cases import CASES, Case
from tests.server.raw_http import check_error, open_raw_connection

LEGITIMATE = b"GET /teams HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"


@pytest.fixture(scope="module")
def token(server: ThreadedServer) -> bytes:
    return server.deployment.token("me", *USER).encode()


def check(port: int, token: bytes, case: Case) -> None:
    """Check the response to a case, its connection, and that the server still responds."""
    with open_raw_connection(port) as connection:
        connection.send(case.sent.replace(b"{token}", token))
        answer = connection.answer()
        if case.status < 400:
            assert answer.status == case.status, answer
        else:
            check_error(answer, case.status)
        assert "location" not in answer.fields
        if case.closes:
            assert answer.fields["connection"] == "close"
            assert connection.ended()
        else:
            connection.send(LEGITIMATE.replace(b"{token}", token))
            assert connection.answer().status == 200
    with open_raw_connection(port) as connection:
        connection.send(LEGITIMATE.replace(b"{token}", token))
        assert connection.answer().status == 200


@every_row("name", CASES)
def test_raw_request(server: ThreadedServer, token: bytes, name: str) -> None:
    check(server.port, token, CASES[name])
