"""Event streams: events during a run, errors before the first event, and final events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import ResumeRequest, RunRequest, StreamEvent
from agentctl.interface.requests.approvals import ContinueRequest, Ruling
from agentctl.records.kinds import ComponentKind
from agentctl.remote import RemoteOperations
from agentctl.remote.connection import Timeouts
from tests.remote.conftest import Serve, answer, stream_head

REQUEST = RunRequest("hi", session_id="s")
END = b"id: 2\nevent: RunCompleted\ndata: {}\n\n"


async def _follow(url: str, kind: ComponentKind = "agent", **options: Any) -> list[StreamEvent]:
    async with RemoteOperations(url, None, **options) as operations:
        return [event async for event in operations.runs.stream(kind, "a", REQUEST)]


def _failure(url: str, kind: ComponentKind = "agent", **options: Any) -> errors.AgentctlError:
    with pytest.raises(errors.AgentctlError) as caught:
        asyncio.run(_follow(url, kind, **options))
    return caught.value


def test_events_arrive_during_the_run(serve: Serve) -> None:
    first = b'id: 0\nevent: RunStarted\ndata: {"run_id": "r"}\n\n'
    server = serve(stream_head(), first, None, b": ping\n\n", END)

    async def follow() -> list[StreamEvent]:
        got = []
        async with RemoteOperations(server.url, None) as operations:
            async for event in operations.runs.stream("agent", "a", REQUEST):
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


def test_stream_is_parsed_with_odd_chunks(serve: Serve) -> None:
    stream = 'id: 1\r\nevent: RunContent\r\ndata: {"content": "ü"}\r\n\r\n'.encode() + END
    server = serve(stream_head(), *(bytes([byte]) for byte in stream))
    events = asyncio.run(_follow(server.url))
    assert events[0] == StreamEvent(1, "RunContent", '{"content": "ü"}'.encode())
    assert len(events) == 2


def test_unnumbered_events_are_counted(serve: Serve) -> None:
    stream = b"event: RunStarted\ndata: {}\n\nid: x\nevent: RunContent\ndata: {}\n\n"
    huge = b"id: " + b"9" * 5_000 + b"\nevent: RunCompleted\ndata: {}\n\n"
    events = asyncio.run(_follow(serve(stream_head(), stream + huge).url))
    assert [event.seq for event in events] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("agent", "RunCompleted"),
        ("agent", "RunCancelled"),
        ("agent", "RunError"),
        ("team", "TeamRunCompleted"),
        ("workflow", "WorkflowError"),
    ],
)
def test_every_final_event_ends_the_stream(serve: Serve, kind: ComponentKind, name: str) -> None:
    server = serve(stream_head(), f"event: {name}\ndata: {{}}\n\n".encode())
    assert [event.name for event in asyncio.run(_follow(server.url, kind))] == [name]


@pytest.mark.parametrize(
    "stream", [b"", b"event: RunStarted\ndata: {}\n\n", b"event: RunCompleted\ndata: {}\n\n"]
)
def test_stream_without_final_event_is_an_error(serve: Serve, stream: bytes) -> None:
    failure = _failure(serve(stream_head(), stream).url, "team")
    assert isinstance(failure, errors.Unavailable)
    assert failure.detail == "The stream ended before the run did"


def test_broken_connection_is_an_error(serve: Serve) -> None:
    head = stream_head().replace(b"Connection: close", b"Transfer-Encoding: chunked")
    failure = _failure(serve(head, b"1a\r\nevent: RunStarted\nda").url)
    assert isinstance(failure, errors.Unavailable)


def test_idle_stream_times_out(serve: Serve) -> None:
    server = serve(stream_head(), b"event: RunStarted\ndata: {}\n\n", None)
    failure = _failure(server.url, timeouts=Timeouts(stream=0.1))
    assert failure.detail == "The server did not respond in time"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthenticated), (404, errors.NotFound), (429, errors.TooManyRequests)],
)
def test_error_response_is_raised_before_events(
    serve: Serve, status: int, kind: type[errors.AgentctlError]
) -> None:
    failure = _failure(serve(answer(status, b'{"detail": "No"}')).url)
    assert type(failure) is kind
    assert failure.detail == "No"


@pytest.mark.parametrize(
    "whole", [answer(), answer(307, b"", headers={"Location": "http://x/"}), answer(200, b"<html>")]
)
def test_response_without_a_stream_is_an_error(serve: Serve, whole: bytes) -> None:
    assert isinstance(_failure(serve(whole).url), errors.Unavailable)


def test_leaving_early_closes_the_connection(serve: Serve) -> None:
    event = b"event: RunContent\ndata: {}\n\n"
    server = serve(stream_head(), event, None, *[event * 2_000] * 200)

    async def follow() -> None:
        async with RemoteOperations(server.url, None) as operations:
            stream = operations.runs.stream("agent", "a", REQUEST)
            async for _ in stream:
                break
            await stream.aclose()  # type: ignore[attr-defined]
            server.release.set()
            assert await asyncio.to_thread(server.gone.wait, 10)

    asyncio.run(follow())


async def _resume(
    url: str, request: ResumeRequest, kind: ComponentKind = "agent"
) -> list[StreamEvent]:
    async with RemoteOperations(url, None) as operations:
        return [event async for event in operations.runs.resume(kind, "a b", "r", request)]


@pytest.mark.parametrize(
    ("resume", "target"),
    [
        (ResumeRequest(), "/agents/a%20b/runs/r/resume"),
        (ResumeRequest("s", 7), "/agents/a%20b/runs/r/resume?session_id=s&last_event_index=7"),
        (ResumeRequest(after=0), "/agents/a%20b/runs/r/resume?last_event_index=0"),
    ],
)
def test_stream_can_be_resumed(serve: Serve, resume: ResumeRequest, target: str) -> None:
    server = serve(stream_head(), b": waiting\n\n", END.replace(b"2", b"9"))
    assert asyncio.run(_resume(server.url, resume)) == [StreamEvent(9, "RunCompleted", b"{}")]
    (seen,) = server.seen
    assert (seen.method, seen.target, seen.body) == ("POST", target, b"")
    assert seen.headers["accept"] == "text/event-stream"


@pytest.mark.parametrize("operation", ["resume", "follow"])
def test_broken_stream_is_resumed_as_it_was_opened(serve: Serve, operation: str) -> None:
    """The end of the run of a member is no end, and no event is repeated."""
    ids = '"session_id": "s", "team_id": "t"'
    events = [
        f'id: 0\nevent: TeamRunStarted\ndata: {{"run_id": "r", {ids}}}\n\n'.encode(),
        f'id: 1\nevent: TeamRunCompleted\ndata: {{"run_id": "m", {ids}}}\n\n'.encode(),
        f'id: 2\nevent: TeamRunCompleted\ndata: {{"run_id": "r", {ids}}}\n\n'.encode(),
    ]
    server = serve(stream_head(), *events[:2], then=[[stream_head(), *events[1:]]])

    async def follow() -> list[StreamEvent]:
        async with RemoteOperations(server.url, None) as operations:
            read = getattr(operations.runs, operation)("team", "t", "r", ResumeRequest("s"))
            return [event async for event in read]

    assert [event.seq for event in asyncio.run(follow())] == [0, 1, 2]
    first, second = server.seen
    assert second.method == first.method
    assert second.target == f"{first.target}&last_event_index=1"


def test_resumed_unnumbered_events_are_counted(serve: Serve) -> None:
    stream = b"event: RunContent\ndata: {}\n\nevent: RunCompleted\ndata: {}\n\n"
    server = serve(stream_head(), stream)
    found = asyncio.run(_resume(server.url, ResumeRequest(after=4)))
    assert [event.seq for event in found] == [5, 6]


def test_resume_after_the_last_event_is_empty(serve: Serve) -> None:
    assert asyncio.run(_resume(serve(stream_head()).url, ResumeRequest(after=4))) == []


@pytest.mark.parametrize(
    ("stream", "after"), [(b"", -1), (b"id: 5\nevent: RunContent\ndata: {}\n\n", 4)]
)
def test_interrupted_resume_is_an_error(serve: Serve, stream: bytes, after: int) -> None:
    with pytest.raises(errors.Unavailable, match="ended before the run did"):
        asyncio.run(_resume(serve(stream_head(), stream).url, ResumeRequest(after=after)))


def test_rejected_resume_is_an_error(serve: Serve) -> None:
    server = serve(answer(404, b'{"detail": "Run not found", "error_code": "NOT_FOUND"}'))
    with pytest.raises(errors.NotFound, match="Run not found"):
        asyncio.run(_resume(server.url, ResumeRequest()))


async def _ask(url: str, key: str, streamed: bool) -> None:
    request = RunRequest("hi", idempotency_key=key)
    async with RemoteOperations(url, None) as operations:
        if not streamed:
            await operations.runs.create("agent", "a", request)
            return
        async for _ in operations.runs.stream("agent", "a", request):
            pass


def test_run_that_waits_for_another_decision_has_no_events(serve: Serve) -> None:
    server = serve(answer(body=b'{"status": "PAUSED"}'))

    async def continue_run() -> list[StreamEvent]:
        async with RemoteOperations(server.url, None) as operations:
            request = ContinueRequest((Ruling("approve"),))
            events = operations.runs.stream_continued("agent", "a", "r", request)
            return [event async for event in events]

    assert asyncio.run(continue_run()) == []
    (seen,) = server.seen
    assert json.loads(seen.body) == {"decisions": [{"decision": "approve"}], "stream": True}


@pytest.mark.parametrize("streamed", [True, False])
def test_idempotency_key_is_sent(serve: Serve, streamed: bool) -> None:
    server = serve(*([stream_head(), END] if streamed else [answer()]))
    asyncio.run(_ask(server.url, "!key~", streamed))
    assert server.seen[0].headers["idempotency-key"] == "!key~"
    assert b"key" not in server.seen[0].body


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("key", ["", "a b", "a\r\nx: y", "\xe4", "x" * 256])
def test_invalid_idempotency_key_is_sent_empty(serve: Serve, key: str, streamed: bool) -> None:
    """No header field carries it, and the server is to refuse it."""
    detail = b'{"detail": "Idempotency-Key must be", "error_code": "VALIDATION_ERROR"}'
    server = serve(answer(422, detail))
    with pytest.raises(errors.ValidationFailed, match="Idempotency-Key must be"):
        asyncio.run(_ask(server.url, key, streamed))
    assert server.seen[0].headers["idempotency-key"] == ""
