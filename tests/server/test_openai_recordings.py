"""Recorded requests of programs to the interface of OpenAI get the answers that were right.

The programs themselves run in `make compat`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit.conditions import wait_for
from tests.kit.deployment import Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.openai_recordings import (
    FOLDER,
    SCOPES,
    Exchange,
    build_config,
    fill_ids,
    list_ids,
    mark_ids,
    summarize,
)

RECORDINGS = sorted(FOLDER.glob("*.json"))


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(build_config(deploy.url))) as host:
        yield host


def send(served: ThreadedServer, exchange: Exchange, ids: Sequence[Sequence[str]]) -> Any:
    """Send a recorded request with the ids of the answers before it; return the answer."""
    return served.client.request(
        exchange["method"],
        fill_ids(exchange["path"], ids),
        content=fill_ids(exchange["body"], ids).encode(),
        headers=exchange["headers"] | served.bearer("ada", *SCOPES),
    )


def replay(served: ThreadedServer, exchanges: Sequence[Exchange]) -> None:
    """Send the requests of an operation in their order, and compare the answers."""
    ids: list[list[str]] = []
    for exchange in exchanges:
        expected = (exchange["status"], exchange["answer"])
        answered = send(served, exchange, ids)
        if exchange["method"] == "GET" and summarize(answered.text) != exchange["answer"]:
            # The program has asked until the response was complete.
            answered = wait_for_answer(served, exchange, ids)
        assert (answered.status_code, summarize(answered.text)) == expected, exchange["path"]
        ids.append(list_ids(answered.text))


def wait_for_answer(
    served: ThreadedServer, exchange: Exchange, ids: Sequence[Sequence[str]]
) -> Any:
    """Repeat a request that reads until it has the recorded answer."""
    answers = []

    def is_recorded() -> bool:
        answers.append(send(served, exchange, ids))
        return summarize(answers[-1].text) == exchange["answer"]

    wait_for(is_recorded, problem=lambda: answers[-1].text)
    return answers[-1]


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_requests_of_a_program_have_the_recorded_answers(
    served: ThreadedServer, path: Path, subtests: pytest.Subtests
) -> None:
    operations = json.loads(path.read_text(encoding="utf-8"))["operations"]
    assert operations
    for operation, exchanges in operations.items():
        with subtests.test(operation):
            replay(served, exchanges)


def test_places_of_ids_are_filled_with_the_ids_of_new_answers() -> None:
    first = json.dumps(
        {"id": "resp_0123456789abcdef", "output": [{"call_id": "call_0123456789abcdef"}]}
    )
    ids = list_ids(first)
    assert ids == ["resp_0123456789abcdef", "call_0123456789abcdef"]
    marked = mark_ids('{"previous_response_id": "resp_0123456789abcdef"}', [ids])
    assert marked == '{"previous_response_id": "{answer 0, id 0}"}'
    assert fill_ids(marked, [["resp_new"]]) == '{"previous_response_id": "resp_new"}'


def test_error_in_a_stream_is_part_of_its_summary() -> None:
    begin = {"object": "chat.completion.chunk", "choices": [{"delta": {"content": "half"}}]}
    error = {"type": "server_error", "code": "MODEL_UNAVAILABLE", "param": None}
    end = {"error": {**error, "message": "The model is unavailable"}}
    summary = summarize(f"data: {json.dumps(begin)}\n\ndata: {json.dumps(end)}\n\n")
    assert (summary["content"], summary["errors"], summary["ends"]) == ("half", [error], False)
