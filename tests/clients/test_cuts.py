"""The clients over connections that are cut at random bytes; see `tests.clients.cuts`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentctl.client import Client
from tests.clients.cuts import (
    RESPONSE_BYTES,
    RETRIES,
    Streams,
    build_messages,
    check_streams,
    stream_async,
    stream_blocking,
)
from tests.clients.cutting_proxy import cutting
from tests.clients.service import Service

STREAMS = 5_000 if os.environ.get("AGENTCTL_TEST_LONG") else 100


@pytest.mark.parametrize("read", [stream_async, stream_blocking])
def test_no_event_is_lost_or_twice(
    service: Service, read: Callable[[str, str, Sequence[str]], Streams]
) -> None:
    messages = build_messages(read.__name__, STREAMS)
    with cutting(service.url, seed=7, response_bytes=RESPONSE_BYTES) as proxy:
        streams = read(proxy.url, service.token(), messages)
    assert proxy.counts["cut_responses"] > STREAMS
    check_streams(service, streams)


def test_no_run_is_started_or_cancelled_twice(service: Service) -> None:
    messages = [f"started {number}" for number in range(12)]
    token = service.token()

    def start(message: str) -> None:
        run = client.runs.start(agent="echo", message=message)
        assert run["content"] == message
        live = client.runs.start(agent="hang", message=message, background=True)
        cancelled = client.runs.cancel(live, wait=30.0)
        assert (cancelled["cancel"], cancelled["status"]) == ("stopped", "CANCELLED")

    with (
        cutting(service.url, seed=8, response_bytes=RESPONSE_BYTES) as proxy,
        Client(proxy.url, token, retries=RETRIES) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        for done in [pool.submit(start, message) for message in messages]:
            done.result()
    runs = service.count_runs()
    assert {message: runs[message] for message in messages} == dict.fromkeys(messages, 2)
