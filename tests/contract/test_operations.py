"""Every operation at every target: HTTP, the remote client, and the service on both engines.

The remote client sends exactly the request of a row. So its play shows what the server responds,
and what the client makes of the response.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
import pytest

from agentctl.interface.declarations import find_address
from agentctl.interface.operations import FAMILIES, OPERATIONS, ROUTES
from tests.contract.rows import Ids, Row, fill
from tests.contract.stories import normalize
from tests.contract.table import ROWS
from tests.contract.table.commands import COMMANDS, CommandRow
from tests.contract.table.http import HTTP_ROWS
from tests.contract.targets import (
    Answer,
    Exchange,
    Play,
    create_stage,
    format_error,
    play_remotely,
    play_service,
    serve_recorded,
)
from tests.kit.callers import MEMORIES, USER, build_token
from tests.kit.command import run_command
from tests.kit.declared import DeclaredAnswers
from tests.kit.deployment import ADMIN
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.kit.process import base_environment
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer

NUMBERED = list(enumerate(ROWS))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Play:
    """The play of the service on SQLite."""
    stage = create_stage(tmp_path_factory.mktemp("local"), model_endpoint.base_url)
    return asyncio.run(play_service(stage, ROWS))


@pytest.fixture(scope="module")
def on_postgres(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint, postgres_url: str
) -> Iterator[Play]:
    """The play of the service on PostgreSQL."""
    with postgres_schemas(postgres_url) as databases:
        folder = tmp_path_factory.mktemp("postgres")
        stage = create_stage(folder, model_endpoint.base_url, databases=databases)
        yield asyncio.run(play_service(stage, ROWS))


@dataclass(frozen=True)
class Served:
    """A server that the remote client has asked all rows of the table."""

    host: ThreadedServer
    play: Play
    declared: DeclaredAnswers


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Served]:
    stage = create_stage(tmp_path_factory.mktemp("remote"), model_endpoint.base_url)
    with serve_recorded(stage) as (host, recorder):
        play = asyncio.run(play_remotely(host, recorder, ROWS))
        page = host.client.get("/console").text
        play.ids["console_assets"] = "/" + re.findall(r"console/assets/\w+", page)[0]
        document = host.client.get("/openapi.json").content
        yield Served(host, play, DeclaredAnswers(document))


def check_answer(row: Row, play: Play, answer: Answer) -> None:
    """Assert that an answer is that of the row."""
    status = row.status if row.status >= 400 else 200
    text = answer.content.decode()
    assert answer.status == status, text
    check_texts(row, play, text)


def check_texts(row: Row, play: Play, text: str) -> None:
    for part in row.has:
        assert fill(part, play.ids) in text, text
    for part in row.lacks:
        assert fill(part, play.ids) not in text, text


def check_same(row: Row, answer: Answer, other: Answer) -> None:
    """Assert that two targets answer alike, but for ids and times."""
    if row.is_same:
        assert normalize(("", answer.content)) == normalize(("", other.content))


@every_row("number, row", NUMBERED)
def test_service_answers_as_the_table_says(local: Play, number: int, row: Row) -> None:
    check_answer(row, local, local.answers[number])


@every_row("number, row", NUMBERED)
def test_service_on_postgres_answers_the_same(
    local: Play, on_postgres: Play, number: int, row: Row
) -> None:
    check_answer(row, on_postgres, on_postgres.answers[number])
    check_same(row, on_postgres.answers[number], local.answers[number])


@every_row("number, row", NUMBERED)
def test_remote_client_and_server_do_as_the_table_says(
    local: Play, served: Served, number: int, row: Row
) -> None:
    answer = served.play.answers[number]
    exchange = served.play.exchanges[number]
    check_request(row, exchange, served.play.ids)

    assert exchange.status == row.status
    served.declared.check(row.operation, exchange.status, exchange.response_type, exchange.response)

    # The client makes an error, or a document, of exactly this response.
    if exchange.status >= 400:
        assert format_error(orjson.loads(exchange.response)) == answer.content
    elif not exchange.response_type.startswith("text/event-stream"):
        assert exchange.response == answer.content
    check_answer(row, served.play, answer)
    check_same(row, answer, local.answers[number])


def check_request(row: Row, exchange: Exchange, ids: Ids) -> None:
    """Assert that the remote client has sent the request of the row."""
    assert f"{exchange.method} {exchange.target}" == fill(row.request, ids)
    if isinstance(row.body, bytes):
        assert exchange.body == row.body
    elif row.body is None:
        assert exchange.body == b""
    else:
        assert json.loads(exchange.body) == json.loads(fill(json.dumps(row.body), ids))
    for name, value in row.headers.items():
        assert exchange.headers[name] == value
    assert ("idempotency-key" in exchange.headers) == ("idempotency-key" in row.headers)


def send_row(served: Served, row: Row) -> httpx2.Response:
    """Send the request of a row."""
    ids = served.play.ids
    method, _, path = fill(row.request, ids).partition(" ")
    headers = dict(row.headers)
    token = build_token(served.host.deployment, row.who)
    if token is not None:
        headers["authorization"] = f"Bearer {token}"

    content = None
    if row.body is not None:
        headers["content-type"] = "application/json"
        content = fill(json.dumps(row.body), ids)
    form: Any = dict(row.form) or None
    return served.host.client.request(method, path, headers=headers, content=content, data=form)


@every_row("row", HTTP_ROWS)
def test_server_responds_to_other_requests(served: Served, row: Row) -> None:
    response = send_row(served, row)
    assert response.status_code == row.status, response.text
    check_texts(row, served.play, response.text)
    content_type = response.headers.get("content-type", "")
    served.declared.check(row.operation, row.status, content_type, response.content)
    if row.status >= 400:
        check_error(response)


def check_error(response: httpx2.Response) -> None:
    """Check the schema of errors (docs/contract.md "Errors")."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert isinstance(body["detail"], str)
    assert isinstance(body["error_code"], str)
    assert body.keys() - {"required_scopes", "session_ids"} == {"detail", "error_code"}
    assert ("www-authenticate" in response.headers) == (response.status_code in (401, 403))
    assert ("required_scopes" in body) == (response.status_code == 403)


@every_row("row", COMMANDS)
def test_command_prints_the_same_locally_and_remotely(
    served: Served, row: CommandRow, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("home")
    words = [fill(word, served.play.ids) for word in row.words]
    deployment = served.host.deployment
    as_user = ("--as-user", "me") if row.who == "me" else ()
    scopes = (*USER, *MEMORIES) if row.who == "me" else (ADMIN,)
    token = deployment.token("me" if row.who == "me" else "boss", *scopes)
    environment = base_environment() | {"HOME": str(home), "AGENTCTL_OUTPUT": "json"}

    local_result = run_command(
        *words, "--config", str(deployment.path), *as_user, environment=environment, folder=home
    )
    remote_result = run_command(
        *words,
        "--url",
        served.host.url,
        environment=environment | {"AGENTCTL_TOKEN": token},
        folder=home,
    )

    for result in (local_result, remote_result):
        assert result.code == row.code, result.stderr
        assert fill(row.has, served.play.ids) in (result.stderr if row.code else result.stdout)
    if row.is_same:
        assert normalize(("", local_result.raw)) == normalize(("", remote_result.raw))
    if row.code:
        assert row.hint in local_result.stderr
        assert row.hint in remote_result.stderr
        # The lines after it name the target.
        assert find_error(local_result.stderr) == find_error(remote_result.stderr)


def find_error(text: str) -> str:
    """Return the error of a command. The server of the test may log before it on stderr."""
    return next(line for line in text.splitlines() if line.startswith("error: "))


def describe_entries(play: Play) -> list[bytes]:
    """Return the audit log without the target, and without ids and times.

    Repeated denials are counted, and written later.
    """
    rows = []
    for entry in play.entries:
        if entry["outcome"] != "denied":
            rows.append({k: v for k, v in entry.items() if k not in ("via", "request_id", "seq")})
    _, text = normalize(("", [orjson.dumps(row) for row in rows]))
    assert isinstance(text, bytes)
    return text.splitlines()


def test_every_target_writes_the_same_audit_entries(
    local: Play, on_postgres: Play, served: Served
) -> None:
    entries = describe_entries(local)
    assert {b'"allowed"' in entry for entry in entries} == {True, False}
    assert describe_entries(on_postgres) == entries
    assert describe_entries(served.play) == entries


def test_every_target_records_the_same_denials(
    local: Play, on_postgres: Play, served: Served
) -> None:
    denials = [
        {(e["principal"], e["operation"]) for e in play.entries if e["outcome"] == "denied"}
        for play in (local, on_postgres, served.play)
    ]
    assert denials[0] == denials[1] == denials[2] != set()


def test_every_operation_has_rows() -> None:
    assert {row.operation for row in ROWS} == OPERATIONS.keys()
    assert {row.operation for row in (*ROWS, *HTTP_ROWS)} == ROUTES.keys()


SUCCESS_ELSEWHERE = {
    *(f"get_{kind}_run_tool_call" for kind in ("agent", "workflow")),
    *(f"{verb}_{kind}_approval" for verb in ("get", "decide") for kind in ("team", "workflow")),
    *(f"get_{kind}_approval_receipt" for kind in ("agent", "team", "workflow")),
    *(f"continue_{kind}_run" for kind in ("team", "workflow")),
    "redeliver_webhook",
    "test_webhook",
    "enable_webhook",
    "send_message",
}
"""Operations without a success here: on tool calls and pauses of other kinds, on receipts, on
webhooks and on live runs, which tests/approvals, tests/webhooks and tests/steering have."""


def test_every_operation_succeeds_in_a_row() -> None:
    """`test_callers.py` shows that each is refused."""
    answered = {row.operation for row in ROWS if row.status < 400}
    assert OPERATIONS.keys() - answered == SUCCESS_ELSEWHERE


def test_every_method_of_the_interface_is_called(served: Served) -> None:
    """Also those that read the events of an operation."""
    declared = {
        find_address(method)
        for family in FAMILIES
        for method in vars(family).values()
        if hasattr(method, "declared")
    }
    assert served.play.methods == declared
