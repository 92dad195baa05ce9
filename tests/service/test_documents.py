"""Stored JSON in documents."""

from __future__ import annotations

import orjson
import pytest

from agentctl.errors import Unavailable
from agentctl.interface.requests import RunRequest
from agentctl.service.documents.documents import CHECKED_BYTES, check_array
from agentctl.service.documents.session_documents import build_session_document
from agentctl.store.database import Sql
from agentctl.store.repositories.sessions import build_session
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user


@pytest.mark.parametrize("session_type", ["agent", "team"])
@pytest.mark.parametrize(
    ("histories", "shown"),
    [
        ([], []),
        ([b""], []),
        ([b"", b'{"n":1}', b"", b'{"n":2},{"n":3}', b""], [1, 2, 3]),
        (['{"n":"Grüße 漢字 ],["}'.encode()], ["Grüße 漢字 ],["]),
    ],
)
def test_histories_are_joined_into_one_array(
    session_type: str, histories: list[bytes], shown: list[object]
) -> None:
    row = build_session("s1", session_type, user_id=None, now=0, component_id="a", session_name="ü")
    document = orjson.loads(build_session_document(row, histories))
    assert [message["n"] for message in document["chat_history"]] == shown
    assert document["session_name"] == "ü"


@pytest.mark.parametrize("histories", [[b'{"n":1'], [b"[1", b"2]"], [b'"a', b'b"']])
def test_damage_of_one_run_is_found_before_histories_are_joined(histories: list[bytes]) -> None:
    with pytest.raises(Unavailable, match="The database is damaged"):
        check_array(histories)


@pytest.mark.parametrize(
    "damaged",
    ["", "x", '{"a": 1', '{"a" 1}', f'{{"a": "{"x" * CHECKED_BYTES}', "x" * CHECKED_BYTES],
)
async def test_damaged_json_is_named(deployment: Deployment, damaged: str) -> None:
    async with open_service(deployment) as service:
        port = user(service)
        run = (await port.runs.create("agent", "echo", RunRequest("hello", "s1"))).value
        change = Sql("UPDATE runs SET metadata = :damaged")
        await service.hosting.databases["main"].write(change.execute(damaged=damaged))
        record = (await port.runs.get(run["run_id"])).value
        assert (record["damaged"], record["metadata"]) == (["metadata"], None)
        assert record["content"] == run["content"]
        await service.hosting.databases["main"].write(
            Sql("UPDATE sessions SET metadata = :damaged").execute(damaged=damaged)
        )
        with pytest.raises(Unavailable, match="The database is damaged"):
            await port.sessions.get("s1")
