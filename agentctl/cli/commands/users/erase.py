"""`agentctl users erase`: erase the data of a person, in parts that can be repeated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.cli.commands.sessions.release import build_release_hint
from agentctl.cli.options import Output, UserOfData, Yes
from agentctl.cli.show.output import resolve_format, show_list, write_value
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import Conflict, Held, PartFailed, UsageError
from agentctl.requests.personal_data import Erasure, Vacuum

if TYPE_CHECKING:
    from agentctl.records.personal_data import PersonalDataRecord

NAMED_SESSIONS = 10
"""Maximum number of held sessions in the command of the hint."""

_COLUMNS = plain_columns("db_id", "table", "rows", "erasure")


@with_target()
async def erase_user(
    target: Target,
    user: UserOfData,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be erased, erase nothing")
    ] = False,
    yes: Yes = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel the live and paused runs of the user first")
    ] = False,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Rewrite SQLite files of any size; writers wait")
    ] = False,
    no_vacuum: Annotated[
        bool, typer.Option("--no-vacuum", help="Do not rewrite SQLite files")
    ] = False,
    output: Output = None,
) -> None:
    """Erase the data of a person in every database, except for the audit log.

    Held sessions are left, with exit code 6. The command can be interrupted and repeated. Withdraw
    the access of the person first: a new run is new data. Only administrators can erase.
    """
    output_format = resolve_format(output)
    if vacuum and no_vacuum:
        raise UsageError("--vacuum and --no-vacuum exclude each other")
    if not dry_run:
        check_confirmable(yes=yes)
    before = (await target.operations.get_user_data(user)).value
    rows = [row for row in before["tables"] if row["rows"] and row["erasure"] != "keep"]
    if not dry_run:
        what = f"{sum(row['rows'] for row in rows)} rows of user {user}"
        confirm(f"Erase {what}, {target.place}?", yes=yes)
        choice: Vacuum = "always" if vacuum else "never" if no_vacuum else "auto"
        done = await _erase(target, Erasure(user, cancel, choice))
        rows, before = done["erased"], (await target.operations.get_user_data(user)).value
    files = [] if dry_run else done["files"]
    report = _build_report(before, rows, files, dry_run=dry_run)
    if output_format == "json":
        write_value(report)
    else:
        show_list(rows, _COLUMNS, output_format, id_field="table")
        _note_rest(report)
    if not dry_run:
        _check_rest(before, target)


async def _erase(target: Target, erasure: Erasure) -> dict[str, Any]:
    from dataclasses import replace

    erased: dict[tuple[str, str], dict[str, Any]] = {}
    files: list[Any] = []
    counter = Counter("rows erased")
    async with showing_progress(counter):
        while True:
            try:
                part = (await target.operations.erase_user_data(erasure)).value
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
    from agentctl.records.times import DAY, format_rfc3339, now

    kept: list[dict[str, Any]] = [
        {
            "what": each["what"],
            "rows": each["rows"],
            "until": None if each["days"] is None else format_rfc3339(now() + each["days"] * DAY),
            "reason": each["reason"],
        }
        for each in data["kept"]
    ]
    for file in files:
        if file["engine"] == "sqlite" and not (file["vacuumed"] and file["log_emptied"]):
            reason = (
                f"the file of database {file['db_id']} can have remains in unused parts of its"
                " pages until it is rewritten: users erase --vacuum, while writers can wait"
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


def _note_rest(report: dict[str, Any]) -> None:
    if report["dry_run"]:
        note("nothing was erased")
    if not report["erased"]:
        note(f"user {report['user_id']} has no rows to erase: check the id if that is unexpected")
    if report["open_runs"]:
        note(f"{report['open_runs']} live or paused runs: they are cancelled only with --cancel")
    for kept in report["kept"]:
        count = "" if kept["rows"] is None else f" ({kept['rows']})"
        until = "" if kept["until"] is None else f", until {kept['until']}"
        note(f"stays: {kept['what']}{count}{until}: {kept['reason']}")
    if report["held"]:
        note(f"held: {', '.join(report['held'])}")


def _check_rest(data: PersonalDataRecord, target: Target) -> None:
    """Check that nothing is left but what stays.

    Raises:
        Held: held sessions are left.
        PartFailed: there is new data.
    """
    if data["held_count"]:
        count, named = data["held_count"], data["held"][:NAMED_SESSIONS]
        what = "1 held session stays" if count == 1 else f"{count} held sessions stay"
        failure = Held(what, session_ids=named)
        failure.hint = build_release_hint(target, named, None)
        if len(data["databases"]) > 1:
            failure.hint += ", each with the --db of its database"
        raise failure
    left = [row["table"] for row in data["tables"] if row["rows"] and row["erasure"] != "keep"]
    if left:
        raise PartFailed(
            "The user has new data",
            cause=f"there are new rows in {', '.join(sorted(set(left)))}",
            hint="withdraw the access of the user, and erase again",
        )
