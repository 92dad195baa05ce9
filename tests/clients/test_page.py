"""The examples of docs/client.md, in their order, and their types as a user's mypy sees them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentctl.client import Client
from tests.clients.service import Service
from tests.kit.documents import page

ROOT = Path(__file__).parents[2]
BLOCKS = [block.text for block in page("docs/client.md").blocks("python")]

TYPED = """
from typing import assert_type

from agentctl.client import AsyncClient, Client, Event
from agentctl.records.runs import CancelRecord, RunRecord

token = ""
client = Client("http://127.0.0.1", token=token)
assert_type(client.runs.get("r"), RunRecord)
assert_type(client.runs.cancel("r", wait=3.0), CancelRecord)
assert_type(client.runs.start(agent="a", message="x")["content"], str | None)
for event in client.runs.follow("r"):
    assert_type(event, Event)
assert_type(client.call(lambda server: server.runs.get("r")), RunRecord)


async def use(other: AsyncClient) -> None:
    assert_type(await other.runs.get("r"), RunRecord)
    async for event in other.runs.stream(team="t"):
        assert_type(event, Event)
    assert_type([run async for run in other.runs.list(status="ERROR")], list[RunRecord])
"""

WRONG = """
client.runs.get(3)
client.runs.list(status="DONE")
client.runs.start(agent="a", mesage="x")
client.runs.get("r")["contents"]
client.sessions.rename("s")
client.approvals.approve("a")
"""


def test_examples_run(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    first, awaited, *others = BLOCKS
    names = {"token": service.token()}
    for text in (first, awaited):
        exec(text.replace("http://127.0.0.1:7777", service.url), names)
    with Client(service.url, service.token()) as client:
        for text in others:
            exec(text, {"client": client})
    assert capsys.readouterr().out.split("\n") == [
        "HelloCOMPLETED Hello again",
        "Helloalready_final COMPLETED",
        "NOT_FOUND Session not found",
        "",
    ]


def test_users_see_types(tmp_path: Path) -> None:
    examples = TYPED + "\n".join(text for text in BLOCKS if "asyncio" not in text)
    (tmp_path / "right.py").write_text(examples)
    (tmp_path / "wrong.py").write_text(TYPED + WRONG)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary"]
    # mypy reports nothing about the modules of a package that users have installed.
    command += ["--follow-imports", "silent"]
    options = ["--cache-dir", str(tmp_path / "cache"), "right.py", "wrong.py"]
    done = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    first = TYPED.count("\n") + 2
    found = {line.split(": error:")[0] for line in done.stdout.splitlines() if ": error:" in line}
    assert found == {f"wrong.py:{first + at}" for at in range(6)}, done.stdout + done.stderr
