"""Tables for people: short, within the screen, and never with half an id."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from unittest.mock import patch

from agentctl.cli.io import IO, using_io
from agentctl.cli.show.columns import RUNS
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.table import (
    Column,
    format_fields,
    format_table,
    format_time,
    print_table,
    shorten_ids,
    wrap_with_indent,
)
from agentctl.cli.show.terminal import display_width
from tests.cli.conftest import Terminal
from tests.cli.demo import Demo
from tests.kit.tables import every_row

ID = "01997a3c-5f0e-7c7e-8f39-2f1f0a6c1b5d"
UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12} ")
TIME = "2026-11-20T10:27:29.123456Z"
COLUMNS = [
    Column("run_id"),
    Column("status"),
    Column("created_at", heading="created"),
    Column("name", look="text"),
    Column("session_id"),
    Column("user_id"),
    Column("note", look="whole"),
]
RECORD = {"run_id": ID, "status": "ERROR", "created_at": TIME, "session_id": ID}


def drawn(
    record: dict[str, object], width: int, columns: Sequence[Column] = COLUMNS
) -> tuple[list[str], list[str]]:
    """Draw a table of one record on a terminal: its lines, and the hidden columns."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with patch.dict(os.environ, {"COLUMNS": str(width), "NO_COLOR": "1"}):
        hidden = print_table([record], columns, IO(io.StringIO(), out, io.StringIO()))
    out.seek(0)
    return [line.rstrip() for line in out.read().splitlines()], hidden


def test_columns_without_values_are_left_out() -> None:
    lines = format_table([RECORD, {"run_id": "r2", "status": ""}], COLUMNS)
    assert lines[0].split() == ["RUN", "ID", "STATUS", "CREATED", "SESSION", "ID"]
    assert lines[2] == "r2"
    assert format_table([{}], COLUMNS) == ["RUN ID", ""]


@every_row(
    "text, shown",
    [
        (TIME, "2026-11-20 10:27:29Z"),
        ("2026-11-20T10:27:29Z", "2026-11-20 10:27:29Z"),
        ("2026-11-20T10:27:29+01:00", "2026-11-20T10:27:29+01:00"),
        ("soon", "soon"),
    ],
)
def test_times_are_shown_to_the_second(text: str, shown: str) -> None:
    assert format_time(text) == shown


@every_row("width", [36, 45, 66, 80, 100, 110, 120, 160, 400])
def test_a_table_fits_the_terminal_and_ids_stay_whole(width: int) -> None:
    lines, hidden = drawn({**RECORD, "name": "漢字 " * 30, "user_id": "somebody"}, width)
    assert max(map(display_width, lines)) <= width
    assert len(lines) == 2
    assert lines[1].startswith(ID)
    assert ("session id" in hidden) is (lines[1].count(ID) == 1)


def test_the_last_columns_are_hidden_first_and_whole_text_is_wrapped() -> None:
    lines, hidden = drawn({**RECORD, "user_id": "me", "note": "long " * 30}, 80)
    assert hidden == ["created", "session id"]
    assert sum(line.count("long") for line in lines) == 30
    assert max(map(display_width, lines)) <= 80


def test_cut_text_ends_with_an_ellipsis() -> None:
    lines, _ = drawn({"run_id": ID, "name": "漢字" * 20}, 60)
    assert lines[1].endswith("字 …")


def test_a_record_is_shown_without_its_empty_fields() -> None:
    assert format_fields({**RECORD, "status": None}, COLUMNS) == [
        f"run id      {ID}",
        "created     2026-11-20 10:27:29Z",
        f"session id  {ID}",
    ]


@every_row(
    "id_field, note", [("run_id", "no runs"), ("memory_id", "no memories"), ("key", "no results")]
)
def test_an_empty_table_says_what_there_is_none_of(id_field: str, note: str) -> None:
    errors = io.StringIO()
    with using_io(IO(io.StringIO(), io.StringIO(), errors)):
        CommandOutput("table").show_records([], RUNS, id_field)
    assert errors.getvalue() == f"{note}\n"


def test_a_terminal_names_the_hidden_columns(terminal: Terminal, demo: Demo) -> None:
    demo.run("t-1", "hello")
    here = ("--session", "t-1", "--config", str(demo.config))
    narrow = terminal("runs", "list", *here, env={"COLUMNS": "60"}).screen.splitlines()
    assert max(map(len, narrow)) <= 60
    shown = ["RUN", "STATUS", "COMPONENT", "AGE", "TOOK", "TOKENS"]
    assert narrow[0].split() == shown
    assert narrow[-1] == "hidden: session, user (-o wide shows all)"
    wide = terminal("runs", "list", "-o", "wide", *here, env={"COLUMNS": "50"}).screen.splitlines()
    assert " ".join(wide[0].split()).endswith(
        "SESSION USER CREATED AT FINISHED AT STOPPED AT REQUEST ID UNPRICED TOKENS"
    )
    assert UUID.match(wide[1])
    assert not UUID.match(narrow[1])


def test_an_error_is_shown_at_any_width() -> None:
    failed = {**RECORD, "error": {"code": "MODEL_UNAVAILABLE"}, "agent_id": "clerk"}
    lines, hidden = drawn(failed, 80, RUNS.table)
    assert lines[1].startswith(ID[:13] + "  ✗ failed  clerk  ")
    assert lines[1].endswith("MODEL_UNAVAILABLE")
    assert "error" not in hidden
    narrow, hidden = drawn(failed, 40, RUNS.table)
    assert narrow[1].startswith(f"{ID[:13]}  ")
    assert narrow[1].endswith("MODEL_UNAVAILABLE")
    assert "component" in hidden


def test_numbers_are_aligned_to_the_right() -> None:
    column = Column("total_tokens", heading="tokens", right=True)
    lines = format_table([{"total_tokens": 5}, {"total_tokens": 12345}], [column])
    assert lines == ["TOKENS", "     5", " 12345"]


def test_ids_are_cut_to_their_least_unique_prefix() -> None:
    near = ID[:15] + "f" + ID[16:]
    far = "11" + ID[2:]
    assert shorten_ids([ID, near, ID, far, "s1"]) == [ID[:16], near[:16], ID[:16], far[:13], "s1"]


def test_long_values_are_wrapped_below_themselves() -> None:
    lines = wrap_with_indent("name  ", "some words and " + "x" * 60, 30)
    assert lines[0] == "name  some words and"
    assert all(line.startswith(" " * 6) and len(line) <= 30 for line in lines[1:])
    assert "".join(line.strip() for line in lines[1:]) == "x" * 60
    path = f"/agents/echo/runs/{'0' * 20}/cancel"
    assert wrap_with_indent("name  ", path, 30) == [
        "name  /agents/echo/runs", f"      /{'0' * 20}", "      /cancel",
    ]  # fmt: skip
    assert wrap_with_indent("name  ", "x" * 60, None) == ["name  " + "x" * 60]
