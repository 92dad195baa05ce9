"""Tables for people: short, within the screen, and never with half an id."""

from __future__ import annotations

import pytest

from agentctl.cli.show.table import Column, format_fields, format_table, format_time
from agentctl.cli.show.terminal import display_width, truncate
from tests.cli.conftest import Terminal
from tests.cli.demo import Demo

ID = "01997a3c-5f0e-7c7e-8f39-2f1f0a6c1b5d"
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


def test_what_no_row_has_is_left_out() -> None:
    made = format_table([RECORD, {"run_id": "r2", "status": ""}], COLUMNS, None)
    assert made.lines[0].split() == ["RUN", "ID", "STATUS", "CREATED", "SESSION", "ID"]
    assert made.lines[2] == "r2"
    assert made.left_out == []
    assert format_table([{}], COLUMNS, None).lines == ["RUN ID", ""]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (TIME, "2026-11-20 10:27:29Z"),
        ("2026-11-20T10:27:29Z", "2026-11-20 10:27:29Z"),
        ("2026-11-20T10:27:29+01:00", "2026-11-20T10:27:29+01:00"),
        ("soon", "soon"),
    ],
)
def test_times_are_to_the_second(text: str, shown: str) -> None:
    assert format_time(text) == shown


@pytest.mark.parametrize("room", [36, 45, 66, 80, 100, 110, 120, 160, 400])
def test_it_keeps_to_the_screen_and_ids_stay_whole(room: int) -> None:
    record = {**RECORD, "name": "漢字 " * 30, "user_id": "somebody"}
    made = format_table([record], COLUMNS, room)
    assert max(map(display_width, made.lines)) <= room
    assert made.lines[1].startswith(ID)
    assert ("session id" in made.left_out) is (made.lines[1].count(ID) == 1)


def test_the_last_columns_give_way_first_and_some_never() -> None:
    record = {**RECORD, "user_id": "me", "note": "long " * 30}
    made = format_table([record], COLUMNS, 80)
    assert made.left_out == ["session id"]
    assert "long long long" in made.lines[1]


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [("abcdef", 6, "abc..."), ("漢字漢字", 6, "漢..."), ("漢字", 8, "漢字"), ("abc", 2, "...")],
)
def test_a_cut_shows_that_it_is_one(text: str, columns: int, shown: str) -> None:
    assert truncate(text, columns) == shown


def test_a_record_is_shown_without_its_empty_fields() -> None:
    assert format_fields({**RECORD, "status": None}, COLUMNS) == [
        f"run id      {ID}",
        "created     2026-11-20 10:27:29Z",
        f"session id  {ID}",
    ]


def test_a_terminal_says_what_there_was_no_room_for(terminal: Terminal, demo: Demo) -> None:
    demo.run("t-1", "hello")
    here = ("--session", "t-1", "--config", str(demo.config))
    narrow = terminal("runs", "list", *here, env={"COLUMNS": "74"}).screen.splitlines()
    assert max(map(len, narrow)) <= 74
    assert narrow[0].split() == ["RUN", "ID", "STATUS", "COMPONENT", "AGE", "TOOK"]
    assert narrow[-1] == "no room for session id, tokens, user; -o tsv has every column"
    wide = terminal("runs", "list", *here, env={"COLUMNS": "200"}).screen.splitlines()
    assert wide[0].split()[-4:] == ["SESSION", "ID", "TOKENS", "USER"]


def test_a_terminal_shows_a_run_and_what_was_said(terminal: Terminal, demo: Demo) -> None:
    run_id = demo.run("t-2", "hello\nthere")
    seen = terminal("runs", "get", run_id, "--config", str(demo.config))
    assert "parent run id" not in seen.screen
    assert seen.screen.endswith("\n\ninput:\n  hello\n  there\n\ncontent:\n  hello\n  there\n")
