"""Text that both databases take."""

from __future__ import annotations

import pytest

from agentctl.records.text import is_storable, replace_unstorable
from agentctl.store.repositories import sessions
from agentctl.store.visibility import EVERYONE
from tests.store.conftest import Store
from tests.store.made import a_session


@pytest.mark.parametrize("text", ["", "Grüße 👋", "\x01\t\n\x7f", "\ud7ff\ue000\U0010ffff"])
def test_what_can_be_stored_is_left_as_it_is(store: Store, text: str) -> None:
    assert is_storable(text)
    assert replace_unstorable(text) == text
    store.write(sessions.create(a_session(session_name=text)))
    row = store.read(sessions.get("s1", EVERYONE))
    assert row is not None
    assert row.session_name == text


@pytest.mark.parametrize("text", [f"a{chr(code)}b" for code in (0, 0xD800, 0xDFFF)])
def test_what_cannot_be_stored_is_replaced(text: str) -> None:
    assert not is_storable(text)
    assert replace_unstorable(text) == "a\ufffdb"
    assert is_storable(replace_unstorable(text))
