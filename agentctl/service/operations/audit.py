"""The operations on the audit log (docs/contract.md "Audit"), and its signed heads.

The process with the lease of the sweep signs the heads, and copies them to a file (docs/audit.md
"Bounds"). An entry is covered a few seconds after its commit at the earliest: until then,
transactions with smaller numbers may be open.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from agentctl.auth.audit_chain import StatementKey, sign_head
from agentctl.config.settings import Audit
from agentctl.interface.operations.audit import AuditFamily
from agentctl.interface.requests.administration import AuditFilter, AuditHeadFilter
from agentctl.records.audit import AuditHeadPage, AuditHeadRecord, AuditPage, AuditRecord
from agentctl.records.document import Document, build_document
from agentctl.records.logs import RateLimitedLog
from agentctl.records.times import DAY, format_rfc3339, now
from agentctl.service.documents import paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.family import OperationFamily
from agentctl.store.database import Database
from agentctl.store.repositories import audit
from agentctl.store.repositories.audit import AuditRow, Frontier, HeadRow

HEAD_ENTRIES = 1_000
"""Maximum number of entries of a head."""

HEAD_SECONDS = 3_600
"""Maximum age of an entry that no head covers."""

HEADS_PER_PASS = 10
"""Maximum number of heads that one sweep signs: it has other work."""

HEADS_PER_COPY = 1_000
"""Maximum number of heads that one sweep adds to the copy."""

END_BYTES = 4_000_000
"""Bytes at the end of the copy in which the newest head is searched for: some thousand heads."""

PAGE_HEADS = 100
"""Heads of one read."""

_ENTRY = RecordWriter(AuditRecord, AuditRow, computed=["via"])
_HEAD = RecordWriter(AuditHeadRecord, HeadRow)

_rate_limited = RateLimitedLog(logging.getLogger("agentctl.service"), level=logging.ERROR)


class AuditOperations(OperationFamily, AuditFamily):
    """Reads of the audit log and of its signed heads."""

    async def list(self, filter: AuditFilter) -> Document[AuditPage]:
        async with self.audit("get_audit"):
            paging.check_filter(filter)
            before = paging.parse_number_cursor("audit", filter.limit, filter.cursor)
            work = audit.list_page(filter, before)
            page = await self.hosting.audit_log.database.read(work, size="large")
            cursor = paging.build_number_cursor("audit", page.next)
            return build_document(
                AuditPage(
                    data=[build_entry(row) for row in page.rows],
                    meta=paging.build_cursor_meta(cursor, page.searched_until),
                )
            )

    async def list_heads(self, filter: AuditHeadFilter) -> Document[AuditHeadPage]:
        async with self.audit("get_audit_heads"):
            before = paging.parse_number_cursor("audit-heads", filter.limit, filter.cursor)
            work = audit.list_heads(before or audit.LAST_NUMBER, filter.limit + 1)
            rows = await self.hosting.audit_log.database.read(work, size="large")

            page = rows[: filter.limit]
            next_before = page[-1].number if len(rows) > len(page) else None
            cursor = paging.build_number_cursor("audit-heads", next_before)
            return build_document(
                AuditHeadPage(
                    data=[_HEAD.build(row, {}) for row in page], meta={"next_cursor": cursor}
                )
            )


def build_entry(row: AuditRow) -> AuditRecord:
    """Return the record of an entry, which its signed head covers."""
    record: AuditRecord = _ENTRY.build(row, {"via": "local" if row.via == "local" else "http"})
    return record


class HeadSigner:
    """Signs the entries of the audit log that no head covers yet.

    Args:
        database: the system database.
        table: the configuration of the audit log.
        key: the key of `table.key_file`.
    """

    def __init__(self, database: Database, table: Audit, key: StatementKey) -> None:
        self._database = database
        self._table = table
        self._key = key
        # The newest entries at the last pass: they are signed when no older transaction is open.
        self._frontier: Frontier | None = None
        # The number of the newest head in the copy, as far as this process knows.
        self._copied_number = 0

    async def sign_due(self) -> None:
        """Sign as many heads as are due, and copy them to the file.

        Raises:
            Unavailable: the database does not answer.
        """
        frontier = self._frontier
        self._frontier = None

        is_settled = frontier is not None and await self._database.read(audit.is_settled(frontier))
        newest_head = await self._database.read(audit.get_newest_head())

        if frontier is not None and is_settled:
            for _ in range(HEADS_PER_PASS):
                signed_head = await self._sign_next(newest_head, frontier.last_seq)
                if signed_head is None:
                    break
                newest_head = signed_head
        elif frontier is not None:
            # A transaction of that time is still open.
            self._frontier = frontier

        if self._frontier is None:
            self._frontier = await self._database.read(audit.get_frontier())

        if self._table.heads_file is not None and newest_head is not None:
            await self._copy(self._table.heads_file, newest_head)

    async def _sign_next(self, newest_head: HeadRow | None, last_seq: int) -> HeadRow | None:
        """Sign the next head up to an entry. Return the head, or None if it is not due."""
        after = 0 if newest_head is None else newest_head.last_seq
        oldest_rows = await self._database.read(audit.list_entries(after, last_seq, 1))
        if not oldest_rows:
            return None

        # The numbers of entries have gaps, so that there may be fewer entries than numbers.
        moment = now()
        is_old = moment - oldest_rows[0].at >= HEAD_SECONDS * 1_000_000
        if not is_old and last_seq - after < HEAD_ENTRIES:
            return None

        work = audit.list_entries(after, last_seq, HEAD_ENTRIES)
        rows = await self._database.read(work, size="large")
        if not is_old and len(rows) < HEAD_ENTRIES:
            return None

        number = 1 if newest_head is None else newest_head.number + 1
        expired_seq = await self._find_expired_seq(newest_head, moment)
        token = await asyncio.to_thread(
            sign_head,
            self._key,
            None if newest_head is None else newest_head.token,
            number=number,
            at=format_rfc3339(moment),
            last_seq=rows[-1].seq,
            expired_seq=expired_seq,
            entries=[build_entry(row) for row in rows],
        )

        head = HeadRow(number, moment, rows[0].seq, rows[-1].seq, len(rows), expired_seq, token)
        # False: another process has signed a head with this number.
        if not await self._database.write(audit.append_head(head)):
            return None
        return head

    async def _find_expired_seq(self, newest_head: HeadRow | None, moment: int) -> int:
        """Return the number of the last entry that has expired by its age; it only grows."""
        # The earlier of two clocks: if one is ahead, no young entry counts as expired.
        before = min(moment, await self._database.clock()) - self._table.keep_days * DAY
        expired_seq = await self._database.read(audit.find_expired_seq(before))
        if newest_head is None:
            return expired_seq
        return max(expired_seq, newest_head.expired_seq)

    async def _copy(self, file: Path, newest_head: HeadRow) -> None:
        """Append the heads that the file lacks. The next sweep repeats a failed attempt."""
        if newest_head.number <= self._copied_number:
            return
        try:
            copy_end = await asyncio.to_thread(_read_end, file)
            copied_number = await self._find_copied_number(copy_end, newest_head)
            rows = await self._database.read(
                audit.list_heads_after(copied_number, HEADS_PER_COPY), size="large"
            )
            await asyncio.to_thread(_append_lines, file, copy_end, [row.token for row in rows])
            self._copied_number = rows[-1].number if rows else copied_number
        except OSError as failure:
            _rate_limited.log("the heads of the audit log are not copied: %s", failure.strerror)

    async def _find_copied_number(self, copy_end: _CopyEnd, newest_head: HeadRow) -> int:
        """Return the number of the newest head that the copy has; 0 if it has none.

        The file may have more or fewer lines than that: after a restore of the database, or if a
        head was copied twice.
        """
        before = newest_head.number + 1
        while copy_end.tokens and before > 1:
            page = await self._database.read(audit.list_heads(before, PAGE_HEADS))
            for row in page:
                if row.token in copy_end.tokens:
                    return row.number
            before = page[-1].number if page else 0
        return 0


class _CopyEnd(NamedTuple):
    """The end of the copy of the heads."""

    tokens: frozenset[str]
    """The last heads."""

    rest: str
    """The beginning of a line that a crash or a full disk has cut; empty if no line is cut."""


def _read_end(file: Path) -> _CopyEnd:
    try:
        with file.open("rb") as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - END_BYTES))
            *tokens, rest = lines.read().decode("ascii", "replace").split("\n")
            return _CopyEnd(frozenset(tokens), rest)
    except FileNotFoundError:
        return _CopyEnd(frozenset(), "")


def _append_lines(file: Path, copy_end: _CopyEnd, tokens: Sequence[str]) -> None:
    text = "".join(f"{token}\n" for token in tokens)
    if copy_end.rest and text.startswith(copy_end.rest):
        # A crash has cut the first of these lines: continue it.
        text = text.removeprefix(copy_end.rest)
    elif copy_end.rest:
        # Any other incomplete line is ended.
        text = f"\n{text}"

    with file.open("a", encoding="ascii") as lines:
        lines.write(text)
        lines.flush()
        os.fsync(lines.fileno())
