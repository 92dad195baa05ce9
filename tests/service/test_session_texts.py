"""The texts of listed sessions that are kept in memory."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

import orjson
import pytest

from agentctl.records import phase
from agentctl.records.runs import LastRunState
from agentctl.records.sessions import SummaryRow
from agentctl.service.documents import session_documents
from agentctl.service.documents.session_documents import SessionTexts
from agentctl.store.repositories.lists import ListedSession
from tests.kit.rows import START, a_session

SECOND = 1_000_000


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the sessions whose text is made, and not kept."""
    ids = list[str]()
    summarize = session_documents._summarize_session

    def watch(row: SummaryRow, newest: LastRunState | None) -> Any:
        ids.append(row.session_id)
        return summarize(row, newest)

    monkeypatch.setattr(session_documents, "_summarize_session", watch)
    return ids


def listed(session_id: str = "s1", run: LastRunState | None = None, **given: Any) -> ListedSession:
    columns = astuple(a_session(session_id, **given))[: len(fields(SummaryRow))]
    last_run = astuple(run) if run is not None else (None,) * len(fields(LastRunState))
    return ListedSession((*columns, *last_run))


def a_last_run(status: str = "COMPLETED", **given: Any) -> LastRunState:
    ended = {"finished_at": START, "stopped_at": START}
    values = dict.fromkeys(field.name for field in fields(LastRunState))
    own = {"session_id": "s1", "run_id": "r1", "status": status}
    return LastRunState(**values | own | ended | given)


def test_text_of_a_session_is_made_once_for_equal_columns(written: list[str]) -> None:
    texts = SessionTexts()
    rows = [listed("s1"), listed("s2", a_last_run())]
    first = texts.build(rows)
    assert texts.build([listed("s2", a_last_run()), listed("s1")]) == first[::-1]
    assert written == ["s1", "s2"]
    (changed,) = texts.build([listed("s2", a_last_run("ERROR"))])
    assert orjson.loads(changed)["last_run"]["status"] == "ERROR"


def test_hold_is_part_of_the_text_of_administrators_only() -> None:
    texts = SessionTexts()
    row = listed()
    held = ListedSession((*row.columns[:12], '{"reason":"x"}', *row.columns[13:]))
    (shown,) = texts.build([held])
    (hidden,) = texts.build([held.without_hold()])
    assert "hold" in orjson.loads(shown)
    assert "hold" not in orjson.loads(hidden)


@pytest.mark.parametrize(
    "run",
    [
        a_last_run("CANCELLED", cancel_requested_at=START, stopped_at=None),
        a_last_run("RUNNING", cancel_requested_at=START, finished_at=None, stopped_at=None),
    ],
)
def test_text_with_an_age_is_made_each_time(
    monkeypatch: pytest.MonkeyPatch, run: LastRunState
) -> None:
    texts = SessionTexts()
    sentences = set[str]()
    for seconds in (3, 4):
        monkeypatch.setattr(phase, "now", lambda seconds=seconds: START + seconds * SECOND)
        (text,) = texts.build([listed(run=run)])
        sentences.add(orjson.loads(text)["last_run"]["phase"]["sentence"])
    assert len(sentences) == 2


def test_kept_texts_are_bounded(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    texts = SessionTexts()
    (text,) = texts.build([listed("s1")])
    size = session_documents.TEXT_BYTES + len(text)
    monkeypatch.setattr(session_documents, "MAXIMUM_TEXT_BYTES", 2 * size)
    # Of s2 and s1, s2 was listed earlier when s3 needs its place.
    for session_id in ("s2", "s1", "s3", "s1", "s2"):
        texts.build([listed(session_id)])
    assert written == ["s1", "s2", "s3", "s2"]
