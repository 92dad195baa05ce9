"""Stored JSON in documents."""

from __future__ import annotations

import orjson
import pytest

from agentctl.service.session_documents import build_session_document
from agentctl.store.repositories.sessions import build_session


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
