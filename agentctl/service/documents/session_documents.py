"""Documents of sessions, built from rows, and the kept histories of long sessions.

With a kept history, a second read needs only the new runs of its session. The history of a run is
stored once, when the run ends, and never changes, and `history_bytes` of a session counts the bytes
of all its histories. So the kept text has the first runs of a session if its bytes and the bytes of
the runs after it add up to `history_bytes`, and the session was not deleted and imported again.
Each read asks the database for the session, with the visibility of the caller, before it asks here
(decision 29).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson

import agentctl
from agentctl.records.kinds import KINDS
from agentctl.records.phase import describe_run
from agentctl.records.runs import LastRunState, StoredHistory
from agentctl.records.sessions import (
    SESSION_DETAILS,
    LastRun,
    SessionRow,
    SessionSummary,
    SummaryRow,
)
from agentctl.service.documents.documents import (
    RecordWriter,
    check_array,
    describe_cost,
    dump_holding,
    dump_in_pieces,
    embed_metrics,
    embed_stored,
    embed_usage,
    join_arrays,
)
from agentctl.store.database import Database, ReadSize, Steps, unit
from agentctl.store.repositories import run_reads, sessions
from agentctl.store.repositories.lists import ListedSession
from agentctl.store.repositories.sessions import parse_cost
from agentctl.work.event_loop import convert

_NO_COMPONENT: dict[str, str | None] = {names.id_field: None for names in KINDS.values()}
_COLUMNS = {
    "agent_session_id": "session_id",
    "session_summary": "summary",
    "workflow_name": "component_name",
    **{f"{kind}_data": "component_data" for kind in KINDS},
}
_DETAILS = {
    kind: RecordWriter(
        record,
        SessionRow,
        {**_COLUMNS, KINDS[kind].id_field: "component_id"},
        computed=["hold", "metrics"],
    )
    for kind, record in SESSION_DETAILS.items()
}
_SUMMARY = RecordWriter(SessionSummary, SummaryRow, computed=["hold"])
_LAST_RUN = RecordWriter(LastRun, LastRunState, computed=["holding"])


def build_session_document(row: SessionRow, histories: Sequence[bytes]) -> bytes:
    """Build a session in the detail schema of its type (docs/contract.md "Session records").

    Args:
        histories: the chat history of each run, as `runs` reads them; empty for workflows.
    """
    writer = _DETAILS[row.session_type]
    hold = {} if row.hold is None else {"hold": orjson.Fragment(row.hold)}

    metrics, cost = embed_usage(row.metrics)
    members = {**hold, **describe_cost(cost, row.total_tokens)}
    if row.session_type != "workflow":
        record = writer.build(row, {**members, "metrics": metrics, "chat_history": None})
        return dump_in_pieces(record, "chat_history", join_arrays(histories))

    data = {
        "session_name": row.session_name,
        "session_state": embed_stored(row.session_state),
        "session_metrics": metrics,
    }
    return writer.write(row, {**members, "session_data": data})


def build_session_version(row: SessionRow) -> str:
    """Return a text that changes whenever the detail document of a session changes.

    The history is part of it: each run that ends adds to `history_bytes`.
    """
    program_version = agentctl.__version__.encode()
    content = b"%b %b" % (program_version, orjson.dumps(row))
    return hashlib.sha256(content).hexdigest()[:32]


@unit
def read_session_head(row: SessionRow) -> Steps[bytes]:
    """Build a session without its history (docs/contract.md "Session records")."""
    newest = yield from run_reads.get_newest(row.session_id)
    head: dict[str, Any] = {
        **_summarize_session(row, newest),
        "turn_count": (yield from run_reads.count_turns(row.session_id)),
    }
    head["metrics"] = embed_metrics(row.metrics)
    head["session_summary"] = embed_stored(row.summary, "{")
    head["session_state"] = embed_stored(row.session_state, "{")
    head["metadata"] = embed_stored(row.metadata, "{")
    return orjson.dumps(head)


def _describe_last_run(run: LastRunState) -> dict[str, Any]:
    record = _LAST_RUN.build(run, {"holding": orjson.loads(dump_holding(run))})
    error = {"code": run.error_code, "detail": run.error_detail} if run.error_code else None
    facts = {"error": error, "cancel_requested_by": run.cancel_requested_by}
    return {**record, "phase": describe_run({**record, **facts})}


def _summarize_session(row: SummaryRow, newest: LastRunState | None) -> Any:
    computed = {
        **_NO_COMPONENT,
        KINDS[row.session_type].id_field: row.component_id,
        **describe_cost(parse_cost(row.metrics), row.total_tokens),
        "last_run": None if newest is None else _describe_last_run(newest),
    }
    hold = {} if row.hold is None else {"hold": orjson.Fragment(row.hold)}
    return _SUMMARY.build(row, {**computed, **hold})


MAXIMUM_TEXT_BYTES = 4_194_304
"""Bytes of all kept texts of listed sessions of a process, with their keys."""

TEXT_BYTES = 2_048
"""Bytes of a kept text of a listed session without the text itself: the columns of its row."""


class SessionTexts:
    """The texts of the sessions that were listed last. Use one object on one event loop.

    The columns of a session are the key of its text, so that a kept text is never out of date: a
    session that has changed has another key, and its earlier text is dropped in time.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[ListedSession, bytes] = OrderedDict()
        self._size = 0

    def build(self, rows: Iterable[ListedSession]) -> list[bytes]:
        """Return the text of each session of a list, with its last run.

        Raises:
            Unavailable: a stored text is no JSON.
        """
        texts = list[bytes]()
        for row in rows:
            text = self._kept.get(row)
            if text is None:
                text = self._write(row)
            else:
                self._kept.move_to_end(row)
            texts.append(text)
        return texts

    def _write(self, row: ListedSession) -> bytes:
        last_run = row.last_run
        text = orjson.dumps(_summarize_session(row.session, last_run))

        # The phase of a run that has not ended may have an age: the time for which it waits, or
        # for which its work continues after a cancel.
        if last_run is not None and (last_run.finished_at is None or last_run.stopped_at is None):
            return text

        self._kept[row] = text
        self._size += TEXT_BYTES + len(text)
        while self._size > MAXIMUM_TEXT_BYTES:
            _, dropped_text = self._kept.popitem(last=False)
            self._size -= TEXT_BYTES + len(dropped_text)
        return text


MAXIMUM_BYTES = 16_777_216
"""Bytes of all kept histories of a process; the longest unread histories are dropped."""

ENTRY_BYTES = 512
"""Bytes of a kept history without its text."""

KEPT_SECONDS = 60.0
"""Seconds for which a history is kept after its last read, at least; half of the maximum."""

LARGE_BYTES = 262_144
"""Bytes of stored histories that are read in a thread and not on the event loop."""

JOIN_BYTES = 1_048_576
"""Bytes that the event loop joins at once, in less than a millisecond."""


class _KeptHistory(NamedTuple):
    """The history of the first runs of a session."""

    identity: str | None
    """The identity of the session. A later session with the same id has another identity."""

    last_seq: int
    """The number of the last run."""

    stored_bytes: int
    """Bytes of the stored histories, with their brackets."""

    text: bytes
    """The joined histories, without brackets."""


class SessionHistories:
    """The histories of sessions, by database and session id. Use one object on one event loop."""

    def __init__(self) -> None:
        # The longest unread histories come first.
        self._kept: OrderedDict[tuple[str, str], _KeptHistory] = OrderedDict()
        self._size = 0
        self._used = set[tuple[str, str]]()
        self._timer: asyncio.TimerHandle | None = None

    async def read(
        self, database: Database, row: SessionRow, identity: str | None = None
    ) -> list[bytes]:
        """Return the history of a session that was just read, in pieces without brackets.

        Args:
            identity: the identity of the session, if it was read with the row (`get_with_history`).

        Raises:
            Unavailable: a history is no JSON, or see `Database.read`.
        """
        if identity is None:
            identity = await database.read(sessions.get_identity(row.session_id))

        key = (database.id, row.session_id)
        kept_history = self._kept.get(key)
        if kept_history is not None and kept_history.identity == identity:
            missing_bytes = row.history_bytes - kept_history.stored_bytes
            if missing_bytes == 0:
                return [await self._keep(key, row, (), kept_history)]
            if missing_bytes > 0:
                runs = await _read_runs(database, row, kept_history.last_seq, missing_bytes)
                if _count_bytes(runs) == missing_bytes:
                    return [await self._keep(key, row, runs, kept_history)]

        runs = await _read_runs(database, row, 0, row.history_bytes)
        if _count_bytes(runs) != row.history_bytes or row.history_bytes > MAXIMUM_BYTES:
            # A run has ended since the row was read, or the history is too long.
            return [run.text for run in runs]
        empty = _KeptHistory(identity, last_seq=0, stored_bytes=0, text=b"")
        return [await self._keep(key, row, runs, empty)]

    async def _keep(
        self,
        key: tuple[str, str],
        row: SessionRow,
        runs: Sequence[StoredHistory],
        earlier: _KeptHistory,
    ) -> bytes:
        """Keep the history of a session, with the runs after the earlier history; return its text.

        It becomes the last that is dropped.
        """
        text = earlier.text
        last_seq = earlier.last_seq
        if runs:
            last_seq = runs[-1].seq
            texts = (text, *(run.text for run in runs))
            pieces = [piece for piece in texts if piece]
            text = await convert(partial(b",".join, pieces), row.history_bytes, JOIN_BYTES)

        self._drop(key)
        self._kept[key] = _KeptHistory(earlier.identity, last_seq, row.history_bytes, text)

        self._size += ENTRY_BYTES + len(text)
        self._used.add(key)

        while self._size > MAXIMUM_BYTES:
            self._drop(next(iter(self._kept)))

        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop_unused)
        return text

    def _drop(self, key: tuple[str, str]) -> None:
        kept_history = self._kept.pop(key, None)
        if kept_history is not None:
            self._size -= ENTRY_BYTES + len(kept_history.text)

    def _drop_unused(self) -> None:
        unused_keys = [key for key in self._kept if key not in self._used]
        for key in unused_keys:
            self._drop(key)
        self._used.clear()
        self._timer = None
        if self._kept:
            self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop_unused)


async def _read_runs(
    database: Database, row: SessionRow, after_seq: int, size: int
) -> list[StoredHistory]:
    kind: ReadSize = "large" if size > LARGE_BYTES else "small"
    runs = await database.read(run_reads.list_histories(row.session_id, after_seq), size=kind)
    # A kept history is checked once.
    await convert(partial(check_array, [run.text for run in runs]), size, JOIN_BYTES)
    return runs


def _count_bytes(runs: Sequence[StoredHistory]) -> int:
    """Return the bytes of the histories as they are stored, with two brackets each."""
    return sum(len(run.text) + 2 for run in runs)
