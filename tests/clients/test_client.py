"""`agentctl.client` on a real server: conversations, decisions, cancels, lists and errors."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import aclosing, closing
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from agentctl import errors
from agentctl.client import AsyncClient, Client, EventKind, RunOptions, Timeouts, build_ruling
from agentctl.interface.requests import RunRequest
from agentctl.records.kinds import KINDS
from tests.clients.service import Service
from tests.kit.conditions import PATIENCE
from tests.remote.conftest import Serve, answer, serve, stream_head

__all__ = ["serve"]

START = b'id: 0\nevent: RunStarted\ndata: {"run_id": "r", "session_id": "s", "agent_id": "a"}\n\n'
END = b'id: 1\nevent: RunCompleted\ndata: {"run_id": "r", "session_id": "s"}\n\n'


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.url, service.token()) as client:
        yield client


def test_conversation_of_blocking_calls(client: Client) -> None:
    session = client.sessions.create(component_id="echo", session_name="first")
    session_id = session["session_id"]
    run = client.runs.start(agent="echo", message="Hello", session_id=session_id)
    assert (run["status"], run["content"]) == ("COMPLETED", "Hello")
    events = [*client.runs.stream(agent="echo", message="Again", session_id=session_id)]
    assert "".join(event.text for event in events) == "Again"
    assert [event.seq for event in events] == [*range(len(events))]
    assert [each["content"] for each in client.sessions.runs(session_id)] == ["Hello", "Again"]
    again = [*client.runs.follow(events[0].data, after=0)]
    assert again == events[1:]
    changed = client.sessions.update(session_id, {"metadata": {"a": 1}})
    assert changed["metadata"] == {"a": 1}
    assert b"Again" in b"".join(client.sessions.export(session_id))
    client.sessions.delete(session_id)
    with pytest.raises(errors.NotFound) as caught:
        client.sessions.get(session_id)
    assert (caught.value.status, caught.value.error_code) == (404, "NOT_FOUND")


def test_file_is_uploaded_downloaded_and_deleted(client: Client, tmp_path: Path) -> None:
    source = tmp_path / "notes.txt"
    source.write_bytes(b"0123456789" * 100_000)
    session_id = client.sessions.create(component_id="echo")["session_id"]
    record = client.files.upload(source, session_id=session_id)
    assert (record["name"], record["size"]) == ("notes.txt", 1_000_000)
    assert [*client.files.list(session_id=session_id)] == [record]
    assert b"".join(client.files.download(record["file_id"])) == source.read_bytes()
    part = client.files.download(record["file_id"], byte_range="bytes=8-11")
    assert b"".join(part) == b"8901"
    with pytest.raises(errors.UsageError):
        client.files.upload(b"bytes without a name")
    with pytest.raises(errors.UsageError):
        client.files.upload(b"bytes with an empty name", name="")
    with pytest.raises(errors.UnsupportedMediaType):
        client.files.upload(b"<svg/>", name="a.svg")
    with pytest.raises(errors.RangeNotSatisfiable):
        next(client.files.download(record["file_id"], byte_range="bytes=1000000-"))
    client.files.delete(record["file_id"])
    with pytest.raises(errors.NotFound):
        client.files.get(record["file_id"])


def test_same_methods_are_awaited(service: Service) -> None:
    async def converse() -> None:
        async with AsyncClient(service.url, service.token()) as client:
            run = await client.runs.start(agent="echo", message="Hello")
            assert run["content"] == "Hello"
            async with aclosing(client.runs.follow(run)) as events:
                assert [event.kind async for event in events][-1] is EventKind.COMPLETED
            texts = [event.text async for event in client.runs.stream(agent="echo", message="Hi")]
            assert "".join(texts) == "Hi"
            rows = client.runs.list(session_id=run["session_id"])
            assert [row["run_id"] async for row in rows] == [run["run_id"]]
            assert (await client.system.me())["principal"] == "ann"
            config = await client.call(lambda server: server.system.get_config())
            assert config["databases"]

    asyncio.run(converse())


def test_cancel_waits_until_the_run_has_stopped(client: Client) -> None:
    run = client.runs.start(agent="trickle", message="x", background=True)
    cancelled = client.runs.cancel(run, reason="enough")
    assert (cancelled["cancel"], cancelled["status"]) == ("stopped", "CANCELLED")
    assert cancelled["stopped_at"] is not None
    assert client.runs.cancel(run["run_id"])["cancel"] == "already_final"


def test_interrupted_stream_leaves_the_run(client: Client) -> None:
    with closing(client.runs.stream(agent="trickle", message="x")) as events:
        seen = [*islice(events, 3)]
    assert client.runs.get(seen[0].run_id)["status"] == "RUNNING"
    with closing(client.runs.follow(seen[0].data, after=seen[-1].seq)) as events:
        assert next(events).seq == seen[-1].seq + 1
    assert client.runs.cancel(seen[0].data)["cancel"] == "stopped"


def test_call_is_approved_as_it_was_read(client: Client) -> None:
    events = [*client.runs.stream(agent="gated", message='{"a": 1, "b": 2}')]
    assert events[-1].kind is EventKind.PAUSED
    (approval,) = client.approvals.list(run_id=events[-1].run_id)
    assert client.approvals.get(approval["approval_id"]) == approval
    assert approval["arguments"] == {"a": 1, "b": 2}
    other = {**approval, "arguments_hash": "sha256:" + "0" * 64}
    with pytest.raises(errors.Conflict):
        client.approvals.approve(other)  # type: ignore[arg-type]
    assert client.approvals.approve(approval, note="fine")["status"] == "approved"
    later = [*client.runs.follow(events[-1].data, after=events[-1].seq)]
    assert "".join(event.text for event in later) == "3"


def test_user_continues_a_paused_run(client: Client) -> None:
    run = client.runs.start(agent="gated", message='{"a": 1, "b": 2}')
    assert run["status"] == "PAUSED"
    ruling = build_ruling(run["approvals"][0], "approve", {"a": 4, "b": 5})
    content = client.runs.continue_run(run, [ruling])["content"]
    assert (content or "").endswith("9")
    again = client.runs.start(agent="gated", message='{"a": 1, "b": 2}')
    (approval,) = client.approvals.list(run_id=again["run_id"])
    assert client.approvals.reject(approval, note="no")["note"] == "no"
    answered = client.approvals.get(approval["approval_id"])
    with pytest.raises(errors.Conflict):
        client.approvals.decide(answered, "approve")


def test_run_is_retried_and_forked(client: Client) -> None:
    run = client.runs.start(agent="echo", message="Hello")
    assert client.runs.fork(run, at=0, message="Bye")["content"] == "Bye"
    failed = client.runs.start(agent="http-500", message="Hello")
    assert failed["status"] == "ERROR"
    assert client.runs.retry(failed["run_id"])["origin_run_id"] == failed["run_id"]


def test_list_yields_the_rows_of_all_pages(client: Client, service: Service) -> None:
    ids = {client.memories.create(f"fact {number}")["memory_id"] for number in range(25)}
    assert {each["memory_id"] for each in client.memories.list()} >= ids
    first = next(iter(ids))
    assert client.memories.update(first, topics=["a"])["topics"] == ["a"]
    for memory_id in ids:
        client.memories.delete(memory_id)
    assert not ids & {each["memory_id"] for each in client.memories.list()}
    assert {each["id"] for each in client.components.list("agent")} >= {"echo", "gated"}


def test_start_needs_one_component(client: Client) -> None:
    with pytest.raises(errors.UsageError, match="one of agent, team and workflow"):
        client.runs.start(message="x")
    with pytest.raises(errors.UsageError, match="one of agent, team and workflow"):
        client.runs.start(message="x", agent="echo", team="crew")


def test_options_are_those_of_a_request() -> None:
    fields = {field.name for field in dataclasses.fields(RunRequest)}
    fields -= {"session_history", "stop"}  # of requests in other forms
    assert RunOptions.__annotations__.keys() == fields | KINDS.keys()


def test_refused_token_is_renewed(service: Service) -> None:
    tokens = iter(["a.b.c", service.token()])
    with Client(service.url, partial(next, tokens)) as client:
        assert client.system.me()["principal"] == "ann"
        assert client.system.me()["principal"] == "ann"

    async def give() -> str:
        return service.token()

    with Client(service.url, give) as client:
        assert client.system.me()["principal"] == "ann"


@pytest.mark.parametrize(
    ("url", "token", "problem"),
    [
        ("ftp://x", None, "does not start with http"),
        ("http://example.com", "t", "not encrypted"),
        ("http://example.com", lambda: "t", "not encrypted"),
    ],
)
def test_token_is_not_sent_in_plain_text(url: str, token: str | None, problem: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        Client(url, token)
    assert problem in f"{caught.value.cause}"


def test_start_is_repeated_with_one_key(serve: Serve) -> None:
    server = serve(answer(503, b'{"detail": "No", "error_code": "OUTCOME_UNKNOWN"}'))
    with Client(server.url, retries=2) as client:
        with pytest.raises(errors.OutcomeUnknown):
            client.runs.start(agent="a", message="x")
        assert len({seen.headers["idempotency-key"] for seen in server.seen}) == 1
        assert len(server.seen) == 3
        with pytest.raises(errors.OutcomeUnknown):
            client.memories.create("a fact")
    assert len(server.seen) == 4  # without a key a second request could store it twice


def test_refused_request_is_repeated_after_its_time(serve: Serve) -> None:
    busy = b'{"detail": "No", "error_code": "RATE_LIMITED"}'
    server = serve(answer(429, busy, headers={"Retry-After": "1"}))
    with Client(server.url, retries=1) as client, pytest.raises(errors.RateLimited):
        client.memories.create("a fact")
    assert len(server.seen) == 2
    late = serve(answer(429, busy, headers={"Retry-After": "3600"}))
    with Client(late.url, retries=1) as client, pytest.raises(errors.RateLimited) as caught:
        client.memories.create("a fact")
    assert (len(late.seen), caught.value.retry_after) == (1, 3600)


def test_page_of_another_server_is_not_requested_again(serve: Serve) -> None:
    server = serve(answer(200, b"<html>", content_type="text/html"))
    with Client(server.url) as client, pytest.raises(errors.Unavailable, match="not that of"):
        client.system.info()
    assert len(server.seen) == 1


def test_complete_stream_needs_no_end_of_the_response(serve: Serve) -> None:
    head = stream_head().replace(b"Connection: close", b"Transfer-Encoding: chunked")
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (START, END))
    server = serve(head, chunks)
    with Client(server.url) as client:
        events = [*client.runs.stream(agent="a", message="x")]
    assert [event.name for event in events] == ["RunStarted", "RunCompleted"]
    assert len(server.seen) == 1


def test_timeout_is_in_seconds(serve: Serve) -> None:
    server = serve(None)
    for timeout in (0.2, Timeouts(read=0.2)):
        client = Client(server.url, timeout=timeout, retries=0)
        with client, pytest.raises(errors.Unavailable, match="did not respond in time"):
            client.system.info()


def test_closed_client_is_refused(service: Service) -> None:
    client = Client(service.url)
    assert client.system.info()
    client.close()
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.system.info()


def test_program_ends_with_an_open_stream(service: Service) -> None:
    program = (
        "import sys; from agentctl.client import Client;"
        "client = Client(sys.argv[1], sys.argv[2]);"
        "events = client.runs.stream(agent='hang', message='x');"
        "print(next(events).name)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, service.url, service.token()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "RunStarted\n", "")


def test_close_ends_open_streams(service: Service) -> None:
    with Client(service.url, service.token()) as client:
        events = client.runs.stream(agent="hang", message="x")
        assert next(events).kind is EventKind.STARTED
    with pytest.raises(RuntimeError, match="closed"):
        next(events)


def test_threads_share_a_client(client: Client) -> None:
    names = set[str]()
    threads = [
        threading.Thread(target=lambda: names.add(client.system.me()["principal"]))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names == {"ann"}


def test_forked_process_has_its_own_connections(client: Client) -> None:
    assert client.system.info()
    child = os.fork()
    if not child:
        os._exit(0 if client.system.me()["principal"] == "ann" else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert client.system.me()["principal"] == "ann"
