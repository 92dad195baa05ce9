"""`agentctl users`: export and erase the data of a person.

An erasure is done in parts, so it can be interrupted and repeated.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from agentctl.cli.archives import OLDEST_FIRST, Archive, Member, Pieces, name_content, one_text
from agentctl.cli.help import CommandApp
from agentctl.cli.options import UserOfData, Yes
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import CommandOutput, write_value
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import Conflict, Held, InvalidResponse, NotFound, PartFailed, UsageError
from agentctl.interface.requests import SessionFilter, SessionLocator
from agentctl.interface.requests.administration import (
    Erasure,
    PersonalPart,
    PersonalRowsFilter,
    Vacuum,
)
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.lists import Read, read_rows
from agentctl.interface.requests.memories import MemoryFilter
from agentctl.records.personal_data import PersonalDataRecord
from agentctl.records.text import format_count
from agentctl.records.times import DAY, format_rfc3339, now

app = CommandApp(
    help="Export and erase the data of a person.",
    epilog="Example: agentctl users export ada --out ada.zip",
)

FORMAT = "agentctl-personal-data/1"

_EXPORTED = plain_columns("file", "user_id", "rows", "files", "bytes")

_README = """\
The data of one person from agentctl.

Each file with the name .jsonl has one JSON object in each line, encoded in UTF-8; times are UTC.
manifest.json names every file with its number of lines, its size and the SHA-256 of its content.

memories.jsonl                    facts about the person that agents keep
store.jsonl                       items that graphs keep for the person
audit.jsonl                       calls of the person, and calls about the person
databases/<id>/sessions.jsonl     one line for each session, with all its runs and messages
databases/<id>/approvals.jsonl    what runs of the person asked people for, and the decisions
databases/<id>/decisions.jsonl    decisions of the person about runs of other users
databases/<id>/deliveries.jsonl   events about runs of the person that were sent to webhooks
databases/<id>/usage.jsonl        tokens, cost and times by day, component and model
databases/<id>/files.jsonl        name, type, size and SHA-256 of each file of the person
files/<file_id>                   the bytes of that file
"""

PARTS: tuple[PersonalPart, ...] = ("decisions", "deliveries", "usage")
"""Kinds of rows that are exported of each database."""

SYSTEM_PARTS: tuple[PersonalPart, ...] = ("store", "audit")
"""Kinds of rows of the first database."""

NAMED_SESSIONS = 10
"""Maximum number of held sessions in the command of the hint."""

_ERASED = plain_columns("db_id", "table", "rows", "erasure")


@app.command("export", epilog="Example: agentctl users export ada --out ada.zip")
@with_target()
async def export_user(
    target: Target,
    out: CommandOutput,
    user: UserOfData,
    file: Annotated[Path, option("--out", "FILE", "New ZIP file; never overwritten")],
) -> None:
    """Export the data of a person to a ZIP file.

    The archive contains JSON Lines; manifest.json has their SHA-256 hashes and README.txt describes
    them. The archive gets its name when it is complete and has been read back; until then it is
    FILE.part. Only administrators can export.
    """
    data = (await target.operations.users.get_data(user)).value
    db_ids = [database["db_id"] for database in data["databases"]]

    head = {"format": FORMAT, "user_id": user}
    archive = Archive(file, head, Counter("rows exported"))
    await archive.write(_list_members(archive, target, user, db_ids))

    record = {
        "file": str(file),
        "user_id": user,
        "rows": sum(entry["rows"] for entry in archive.entries),
        "files": len(archive.entries),
        "bytes": file.stat().st_size,
    }
    out.show_record(record, _EXPORTED, "file")
    note(f"wrote the data of user {user} to {file} and checked it")
    archive.check_missing()


async def _list_members(
    archive: Archive, target: Target, user: str, db_ids: list[str]
) -> AsyncGenerator[Member]:
    """Yield the name of each file of the archive, and its content."""
    operations = target.operations
    page = OLDEST_FIRST
    yield "README.txt", one_text(_README)

    yield "memories.jsonl", _dump(operations.memories.list, MemoryFilter(user, page=page))
    for part in SYSTEM_PARTS:
        rows = PersonalRowsFilter(user, part, db_ids[0])
        yield f"{part}.jsonl", _dump(operations.users.list_rows, rows)

    for db_id in db_ids:
        folder = f"databases/{db_id}"
        yield f"{folder}/sessions.jsonl", _export_sessions(target, user, db_id)

        approvals = ApprovalFilter(user_id=user, db_id=db_id, page=page)
        yield f"{folder}/approvals.jsonl", _dump(operations.approvals.list, approvals)

        for part in PARTS:
            rows = PersonalRowsFilter(user, part, db_id)
            yield f"{folder}/{part}.jsonl", _dump(operations.users.list_rows, rows)

        files = FileFilter(user, db_id=db_id, page=page)
        yield f"{folder}/files.jsonl", _dump(operations.files.list, files)
        async with aclosing(archive.list_contents(operations, files, name_content)) as contents:
            async for member in contents:
                yield member


async def _dump(read: Read[Any], wanted: object) -> Pieces:
    """Yield each row of all pages of a list as a line of JSON, which counts as one row."""
    import orjson

    async with aclosing(read_rows(read, wanted)) as rows:
        async for row in rows:
            yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE), 1


async def _export_sessions(target: Target, user: str, db_id: str) -> Pieces:
    """Yield the export of each session of the user in a database: one line of JSON for each.

    A long session arrives in several parts. Only the empty part after its line counts as a row,
    so that the counter shows complete sessions.

    Raises:
        InvalidResponse: the export of a session ended before the end of its line.
        NotFound: a session was deleted while it was exported.
    """
    where = SessionLocator(user_id=user, db_id=db_id)
    wanted = SessionFilter(where, page=OLDEST_FIRST)
    async with aclosing(read_rows(target.operations.sessions.list, wanted)) as session_rows:
        async for session_row in session_rows:
            session_id = session_row["session_id"]

            last_byte = b""
            try:
                async for part in target.operations.sessions.export(session_id, where):
                    yield part, 0
                    last_byte = part[-1:]
            except NotFound:
                if last_byte:
                    # The archive has a part of its line already, and nothing can take it back.
                    raise
                # The session was deleted after the list was read.
                continue

            if last_byte != b"\n":
                raise InvalidResponse(
                    f"the export of session {session_id} is not complete", hint="export again"
                )
            yield b"", 1


@app.command("erase", epilog="Example: agentctl users erase ada --dry-run")
@with_target()
async def erase_user(
    target: Target,
    out: CommandOutput,
    user: UserOfData,
    dry_run: bool = flag("--dry-run", "Show what would be erased without erasing it"),
    yes: Yes = False,
    cancel: bool = flag("--cancel", "Cancel the live and paused runs of the user first"),
    vacuum: bool = flag("--vacuum", "Rewrite SQLite files of any size; writers wait"),
    no_vacuum: bool = flag("--no-vacuum", "Do not rewrite SQLite files"),
) -> None:
    """Erase the data of a person in every database, except for the audit log.

    Held sessions are kept, and the exit code is then 6. You can interrupt and repeat the command.
    First revoke the access of the person, because a new run creates new data. Only administrators
    can erase.
    """
    if vacuum and no_vacuum:
        raise UsageError("--vacuum and --no-vacuum cannot be used together")
    if not dry_run:
        check_confirmable(yes=yes)

    data = (await target.operations.users.get_data(user)).value
    rows = [row for row in data["tables"] if row["rows"] and row["erasure"] != "keep"]
    files: list[Any] = []

    if not dry_run:
        least = "at least " if any(row.get("is_capped") for row in rows) else ""
        count = format_count(sum(row["rows"] for row in rows), "row")
        what = f"{least}{count} of user {user}"
        confirm(f"Erase {what}, {target.place}?", yes=yes)

        choice: Vacuum = "auto"
        if vacuum:
            choice = "always"
        elif no_vacuum:
            choice = "never"
        done = await _erase(target, Erasure(user, cancel, choice))
        rows = done["erased"]
        files = done["files"]

        # What is left now: the report names it, and the exit code depends on it.
        data = (await target.operations.users.get_data(user)).value

    report = _build_report(data, rows, files, dry_run=dry_run)
    if out.format == "json":
        write_value(report)
    else:
        out.show_list(rows, _ERASED, "table")
        _note_rest(report)
    if not dry_run:
        _check_rest(data, target)


async def _erase(target: Target, erasure: Erasure) -> dict[str, Any]:
    """Erase the data part by part, and return the erased rows by table and the SQLite files.

    Raises:
        Conflict: the user has live or paused runs.
    """
    erased: dict[tuple[str, str], dict[str, Any]] = {}
    files: list[Any] = []
    counter = Counter("rows erased")
    async with showing_progress(counter):
        while True:
            try:
                part = (await target.operations.users.erase(erasure)).value
            except Conflict as error:
                how = "" if erasure.cancel else ", or with --cancel"
                error.hint = f"erase again when they have ended{how}"
                raise

            for row in part["erased"]:
                total = erased.setdefault((row["db_id"], row["table"]), {**row, "rows": 0})
                total["rows"] += row["rows"]
                counter.done += row["rows"]
            files += part["files"]

            if part["next_cursor"] is None:
                return {"erased": list(erased.values()), "files": files}
            erasure = replace(erasure, cursor=part["next_cursor"])


def _build_report(
    data: PersonalDataRecord, rows: list[Any], files: list[Any], *, dry_run: bool
) -> dict[str, Any]:
    """Return the report of an erasure: what was erased, and what stays, until when and why.

    Args:
        data: the data that is left; in a dry run, all data.
        rows: the erased rows by table; in a dry run, the rows that would be erased.
        files: the SQLite files, with what was done to them; empty in a dry run.
        dry_run: True if nothing was erased.
    """
    kept: list[dict[str, Any]] = [
        {
            "what": kept_data["what"],
            "rows": kept_data["rows"],
            "until": _format_end(kept_data["days"]),
            "reason": kept_data["reason"],
        }
        for kept_data in data["kept"]
    ]

    if any(row["table"] == "files" for row in rows):
        reason = "the cleanup of a server deletes them, normally within two hours"
        kept.append({"what": "bytes of files", "rows": None, "until": None, "reason": reason})

    for file in files:
        if file["engine"] == "sqlite" and not (file["vacuumed"] and file["log_emptied"]):
            reason = (
                f"the file of database {file['db_id']} may contain erased bytes until it is"
                " rewritten by users erase --vacuum, which blocks writers"
            )
            kept.append({"what": "remains", "rows": None, "until": None, "reason": reason})

    return {
        "user_id": data["user_id"],
        "dry_run": dry_run,
        "open_runs": data["open_runs"],
        "erased": rows,
        "kept": kept,
        "held": data["held"],
        "files": files,
    }


def _format_end(days: int | None) -> str | None:
    """Return the time some days from now; None for no end."""
    return None if days is None else format_rfc3339(now() + days * DAY)


def _note_rest(report: dict[str, Any]) -> None:
    """Write to stderr what the table of erased rows does not show."""
    if report["dry_run"]:
        note("nothing was erased")
    if not report["erased"]:
        user_id = report["user_id"]
        note(f"nothing is stored about user {user_id}: check the id if that is unexpected")

    capped_tables = [row["table"] for row in report["erased"] if row.get("is_capped")]
    if capped_tables:
        note(f"there may be more rows: {', '.join(sorted(set(capped_tables)))}")
    if report["open_runs"]:
        note(f"{report['open_runs']} live or paused runs: they are cancelled only with --cancel")

    for kept in report["kept"]:
        count = "" if kept["rows"] is None else f" ({kept['rows']})"
        until = "" if kept["until"] is None else f", until {kept['until']}"
        note(f"kept: {kept['what']}{count}{until}: {kept['reason']}")

    if report["held"]:
        note(f"held: {', '.join(report['held'])}")


def _check_rest(data: PersonalDataRecord, target: Target) -> None:
    """Check that nothing is left but what stays.

    Raises:
        Held: held sessions are left.
        PartFailed: there is new data.
    """
    if data["held_count"]:
        count = data["held_count"]
        named = data["held"][:NAMED_SESSIONS]
        what = "1 held session stays" if count == 1 else f"{count} held sessions stay"
        failure = Held(what, session_ids=named)
        failure.hint = target.build_release_hint(named, None)
        if len(data["databases"]) > 1:
            failure.hint += ", each with the --db of its database"
        raise failure

    # The erasure found all rows of its time, so these rows were written after it.
    new_tables = [
        row["table"] for row in data["tables"] if row["rows"] and row["erasure"] != "keep"
    ]
    if new_tables:
        raise PartFailed(
            "The user has new data",
            cause=f"there are new rows in {', '.join(sorted(set(new_tables)))}",
            hint="withdraw the access of the user, and erase again",
        )
