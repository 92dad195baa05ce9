"""`agentctl usage`: tokens and cost by day, user, component, model, version or session; budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast, get_args

from agentctl.cli.commands.budgets import list_budgets
from agentctl.cli.help import join_alternatives
from agentctl.cli.io import current_io
from agentctl.cli.options import NO_CHOICE, ComponentChoice, select_component
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.columns import format_cost, format_distance
from agentctl.cli.show.output import (
    FieldsOption,
    FieldsOutput,
    OutputOption,
    resolve_format,
    write_json,
    write_line,
)
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.interface.requests.administration import OverviewFilter, UsageFilter
from agentctl.records.text import format_count
from agentctl.records.times import format_elapsed
from agentctl.records.usage import Step, UsageKey

EXAMPLE = "agentctl usage --by day,model --since 7d"

_COUNTS = (
    "runs", "completed", "failed", "cancelled", "member_runs", "unreported_runs", "model_calls",
    "input_tokens", "output_tokens", "total_tokens", "cache_read_tokens", "cache_write_tokens",
    "reasoning_tokens", "unpriced_tokens", "cost",
)  # fmt: skip
_GROUPS: Mapping[UsageKey, tuple[str, ...]] = {
    "day": ("day",),
    "user": ("user_id",),
    "component": ("component_type", "component_id"),
    "model": ("model",),
    "version": ("version",),
    "session": ("session_id",),
}
_TIMES = ("first_token", "duration")

BAR_COLUMNS = 20

_BLOCKS = " ▏▎▍▌▋▊▉█"


@with_target(without=("by",), order=(..., "db_id", "limit"))
async def show_usage(
    target: Target,
    filter: UsageFilter,
    group_by: str | None = option(
        "--by",
        "FIELDS",
        "day, user, component, model or version, several with commas; or session (default: day,"
        " with --plot component)",
    ),
    plot: bool = flag("--plot", "Plot runs, failures, durations, tokens and cost over time"),
    step: Step | None = option("--step", "STEP", "With --plot: hour or day"),
    budgets: bool = flag("--budgets", "List the budgets of the current periods and their usage"),
    choice: ComponentChoice = NO_CHOICE,
    output: OutputOption = None,
    fields: FieldsOption = None,
) -> None:
    """Show tokens and cost of finished runs by day, user, component, model or session.

    Members and background work are included. Times are UTC. Costs are estimates in US dollars,
    without tokens whose price is unknown; see the page on usage. With --budgets, only --user
    selects: the budgets of this user.
    """
    if budgets:
        is_plain = group_by is None and not plot and step is None and choice == NO_CHOICE
        if not is_plain or filter != UsageFilter(user_id=filter.user_id):
            raise UsageError("--budgets has no other filter than --user")
        await list_budgets(target, FieldsOutput(output, fields), filter.user_id)
        return

    matching = select_component(filter, choice.resolve())
    group_keys = _parse_group_keys(group_by)
    if not plot:
        if step is not None:
            raise UsageError("--step needs --plot", hint="use --by day for the sums of days")
        report_filter = replace(matching, by=group_keys or ("day",))
        await _show_report(target, report_filter, FieldsOutput(output, fields))
        return

    # The picture has the time on one axis, so it has room for one other key.
    if len(group_keys) > 1 or group_keys in (("day",), ("session",)):
        raise UsageError("--plot needs --by component, model, user or version")
    key: Any = group_keys[0] if group_keys else "component"
    shared = {name: getattr(matching, name) for name in UsageFilter.__slots__ if name != "by"}
    overview_filter = OverviewFilter(**shared, step=step or "hour", by=key)

    # The picture is a table, which would otherwise be TSV where the output is no terminal.
    if output is None and fields is None:
        output = "table"
    await _show_overview(target, overview_filter, FieldsOutput(output, fields))


def _parse_group_keys(text: str | None) -> tuple[UsageKey, ...]:
    known_keys: tuple[UsageKey, ...] = get_args(UsageKey)
    names = [name for name in (text or "").replace(" ", "").split(",") if name]
    for name in names:
        if name not in known_keys:
            raise UsageError(f"--by must be {join_alternatives(known_keys)}, not {name!r}")
    return cast(tuple[UsageKey, ...], tuple(dict.fromkeys(names)))


async def _show_report(target: Target, filter: UsageFilter, out: FieldsOutput) -> None:
    resolve_format(out.output)
    document = await target.operations.usage.get(filter)
    if out.format == "json" and out.fields is None:
        write_json(document.raw)
        return
    report = document.value
    columns = [name for key in filter.by for name in _GROUPS[key]]
    out.show_list(report["data"], _build_columns(columns, report["data"]), columns[-1])
    if out.is_table:
        _note_rest(report, len(report["data"]))


async def _show_overview(target: Target, filter: OverviewFilter, out: FieldsOutput) -> None:
    resolve_format(out.output)
    document = await target.operations.usage.get_overview(filter)
    if out.format == "json" and out.fields is None:
        write_json(document.raw)
        return

    overview = document.value
    time_length = len("2026-11-29T10:00") if filter.step == "hour" else len("2026-11-29")
    time_column = Column("at", lambda row: row["at"][:time_length])

    points = Columns(
        tsv=plain_columns("at", *_COUNTS, *_TIMES, "failures"),
        table=[time_column, *_draw_runs(overview["points"])],
    )
    out.show_list(overview["points"], points, "at")
    if out.format != "table":
        return

    causes = overview["total"]["failures"]
    if causes:
        most = causes[0]["runs"]
        write_line("")
        out.show_list(causes, _build_causes(most), "error_code")

    if overview["data"]:
        names = _GROUPS[filter.by]
        groups = Columns(
            tsv=plain_columns(*names), table=[*_name_columns(names), *_draw_runs(overview["data"])]
        )
        write_line("")
        out.show_list(overview["data"], groups, names[-1])

    _note_rest(overview, len(overview["data"]))

    count = overview["waiting"]["approvals"]
    if count:
        oldest = format_distance(overview["waiting"]["oldest_at"])
        waiting = format_count(count, "approval")
        note(f"{waiting} pending, the oldest for {oldest}: agentctl approvals list")


def _build_columns(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Columns:
    most = max((row["total_tokens"] for row in rows), default=0)
    return Columns(
        tsv=plain_columns(*names, *_COUNTS),
        table=[
            *_name_columns(names),
            _build_count_column("runs"),
            _build_count_column("total_tokens", "tokens"),
            Column("share", lambda row: draw_bar(row["total_tokens"], most), heading=" "),
            Column("cost", _format_cost, right=True),
            _build_count_column("failed"),
            _build_count_column("member_runs", "members"),
            _build_count_column("input_tokens", "in"),
            _build_count_column("output_tokens", "out"),
            _build_count_column("cache_read_tokens", "cached"),
        ],
    )


def _name_columns(names: Sequence[str]) -> list[Column]:
    def build_column(name: str) -> Column:
        heading = name.removesuffix("_id")
        return Column(name, lambda row: row[name] or "(none)", heading=heading)

    return [build_column(name) for name in names]


def _draw_runs(rows: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Return the columns with a bar of the runs: ✗ for failed runs, ■ for cancelled runs."""
    most = max((row["runs"] for row in rows), default=0)

    def draw(row: Mapping[str, Any]) -> str:
        parts = [
            (row["completed"], "█", "#"),
            (row["failed"], "✗", "x"),
            (row["cancelled"], "■", "o"),
        ]
        return draw_parts(parts, most)

    return [
        _build_count_column("runs"),
        Column("share", draw, heading=" "),
        _build_count_column("failed"),
        Column("duration", lambda row: _format_times(row["duration"]), heading="p50/p95/p99"),
        Column("first_token", lambda row: _format_times(row["first_token"])),
        _build_count_column("total_tokens", "tokens"),
        Column("cost", _format_cost, right=True),
    ]


def _build_causes(most: int) -> Columns:
    return Columns(
        tsv=plain_columns("error_code", "runs"),
        table=[
            Column("error_code", heading="cause of failure"),
            _build_count_column("runs"),
            Column("share", lambda row: draw_bar(row["runs"], most), heading=" "),
        ],
    )


def _build_count_column(name: str, heading: str = "") -> Column:
    return Column(name, lambda row: f"{row[name]:,}" if row[name] else "", heading, right=True)


def _format_cost(row: Mapping[str, Any]) -> str:
    if row["cost"] is None:
        return "?"
    if not row["total_tokens"]:
        return ""
    cost = format_cost(row["cost"])
    return f"> {cost}" if row["unpriced_tokens"] else cost


def _format_times(times: Mapping[str, Any]) -> str:
    if not times["count"]:
        return ""
    return " ".join(format_elapsed(times[name]) for name in ("p50", "p95", "p99"))


def _note_rest(report: Mapping[str, Any], shown: int) -> None:
    total = report["total"]
    cost = _format_cost(total).replace("> ", "at least ")
    price = {"": "", "?": ", cost not known"}.get(cost, f", {cost} US dollars")
    runs = format_count(total["runs"], "run")
    tokens = format_count(total["total_tokens"], "token")
    period = f"{report['since'][:16]}Z to {report['before'][:16]}Z"
    note(f"{period}: {runs}, {tokens}{price}")

    if total["unpriced_tokens"] and total["cost"] is not None:
        note(f"{format_count(total['unpriced_tokens'], 'token')} without a known price")
    begin = report.get("next_before")
    if begin:
        note(f"too many users: their sums begin at {begin[:16]}Z, earlier ones: --before {begin}")
    if shown < report["groups"]:
        note(f"showing {shown} of {format_count(report['groups'], 'group')}: --limit shows more")


def draw_bar(value: int, most: int) -> str:
    """Return a bar for a value, 20 columns for the value `most`."""
    if most <= 0 or value <= 0:
        return ""
    if not _is_unicode():
        return "#" * max(1, round(value / most * BAR_COLUMNS))
    eighths = max(1, round(value / most * BAR_COLUMNS * 8))
    return ("█" * (eighths // 8) + _BLOCKS[eighths % 8]).strip()


def draw_parts(parts: list[tuple[int, str, str]], most: int) -> str:
    """Return a bar of at most 20 columns of several parts; a part that is not 0 has a column.

    Args:
        parts: the value, the character, and the one for a terminal that has only ASCII.
        most: the sum of the parts of the longest bar.
    """
    total = sum(value for value, _, _ in parts)
    if most <= 0 or total <= 0:
        return ""

    columns = [max(1, round(value / most * BAR_COLUMNS)) if value else 0 for value, _, _ in parts]
    while sum(columns) > BAR_COLUMNS:
        columns[columns.index(max(columns))] -= 1

    is_unicode = _is_unicode()
    characters = (block if is_unicode else plain for _, block, plain in parts)
    return "".join(character * count for character, count in zip(characters, columns, strict=True))


def _is_unicode() -> bool:
    return (current_io().out.encoding or "").lower().startswith("utf")
