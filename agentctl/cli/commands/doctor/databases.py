"""`agentctl doctor --db`: the integrity of databases."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.cli.commands.doctor.findings import check_findings, show_findings
from agentctl.cli.options import AllDatabases
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.errors import UsageError

if TYPE_CHECKING:
    from agentctl.admin.databases import CheckState
    from agentctl.config.settings import Database
    from agentctl.records.system import Finding


async def check_databases(
    out: CommandOutput, config: Path | None, db_id: str | None, *, deep: bool, cursor: str | None
) -> None:
    """Check the integrity of databases, and show the findings. Changes nothing.

    After an interruption the problems found so far are shown, and the command that continues the
    check; the pages of a SQLite file are checked in one step.

    Args:
        db_id: the database; None for all.
        deep: read the bytes of all files.
        cursor: the place of an interrupted check.

    Raises:
        SomethingWrong: there is a problem.
        UsageError: the cursor is not one of this check.
    """
    import asyncio

    from agentctl.admin.databases import CheckedStore, CheckState, check_integrity
    from agentctl.store.blobs import open_blob_store

    findings: list[Finding] = []
    settings, entries = AllDatabases(config, db_id).load()
    store = open_blob_store(settings.files)
    state = CheckState()
    if cursor is not None:
        entries, state = _continue_check(entries, cursor)

    for entry in entries:
        counter = Counter("")
        # Bytes that no file names are looked for with the last database: until then any of them
        # may belong to a file of a database that is not read yet.
        named_by = settings.databases if entry == entries[-1] else ()
        files = CheckedStore(store, deep, named_by)
        try:
            async with showing_progress(counter):
                async for finding in check_integrity(entry, counter.show, state, files):
                    findings.append(finding)
        except asyncio.CancelledError:
            findings += state.list_violations(f"database {entry.id}")
            show_findings(findings, out)
            place = f"{entry.id}:{state.step}:{state.after}"
            note(f"interrupted; continue with: {_describe_rest(place, config, db_id, deep=deep)}")
            raise
        state = CheckState()

    show_findings(findings, out)
    check_findings(findings)


def _describe_rest(place: str, config: Path | None, db_id: str | None, *, deep: bool) -> str:
    """Return the command that continues an interrupted check."""
    words = ["agentctl", "doctor", "--db"]
    if db_id is not None:
        words.append(db_id)
    words += ["--cursor", place]
    if config is not None:
        words += ["--config", str(config)]
    if deep:
        words.append("--deep")
    return shlex.join(words)


def _continue_check(
    entries: Sequence[Database], cursor: str
) -> tuple[Sequence[Database], CheckState]:
    """Return the databases and the place that an interrupted check has not reached."""
    from agentctl.admin.databases import CHECK_STEPS, CheckState

    db_id, _, place = cursor.partition(":")
    step, _, after = place.partition(":")
    ids = [entry.id for entry in entries]
    if db_id not in ids or step not in CHECK_STEPS:
        raise UsageError("the cursor is not one of this check", hint="check without --cursor")
    return entries[ids.index(db_id) :], CheckState(step, after)
