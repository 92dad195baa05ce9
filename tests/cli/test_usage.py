"""`agentctl usage`: tables, pictures and data of the sums."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

from agentctl.cli.commands.usage import draw_bar
from agentctl.interface.requests import RunRequest
from tests.kit.command import Result, run_command, stay_in_hour
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import open_service, user
from tests.kit.tables import every_row

Usage = Callable[..., Result]

STARTED: tuple[tuple[Literal["agent", "team"], str, str | None], ...] = (
    ("agent", "echo", "ann"), ("agent", "echo", "bob"), ("agent", "http-500", "ann"),
    ("agent", "dear", "ann"), ("team", "desk", None),
)  # fmt: skip

DEAR = """
[[models]]
id = "dear"
provider = "openai"
model = "echo"
base_url = "{url}"
price = {{ input = 500_000, output = 1_000_000, cached = 0 }}
[[agents]]
id = "dear"
model = "dear"
"""


@pytest.fixture(scope="module")
def usage(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Usage]:
    """`agentctl usage` on a local database with some runs."""
    folder = tmp_path_factory.mktemp("usage")
    url = model_endpoint.base_url
    deployment = create_deployment(folder, url, extra=DEAR.format(url=url))

    async def start() -> None:
        async with open_service(deployment) as service:
            for kind, component_id, caller in STARTED:
                request = RunRequest("one two three")
                await user(service, caller).runs.create(kind, component_id, request)

    def run(*arguments: str, screen: bool = False, encoding: str = "utf-8") -> Result:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "COLUMNS": "120",
            "NO_COLOR": "1",
            "PYTHONIOENCODING": encoding,
        }
        return run_command(
            "usage", *arguments, environment=environment, folder=folder, screen=screen
        )

    with stay_in_hour():
        asyncio.run(start())
        yield run


def read(result: Result) -> Any:
    assert result.code == 0, result.stderr
    return json.loads(result.raw)


def test_rows_have_the_sums_of_each_group(usage: Usage) -> None:
    report = read(usage("--by", "component,model", "-o", "json"))
    rows = {(row["component_id"], row["model"]): row for row in report["data"]}
    dear = rows["dear", "dear"]
    plain = dear["input_tokens"] - dear["cache_read_tokens"]
    assert dear["cost"] == plain / 2 + dear["output_tokens"]
    assert (rows["echo", "echo"]["runs"], rows["echo", "echo"]["cost"]) == (2, None)
    assert rows["http-500", "http-500"]["failed"] == 1
    lines = usage("--by", "component,model", "-o", "tsv").lines
    head = lines[0].split("\t")
    assert head[:4] == ["component_type", "component_id", "model", "runs"]
    assert len(lines) == len(rows) + 1
    of_ann = read(usage("--user", "ann", "--by", "user", "-o", "json"))
    assert [(row["user_id"], row["runs"]) for row in of_ann["data"]] == [("ann", 3)]
    assert read(usage("--agent", "echo", "-o", "json"))["total"]["runs"] == 2


def test_table_names_what_has_no_price(usage: Usage) -> None:
    shown = usage("--by", "model", screen=True)
    (line,) = (line for line in shown.lines if line.startswith("echo"))
    assert line.split()[-6:].count("?") == 1
    assert "at least" in shown.stderr
    assert " without a known price" in shown.stderr
    cut = usage("--by", "user", "--limit", "1", screen=True)
    assert "showing 1 of 3 groups: --limit shows more" in cut.stderr


def test_picture_shows_failures_without_color(usage: Usage) -> None:
    drawn = usage("--plot", "--step", "day", screen=True)
    assert drawn.code == 0, drawn.stderr
    assert "\x1b[3" not in drawn.raw.decode()
    (today,) = (line for line in drawn.lines if "✗" in line and line.startswith("20"))
    assert today.split()[1:3] == ["5", "████████████████✗✗✗✗"]
    (cause,) = (line for line in drawn.lines if line.startswith("MODEL_UNAVAILABLE"))
    assert cause.split()[1] == "1"
    assert any(line.startswith("team") and "desk" in line for line in drawn.lines)
    points = usage("--plot", "-o", "tsv").lines
    assert len(points) == 25
    overview = read(usage("--plot", "--by", "model", "-o", "json"))
    assert {"dear", "echo"} <= {group["model"] for group in overview["data"]}


@every_row(
    "arguments, said",
    [
        (("--by", "week"), "session, not 'week'"),
        (("--step", "day"), "--step needs --plot"),
        (("--plot", "--by", "day"), "--plot needs --by component"),
        (("--agent", "echo", "--component", "echo"), "exclude --type and --component"),
        (("--since", "7"), "is not a time span"),
        (("--limit", "0"), "limit must be"),
        (("--budgets", "--since", "7d"), "--budgets has no other filter than --user"),
        (("--budgets", "--by", "day"), "--budgets has no other filter than --user"),
        (("--budgets", "--agent", "echo"), "--budgets has no other filter than --user"),
    ],
)
def test_wrong_options_are_refused(usage: Usage, arguments: tuple[str, ...], said: str) -> None:
    refused = usage(*arguments)
    assert (refused.code, refused.stdout) == (2, "")
    assert said in refused.stderr


def test_bars_are_in_proportion() -> None:
    assert len(draw_bar(100, 100)) == 20
    assert len(draw_bar(50, 100)) == 10
    assert draw_bar(0, 100) == draw_bar(5, 0) == ""
    assert len(draw_bar(1, 1_000_000)) == 1
