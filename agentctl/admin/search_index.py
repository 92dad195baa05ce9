"""The index of texts for search: what it lacks, and the work of `agentctl db index`."""

from __future__ import annotations

from collections.abc import Callable

from agentctl.config.settings import Database as Entry
from agentctl.light_dataclass import dataclass
from agentctl.records.findings import Finding, note, ok
from agentctl.store.database import Database
from agentctl.store.databases import open_database
from agentctl.store.repositories import integrity, search
from agentctl.store.repositories.search import NEWEST, OLDEST
from agentctl.store.search import Tokenizer

PROBED = 20
"""Groups of sessions that a check reads at each end of the list."""

INDEX_COMMAND = "agentctl db index"


@dataclass(slots=True)
class IndexResult:
    """The result of `db index`.

    Attributes:
        added: number of texts that the index lacked, or had for another tokenizer.
    """

    db_id: str
    tokenizer: str
    sessions: int = 0
    added: int = 0


async def index_texts(
    entry: Entry, tokenizer: Tokenizer, report: Callable[[str, int, int | None], None]
) -> IndexResult:
    """Add the texts that the index of a database lacks, the newest sessions first.

    Each unit has the texts of 20 sessions. Servers work meanwhile. After an interruption the next
    call adds the rest.

    Raises:
        Unavailable: the database does not exist or does not answer.
        SchemaMismatch: its schema is older or newer than this code.
    """
    database = open_database(entry, create=False)
    try:
        total = await database.read(integrity.count_sessions(), size="large")
        result, after = IndexResult(database.id, tokenizer), NEWEST
        while found := await database.read(search.find_missing(after, tokenizer), size="large"):
            group, after = found
            if group.missing or group.stale:
                result.added += await database.write(search.add_missing(group, tokenizer))
            result.sessions += len(group.session_ids)
            report("sessions", result.sessions, total)
        return result
    finally:
        await database.close()


async def count_unindexed(database: Database, tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the number of sessions with texts that the index lacks, and of those that were read.

    The newest and the oldest sessions are read, at most `PROBED` groups of each.
    """
    lacking, read = set[str](), set[str]()
    for first, oldest_first in ((NEWEST, False), (OLDEST, True)):
        after = first
        for _ in range(PROBED):
            work = search.find_missing(after, tokenizer, oldest_first=oldest_first)
            found = await database.read(work, size="large")
            if found is None:
                break
            group, after = found
            read.update(group.session_ids)
            lacking.update(group.missing)
            if group.stale:
                lacking.update(group.session_ids)
    return len(lacking), len(read)


async def check_index(entry: Entry, tokenizer: Tokenizer) -> Finding:
    """Describe the index of a database that exists. Raises the errors of `index_texts`."""
    database = open_database(entry, create=False)
    try:
        lacking, read = await count_unindexed(database, tokenizer)
    finally:
        await database.close()
    check = f"search in {entry.id}"
    if lacking:
        text = f"{lacking} of {read} sessions that were read have texts that are not indexed"
        return note(check, text, INDEX_COMMAND)
    return ok(check, f"the texts of {read} sessions that were read are indexed")
