"""The texts of the screen: cells of the list, and the transcript of the selected run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from agentctl.cli.durations import format_elapsed, format_span
from agentctl.cli.options import find_component
from agentctl.cli.show.transcript.draw import SHORT_ID, STYLES, Printer
from agentctl.cli.show.transcript.model import build_run_view, clean_line, parse_time
from agentctl.cli.show.transcript.texts import Look, describe_run
from agentctl.cli.top.feed import Row
from agentctl.records.times import now

__all__ = ["COLUMNS", "build_cells", "draw_run", "format_state"]

COLUMNS = ("RUN", "STATUS", "COMPONENT", "USER", "AGE", "TOKENS", "LAST")

_LONGEST_CELL = 60
_LONGEST_INPUT = 200


def build_cells(row: Row) -> list[Text]:
    """Return the cells of a row, in the order of `COLUMNS`; an ended run is dim."""
    run = row.run
    style = "" if row.is_live else "dim"
    kind, component = find_component(run) or ("", "?")
    suffix = "" if kind == "agent" else f" {kind}"
    tokens = (run.get("metrics") or {}).get("total_tokens")
    name = row.run_id if len(row.run_id) <= SHORT_ID else row.run_id[:SHORT_ID]
    return [
        Text(("  └ " if row.level else "") + clean_line(name), style),
        format_state(run),
        _cell(f"{component}{suffix}", style),
        _cell(run.get("user_id") or "", style),
        Text(_format_age(run), style, justify="right"),
        Text("" if tokens is None else f"{tokens:,}", style, justify="right"),
        _cell(_describe_last(run), style),
    ]


def format_state(run: Mapping[str, Any]) -> Text:
    """Return glyph and words of a run's state, in their color."""
    phase = describe_run(run)
    text = Text(f"{phase.glyph} {phase.words}", STYLES.get(phase.color, phase.color))
    return text.append("!", "yellow") if phase.warning else text


def draw_run(record: Mapping[str, Any], width: int) -> Text:
    """Return the transcript of a run, as `runs get` prints it."""
    lines: list[str] = []
    file = io.TextIOWrapper(io.BytesIO(), "utf-8")
    console = Console(
        file=file, width=max(width, 20), force_terminal=True, color_system="standard",
        emoji=False, highlight=False, markup=False,
    )  # fmt: skip
    printer = Printer(console, Look(short_ids=True), lines.append)
    given = str(record.get("input") or "")
    if len(given) > _LONGEST_INPUT:
        record = {**record, "input": f"{given[:_LONGEST_INPUT]}…"}
    printer.print_run(build_run_view(record))
    return Text.from_ansi("".join(lines))


def _cell(text: object, style: str) -> Text:
    line = clean_line(text)
    return Text(line if len(line) <= _LONGEST_CELL else f"{line[:_LONGEST_CELL]}…", style)


def _format_age(run: Mapping[str, Any]) -> str:
    moment = parse_time(run.get("created_at"))
    return "" if moment is None else format_span(max(0, now() / 1e6 - moment.timestamp()))


def _describe_last(run: Mapping[str, Any]) -> str:
    """Return what the run does now, or the facts about its cancel and its end."""
    phase = describe_run(run)
    if phase.sentence:
        return phase.sentence
    open_spans = [
        span
        for span in run.get("spans") or []
        if not span.get("finished_at") and span.get("kind") in ("tool", "model")
    ]
    if phase.name == "running" and open_spans:
        span = open_spans[-1]
        began = parse_time(span.get("started_at"))
        age = "" if began is None else f" {format_elapsed(now() / 1e6 - began.timestamp())}"
        sign = "ƒ" if span["kind"] == "tool" else "model"
        return f"{sign} {span.get('name')}{age}"
    return str(run.get("input") or "") if run.get("parent_run_id") else ""
