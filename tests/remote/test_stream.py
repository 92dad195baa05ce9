"""A run that is followed: events as they arrive, refusals before the first, endings told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentctl import errors
from agentctl.operations import RunRequest, StreamEvent
from agentctl.records.kinds import Kind
from agentctl.remote import RemoteOperations
from tests.remote.conftest import Serve, answer, stream_head

REQUEST = RunRequest("hi", session_id="s")
END = b"id: 2\nevent: RunCompleted\ndata: {}\n\n"


async def _follow(url: str, kind: Kind = "agent", **options: Any) -> list[StreamEvent]:
    async with RemoteOperations(url, None, **options) as operations:
        return [event async for event in operations.stream_run(kind, "a", REQUEST)]


def _failure(url: str, kind: Kind = "agent", **options: Any) -> errors.AgentctlError:
    with pytest.raises(errors.AgentctlError) as caught:
        asyncio.run(_follow(url, kind, **options))
    return caught.value


def test_events_arrive_while_the_run_goes_on(serve: Serve) -> None:
    first = b'id: 0\nevent: RunStarted\ndata: {"run_id": "r"}\n\n'
    server = serve(stream_head(), first, None, b": ping\n\n", END)

    async def follow() -> list[StreamEvent]:
        got = []
        async with RemoteOperations(server.url, None) as operations:
            async for event in operations.stream_run("agent", "a", REQUEST):
                got.append(event)
                server.release.set()
        return got

    assert asyncio.run(follow()) == [
        StreamEvent(0, "RunStarted", b'{"run_id": "r"}'),
        StreamEvent(2, "RunCompleted", b"{}"),
    ]
    (seen,) = server.seen
    assert (seen.method, seen.target) == ("POST", "/agents/a/runs")
    assert seen.headers["accept"] == "text/event-stream"
    assert json.loads(seen.body) == {"message": "hi", "stream": True, "session_id": "s"}


def test_cut_at_odd_bytes(serve: Serve) -> None:
    stream = 'id: 1\r\nevent: RunContent\r\ndata: {"content": "ü"}\r\n\r\n'.encode() + END
    server = serve(stream_head(), *(bytes([byte]) for byte in stream))
    events = asyncio.run(_follow(server.url))
    assert events[0] == StreamEvent(1, "RunContent", '{"content": "ü"}'.encode())
    assert len(events) == 2


def test_a_server_that_numbers_nothing(serve: Serve) -> None:
    stream = b"event: RunStarted\ndata: {}\n\nid: x\nevent: RunContent\ndata: {}\n\n"
    huge = b"id: " + b"9" * 5_000 + b"\nevent: RunCompleted\ndata: {}\n\n"
    events = asyncio.run(_follow(serve(stream_head(), stream + huge).url))
    assert [event.seq for event in events] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("agent", "RunCompleted"), ("agent", "RunCancelled"), ("agent", "RunError"),
        ("team", "TeamRunCompleted"), ("workflow", "WorkflowError"),
    ],
)  # fmt: skip
def test_every_end_is_one(serve: Serve, kind: Kind, name: str) -> None:
    server = serve(stream_head(), f"event: {name}\ndata: {{}}\n\n".encode())
    assert [event.name for event in asyncio.run(_follow(server.url, kind))] == [name]


@pytest.mark.parametrize(
    "stream", [b"", b"event: RunStarted\ndata: {}\n\n", b"event: RunCompleted\ndata: {}\n\n"]
)
def test_a_stream_without_its_end(serve: Serve, stream: bytes) -> None:
    failure = _failure(serve(stream_head(), stream).url, "team")
    assert isinstance(failure, errors.Unavailable)
    assert failure.detail == "The stream ended before the run did"


def test_a_connection_that_breaks(serve: Serve) -> None:
    head = stream_head().replace(b"Connection: close", b"Transfer-Encoding: chunked")
    failure = _failure(serve(head, b"1a\r\nevent: RunStarted\nda").url)
    assert isinstance(failure, errors.Unavailable)


def test_a_stream_that_falls_silent(serve: Serve) -> None:
    server = serve(stream_head(), b"event: RunStarted\ndata: {}\n\n", None)
    failure = _failure(server.url, stream_timeout=0.1)
    assert failure.detail == "The server did not answer in time"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthenticated), (404, errors.NotFound), (429, errors.TooManyRequests)],
)
def test_refused_before_the_first_event(
    serve: Serve, status: int, kind: type[errors.AgentctlError]
) -> None:
    failure = _failure(serve(answer(status, b'{"detail": "No"}')).url)
    assert type(failure) is kind
    assert failure.detail == "No"


@pytest.mark.parametrize(
    "whole", [answer(), answer(307, b"", headers={"Location": "http://x/"}), answer(200, b"<html>")]
)
def test_no_stream_at_all(serve: Serve, whole: bytes) -> None:
    assert isinstance(_failure(serve(whole).url), errors.Unavailable)


def test_leaving_early_hangs_up(serve: Serve) -> None:
    event = b"event: RunContent\ndata: {}\n\n"
    server = serve(stream_head(), event, None, *[event * 2_000] * 200)

    async def follow() -> None:
        async with RemoteOperations(server.url, None) as operations:
            stream = operations.stream_run("agent", "a", REQUEST)
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            server.release.set()
            assert await asyncio.to_thread(server.gone.wait, 10)

    asyncio.run(follow())
