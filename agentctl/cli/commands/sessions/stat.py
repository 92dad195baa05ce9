"""`agentctl sessions stat`: runs, tokens, time and cost by day, component or user."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.options import (
    NO_CHOICE,
    ComponentChoice,
    DbId,
    Fields,
    NewerThan,
    OlderThan,
    Output,
    SessionFilterOption,
    UserId,
)
from agentctl.cli.paging import read_pages
from agentctl.cli.show.bars import draw_bar
from agentctl.cli.show.output import resolve_format, show_list
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.target import Target, with_target
from agentctl.light_dataclass import dataclass
from agentctl.records.kinds import find_component
from agentctl.records.times import format_span
from agentctl.requests import MAXIMUM_LIMIT, SUMMARY_VIEW, Page, RunFilter
from agentctl.transcripts.model import parse_time

if TYPE_CHECKING:
    pass

Grouping = Literal["component", "user", "day", "hour", "session"]

_FIELDS = (
    "runs", "failed", "cancelled", "input_tokens", "output_tokens", "total_tokens", "seconds",
)  # fmt: skip


@dataclass(slots=True)
class Totals:
    """The sums of a group of runs.

    Attributes:
        runs: without background work, and without members, which run within the time of their
            leader, unless members are groups. The tokens of all of them count.
        seconds: time from start to end of these runs.
        with_members: True if the runs of members count.
    """

    with_members: bool

    runs: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    seconds: float = 0.0

    def add(self, run: Mapping[str, Any]) -> None:
        metrics = run.get("metrics") or {}
        self.input_tokens += metrics.get("input_tokens") or 0
        self.output_tokens += metrics.get("output_tokens") or 0
        self.total_tokens += metrics.get("total_tokens") or 0
        is_child = run.get("parent_run_id") is not None
        if run.get("purpose") or (is_child and not self.with_members):
            return
        self.runs += 1
        self.failed += run.get("status") == "ERROR"
        self.cancelled += run.get("status") == "CANCELLED"
        began, ended = parse_time(run.get("started_at")), parse_time(run.get("finished_at"))
        if began is not None and ended is not None:
            self.seconds += max(0.0, (ended - began).total_seconds())


@with_target(reads_databases=True)
async def show_statistics(
    target: Target,
    by: Annotated[
        Grouping,
        typer.Option("--by", metavar="FIELD", help="component, user, session, day or hour"),
    ] = "component",
    choice: ComponentChoice = NO_CHOICE,
    user: UserId = None,
    session: SessionFilterOption = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    input_price: Annotated[
        float | None,
        typer.Option("--input-price", metavar="PRICE", min=0, help="Price of a million tokens in"),
    ] = None,
    output_price: Annotated[
        float | None,
        typer.Option(
            "--output-price", metavar="PRICE", min=0, help="Price of a million tokens out"
        ),
    ] = None,
    db: DbId = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """Show runs, tokens, time and cost of sessions, by day, component or user.

    Tokens of members and of background work count for the group of the member or work. By component
    the runs, failures and time of members count too, within those of their team or workflow. The
    cost is that of the prices given; without them there is none.
    """
    output_format = resolve_format(output)
    kind, component_id = choice.resolve() or (None, None)
    run_filter = RunFilter(
        component_type=kind,
        component_id=component_id,
        session_id=session,
        user_id=user,
        db_id=db,
        created_after=microseconds_ago("--newer-than", newer_than),
        created_before=microseconds_ago("--older-than", older_than),
    )
    groups = await _sum_runs(target, run_filter, by)
    priced = input_price is not None or output_price is not None
    rows = [
        _build_row(by, name, groups[name], (input_price or 0.0, output_price or 0.0), priced)
        for name in sorted(groups)
    ]
    show_list(rows, _build_columns(by, rows), output_format, id_field=by, fields=fields)


async def _sum_runs(target: Target, run_filter: RunFilter, by: Grouping) -> dict[str, Totals]:
    every = replace(run_filter, page=Page(limit=MAXIMUM_LIMIT), form=SUMMARY_VIEW)
    groups: dict[str, Totals] = {}
    counter = Counter("runs read")
    async with showing_progress(counter):
        async for runs in read_pages(target.operations.get_runs, every):
            for run in runs:
                groups.setdefault(_find_group(run, by), Totals(by == "component")).add(run)
            counter.done += len(runs)
    return groups


def _find_group(run: Mapping[str, Any], by: Grouping) -> str:
    if by == "component":
        kind, component_id = find_component(run) or ("", "")
        return component_id if kind in ("", "agent") else f"{component_id} {kind}"
    if by in ("user", "session"):
        return str(run.get(f"{by}_id") or "")
    created = str(run.get("created_at") or "")
    return created[:10] if by == "day" else f"{created[:13]}:00Z"


def _build_row(
    by: str, name: str, totals: Totals, prices: tuple[float, float], priced: bool
) -> dict[str, Any]:
    row: dict[str, Any] = {by: name} | {field: getattr(totals, field) for field in _FIELDS}
    row["seconds"] = round(totals.seconds, 3)
    cost = totals.input_tokens * prices[0] + totals.output_tokens * prices[1]
    row["cost"] = round(cost / 1_000_000, 6) if priced else None
    return row


def _build_columns(by: str, rows: list[dict[str, Any]]) -> Columns:
    most = max((row["total_tokens"] for row in rows), default=0)

    def count(field: str) -> Column:
        return Column(field, lambda row: f"{row[field]:,}" if row[field] else "")

    return Columns(
        tsv=plain_columns(by, *_FIELDS, "cost"),
        table=[
            Column(by),
            count("runs"),
            Column("total_tokens", lambda row: f"{row['total_tokens']:,}", heading="tokens"),
            Column("share", lambda row: draw_bar(row["total_tokens"], most), heading=" "),
            count("failed"),
            count("cancelled"),
            Column("input_tokens", lambda row: f"{row['input_tokens']:,}", heading="in"),
            Column("output_tokens", lambda row: f"{row['output_tokens']:,}", heading="out"),
            Column("seconds", lambda row: format_span(row["seconds"]), heading="time"),
            Column("cost", lambda row: "" if row["cost"] is None else f"{row['cost']:,.2f}"),
        ],
    )
