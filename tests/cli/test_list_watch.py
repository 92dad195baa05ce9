"""The option `--watch` of lists: changes as lines, a redrawn screen, a lost server."""

from __future__ import annotations

import asyncio
import io
import json
import os
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import pytest

from agentctl.cli.io import IO, using_io
from agentctl.cli.show.columns import RUNS
from agentctl.cli.show.output import FieldsOutput, Format
from agentctl.cli.show.watched_list import WatchedList, cut_lines, find_changes, watch_list
from agentctl.cli.target import Target
from agentctl.errors import Unavailable
from agentctl.interface.operations import Operations
from agentctl.records.document import Document, build_document
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.local_project import write_config
from tests.kit.tables import every_row


class Stopped(Exception):
    """The end of the documents."""


class Screen(io.TextIOWrapper):
    """A terminal in memory."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        return cast(io.BytesIO, self.buffer).getvalue().decode()


def _build_page(**statuses: str) -> Document[Any]:
    data = [{"run_id": run_id, "status": status} for run_id, status in statuses.items()]
    return build_document({"data": data, "meta": {}})


def _watch(
    form: Format, documents: list[Document[Any] | Exception], fields: str | None = None
) -> tuple[str, str]:
    """Watch the documents, one in each read; return stdout and stderr."""
    out = Screen()
    err = io.StringIO()
    following = iter(documents)

    async def read() -> Document[Any]:
        document = next(following, Stopped())
        if isinstance(document, Exception):
            raise document
        return document

    target = Target(cast(Operations, None), "on http://server", "")
    watched = WatchedList(target, read, FieldsOutput(form, fields), RUNS, "run_id", 0.001)
    size = {"COLUMNS": "60", "LINES": "6", "TERM": "xterm", "NO_COLOR": "1"}
    with (
        patch.dict(os.environ, size),
        using_io(IO(io.StringIO(), out, err)),
        pytest.raises(Stopped),
    ):
        asyncio.run(watch_list(watched))
    return out.text(), err.getvalue()


def test_each_change_is_a_line_and_a_lost_server_is_noted_once() -> None:
    lost = Unavailable("The server cannot be reached")
    first = _build_page(r1="RUNNING")
    second = _build_page(r2="PENDING", r1="COMPLETED")
    pages: list[Document[Any] | Exception] = [first, first, lost, lost, second]
    out, err = _watch("jsonl", [*pages, _build_page(r1="COMPLETED")])
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["change"], *line["record"].values()) for line in lines] == [
        ("added", "r1", "RUNNING"),
        ("added", "r2", "PENDING"),
        ("changed", "r1", "COMPLETED"),
        ("removed", "r2", "PENDING"),
    ]
    assert err.splitlines() == [
        "The server cannot be reached; retrying every 0.001 s",
        "the server is available again",
    ]


def test_only_a_change_of_the_chosen_fields_is_a_line() -> None:
    out, _ = _watch("jsonl", [_build_page(r1="RUNNING"), _build_page(r1="ERROR")], "run_id")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"change": "added", "record": {"run_id": "r1"}}
    ]


def test_a_screen_is_redrawn_within_its_size() -> None:
    many = _build_page(**{f"r{number}": "RUNNING" for number in range(9)})
    lost = Unavailable("The server cannot be reached")
    out, _ = _watch("table", [many, lost, _build_page(r1="COMPLETED")])
    frames = out.split("\x1b[2K")
    assert "\x1b[1A" in out  # drawn over the frame before
    assert "r0" in out
    assert "r8" not in out
    assert "… 7 more lines" in out
    assert "! The server cannot be reached; retrying" in out
    assert "✓ completed" in frames[-1]
    assert max(len(line) for line in out.replace("\x1b", "\n").splitlines()) <= 70


def test_lines_beyond_the_screen_are_counted() -> None:
    assert cut_lines(["a", "b", "c"], 3) == ["a", "b", "c"]
    assert cut_lines(["a", "b", "c"], 2) == ["a", "… 2 more lines"]
    assert cut_lines(["a", "b", "c"], 0) == ["a"]
    assert find_changes({}, {}) == []


@every_row(
    "group, options, reason",
    [
        ("runs", ("--watch",), "it has no meaning with -o tsv"),
        ("sessions", ("--watch", "-o", "table"), "stdout is not a terminal"),
        ("sessions", ("--every", "1"), "--every needs --watch"),
    ],
)
def test_a_list_that_cannot_be_watched_is_refused(
    agentctl: Agentctl, tmp_path: Path, group: str, options: tuple[str, ...], reason: str
) -> None:
    refused = agentctl(group, "list", *options, "--config", str(write_config(tmp_path)))
    assert (refused.code, refused.stdout) == (2, "")
    assert reason in refused.stderr


def test_ctrl_c_ends_the_watch(agentctl: Agentctl, terminal: Terminal, tmp_path: Path) -> None:
    config = ("--config", str(write_config(tmp_path)))
    agentctl("runs", "start", "--agent", "echo", "--message", "hi", "--session", "s1", *config)
    shown = terminal(
        "runs",
        "list",
        "--watch",
        "--every",
        "0.1",
        *config,
        env={"TERM": "xterm"},
        types="\x03",
        when="\x1b[2K",
    )
    assert shown.code == 130
    assert "✓ completed" in shown.screen
    assert "Traceback" not in shown.screen
