"""Text that both databases store."""

from __future__ import annotations

import pytest

from agentctl.records.text import is_storable, replace_unstorable
from agentctl.store.repositories import sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_session
from tests.store.conftest import Store


@pytest.mark.parametrize("text", ["", "Grüße 👋", "\x01\t\n\x7f", "\ud7ff\ue000\U0010ffff"])
def test_storable_text_is_unchanged(store: Store, text: str) -> None:
    assert is_storable(text)
    assert replace_unstorable(text) == text
    store.write(sessions.create(a_session(session_name=text)))
    row = store.read(sessions.get("s1", EVERYONE))
    assert row is not None
    assert row.session_name == text


@pytest.mark.parametrize("text", [f"a{chr(code)}b" for code in (0, 0xD800, 0xDFFF)])
def test_unstorable_text_is_replaced(text: str) -> None:
    assert not is_storable(text)
    assert replace_unstorable(text) == "a\ufffdb"
    assert is_storable(replace_unstorable(text))
