"""Transcripts of sessions and runs: pages as files, hostile content, and the commands."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import select
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agentctl.cli.io import IO, using_io
from agentctl.cli.show.output import Format
from agentctl.cli.show.terminal import display_width
from agentctl.cli.show.transcript.markdown import split_blocks
from agentctl.cli.show.transcript.pages import create_page
from agentctl.records.items import Child, build_items
from agentctl.records.phase import describe_run
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.texts import Look
from agentctl.transcripts.timeline import draw_timeline
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import running_command
from tests.cli.test_pages import CONTROLS, read_session
from tests.kit.conditions import PATIENCE
from tests.kit.person import sit_at

_numbers = itertools.count()


def view_items(
    run: dict[str, Any], runs: Sequence[dict[str, Any]], cut: int | None
) -> dict[str, Any]:
    """Return a run record in the view `items`, with the members among `runs`."""
    hidden = ("content", "messages", "tools", "reasoning_content")
    view = {name: value for name, value in run.items() if name not in hidden}
    members = [
        Child({**member, "phase": describe_run(member)}, str(member.get("input") or ""))
        for member in runs
        if member["parent_run_id"] == run["run_id"]
    ]
    return view | {"phase": describe_run(run), "items": build_items(run, members, cut)}


def draw(
    page: dict[str, Any],
    *,
    form: Format = "text",
    width: int = 80,
    look: Look | None = None,
    cut: int | None = None,
) -> str:
    """Draw a session with its runs, as the command does."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    written: list[str] = []
    children: dict[str, list[dict[str, Any]]] = {}
    for run in page["runs"]:
        shown_run = view_items(run, page["runs"], cut)
        children.setdefault(str(run.get("parent_run_id")), []).append(shown_run)
    with (
        patch.dict(os.environ, {"COLUMNS": str(width), "TERM": "dumb"}),
        using_io(IO(io.StringIO(), out, io.StringIO())),
    ):
        shown = create_page(form, look or Look(), written.append)
        shown.print_session(page["session"], f"{len(children['None'])} runs")
        for number, run in enumerate(children["None"], 1):
            shown.print_run(build_drawn_run(run, children), number)
            shown.print_details(run)
        shown.print_foot("all runs: --all")
    return "".join(written)


@pytest.fixture
def page() -> dict[str, Any]:
    """A session with tools, members, a step, a failure and cancels."""
    return read_session()


def test_huge_values_are_cut_and_sized(page: dict[str, Any]) -> None:
    run = next(run for run in page["runs"] if run["tools"])
    run["messages"] = []
    run["content"] = "word " * 1_000_000
    run["input"] = "x" * 1_000_000
    run["tools"] = [{"tool_call_id": "1", "tool_name": "n" * 10_000, "tool_args": {"a": "b" * 9**6},
                     "tool_call_error": False, "result": "r" * 36_000}]  # fmt: skip
    drawn = draw({**page, "runs": [run]})
    assert len(drawn) < 60_000
    assert max(map(display_width, drawn.splitlines())) <= 80
    assert "… 5.0 MB in all" in drawn
    assert "36 KB" in drawn


def test_long_texts_are_cut_by_the_server(through: Agentctl, demo: Demo) -> None:
    name = f"long-{next(_numbers)}"
    run_id = demo.run(name, "word " * 5_999 + "last.")
    for command in (("sessions", "get", name), ("runs", "get", run_id)):
        shown = through(*command, "-o", "text")
        # The input is in the transcript as well: its size is in bytes.
        assert shown.stdout.count("… 30 KB in all: --full") == 1
        assert shown.stdout.count("… 30,000 characters in all: --full") == 1
        assert "last." not in shown.stdout
        whole = through(*command, "-o", "text", "--full")
        assert whole.stdout.count("last.") == 2
        assert "in all" not in whole.stdout
    record = json.loads(through("runs", "get", run_id, "-o", "json").stdout)
    assert "truncated" not in record["messages"][-1]


def test_cut_results_have_their_length(page: dict[str, Any]) -> None:
    run = next(run for run in page["runs"] if run["tools"])
    run["messages"] = []
    run["content"] = ""
    run["tools"] = [{"tool_call_id": "1", "tool_name": "dump", "tool_args": {},
                     "tool_call_error": False, "result": "r" * 5_000_000}]  # fmt: skip
    drawn = draw({**page, "runs": [run]}, cut=20_000)
    assert "ƒ dump()  5,000,000 characters, --full " in drawn
    marked = draw({**page, "runs": [run]}, form="markdown", cut=20_000)
    assert "`dump()` done · 5,000,000 characters, --full" in marked


def test_left_out_messages_are_named(page: dict[str, Any]) -> None:
    run = next(run for run in page["runs"] if run["messages"][-1]["role"] == "assistant")
    omission = {"kind": "tool_result", "count": 2, "first": "a", "last": "b", "size": 7_000}
    run["messages"][-1]["compacted"] = {"omissions": [omission], "window": 100}
    for form in ("text", "markdown"):
        drawn = " ".join(draw({**page, "runs": [run]}, form=form).split())
        assert "not shown whole to the model: results of tools: 2 (7000 bytes)" in drawn


def test_a_growing_text_is_split_into_complete_blocks() -> None:
    text = "# One\n\ntwo\nthree\n\n| a |\n| - |\n| b |\n\n```\ncode\n\nmore"
    done = ""
    rest = ""
    for character in text:
        complete, rest = split_blocks(rest + character)
        done += complete
    assert (done, rest) == (text[: text.index("```")], "```\ncode\n\nmore")


@pytest.fixture
def session(demo: Demo) -> str:
    """A session with three runs."""
    name = f"transcript-{next(_numbers)}"
    for text in ("one", "**two**", "three"):
        demo.run(name, text)
    return name


def test_session_is_a_transcript_through_pipes(on_demo: Agentctl, session: str) -> None:
    shown = on_demo("sessions", "get", session, "-o", "text")
    assert shown.code == 0
    assert CONTROLS.findall(shown.stdout) == []
    assert shown.lines[1].startswith("3 runs · ")
    heads = [line.split()[0] for line in shown.lines if " · run " in line]
    assert heads == ["1", "2", "3"]
    last = on_demo("sessions", "get", session, "-o", "text", "--last", "1")
    assert last.lines[1].startswith("3 runs, the last 1 shown · ")
    assert [line.split()[0] for line in last.lines if " · run " in line] == ["3"]
    raw = on_demo("sessions", "get", session, "-o", "text", "--raw")
    assert ("**two**" in raw.stdout, shown.stdout.count("two")) == (True, 2)
    marked = on_demo("sessions", "get", session, "-o", "markdown")
    assert marked.stdout.count("\n## ") == 3


def test_members_and_steps_are_in_the_transcript(on_demo: Agentctl, demo: Demo) -> None:
    name = f"m-{next(_numbers)}"
    start = ("runs", "start", "-m", "good day", "--session", name, "-o", "name", "--no-stream")
    team = on_demo(*start, "--team", "duo").stdout.strip()
    shown = on_demo("runs", "get", team, "-o", "text")
    assert re.search(r"▸ echo.* ✓ \d.* tokens", shown.stdout)
    opened = on_demo("runs", "get", team, "-o", "text", "--members")
    assert re.search(r"▾ echo.*\n +good day", opened.stdout)
    steps = on_demo(*start[:4], "-o", "name", "--no-stream", "--workflow", "relay").stdout.strip()
    assert re.search(r"▸ .*echo.*\n.*▸ .*duo", on_demo("runs", "get", steps, "-o", "text").stdout)


def test_a_terminal_gets_styles_and_a_short_id(
    terminal: Terminal, demo: Demo, session: str
) -> None:
    here = ("sessions", "get", session, "--config", str(demo.config), "--no-pager")
    seen = terminal(*here, env={"TERM": "xterm", "NO_COLOR": "", "COLUMNS": "80"}).screen
    assert "\x1b[1mtwo\x1b[0m" in seen
    assert re.search(r" run [0-9a-f]{8}-[0-9a-f]{4}\x1b", seen)
    plain = terminal(*here).screen
    assert CONTROLS.findall(plain) == []
    assert "✓ completed" in plain


def test_a_long_transcript_goes_to_the_pager(
    terminal: Terminal, environment: dict[str, str], demo: Demo, session: str, tmp_path: Path
) -> None:
    file = tmp_path / "paged"
    pager = {"AGENTCTL_PAGER": f"tee {file}", "TERM": "xterm", "LINES": "5"}
    here = ("sessions", "get", session, "--config", str(demo.config))
    # The pager has the terminal of the process.
    with sit_at(*here, env=environment | pager, folder=tmp_path) as person:
        person.wait_for("three")
        assert person.process.wait(PATIENCE) == 0
    assert "three" in file.read_text()
    file.unlink()
    terminal(*here, "--no-pager", env=pager)
    terminal(*here, env={**pager, "LINES": "100"})
    assert not file.exists()


def span(kind: str, name: str, times: str, **more: str) -> dict[str, str | None]:
    """Return a span of a record.

    Args:
        times: the seconds of its start, its end and, if there is one, of its first token.
    """
    start, end, *first = (f"2026-11-22T08:00:0{each}Z" for each in times.split())
    return {
        "kind": kind,
        "name": name,
        "started_at": start,
        "finished_at": end,
        "first_token_at": first[0] if first else None,
        **more,
    }


def test_timeline_shows_models_tools_and_members() -> None:
    run = {
        "run_id": "r",
        "started_at": "2026-11-22T08:00:00Z",
        "spans": [
            span("tool", "delegate_task_to_member", "1 3", member_run_id="m"),
            span("member", "clerk", "1 3", member_run_id="m"),
            span("model", "fast", "0 1 0.5"),
            span("model", "fast", "3 4 3"),
        ],
    }
    member = {"run_id": "m", "spans": [span("tool", "nap", "1 2", status="failed")]}

    ruler, *rows, total = draw_timeline(run, {"r": [member]}, 76)

    assert ruler[26:].split() == ["0", "4.0", "s"]
    assert [(row[:26].rstrip(), *row[26:].split()) for row in rows] == [
        ("◇ fast", "▒" * 5 + "█" * 5, "1.0", "s"),
        ("→ clerk", "█" * 20, "2.0", "s"),
        ("  ƒ nap ✗", "█" * 10, "1.0", "s"),
        ("◇ fast", "█" * 10, "1.0", "s"),
    ]
    assert total == "total 4.0 s: model 50%, tool 25%, rest 25%"


def test_timeline_of_a_run_without_times_says_so() -> None:
    assert draw_timeline({"run_id": "r"}, {}, 80) == ["no times are recorded for this run"]


def test_run_is_shown_with_its_timeline(on_demo: Agentctl, demo: Demo) -> None:
    run_id = demo.run(f"timeline-{next(_numbers)}", "hello")
    shown = on_demo("runs", "get", run_id, "-o", "text", "--timeline")
    assert re.search(r"^◇ echo .*█", shown.stdout, re.MULTILINE)
    assert CONTROLS.findall(shown.stdout) == []


def test_follow_goes_on_with_live_and_new_runs(
    demo: Demo, environment: dict[str, str], agentctl: Agentctl, terminal: Terminal, tmp_path: Path
) -> None:
    name = f"follow-{next(_numbers)}"
    log = tmp_path / "follow.log"
    here = ("--config", str(demo.config))
    there = ("--url", demo.url)
    demo.run(name, "first question")
    live = demo.run(name, "a | b", agent="slow", leave=True)
    token = environment | {"AGENTCTL_TOKEN": demo.token}
    get = ("sessions", "get", name, "--follow")
    with (
        running_command(*get, *here, environment=token, log=log) as local,
        running_command(*get, *there, environment=token, log=log) as remote,
    ):
        for command in (local, remote):
            read_until(command.stdout, b"slow")
        assert agentctl("runs", "cancel", live, "--reason", "enough", *here).code == 0
        demo.run(name, "third question")
        for command in (local, remote):
            rest = read_until(command.stdout, b"third question\n\n").decode()
            assert '"enough"' in rest
            assert CONTROLS.findall(rest) == []
    interrupted = terminal(*get, *here, types="\x03", when="third question")
    assert interrupted.code == 130
    assert "interrupted: session" in interrupted.screen
    refused = agentctl(*get, "-o", "json", *here)
    assert (refused.code, "has no effect with -o json" in refused.stderr) == (2, True)


def read_until(output: io.BufferedReader, text: bytes) -> bytes:
    """Read the output of a command until a text has arrived."""
    seen = b""
    while text not in seen:
        ready, _, _ = select.select([output], [], [], PATIENCE)
        assert ready, seen
        data = os.read(output.fileno(), 65_536)
        assert data, seen
        seen += data
    return seen
