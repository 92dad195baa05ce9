"""`agentctl chat`: a conversation at a real terminal, and from a pipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.kit.conditions import PATIENCE
from tests.kit.person import sit_at


def test_conversation_keeps_its_session_and_stops_runs(
    agentctl: Agentctl, demo: Demo, environment: dict[str, str], tmp_path: Path
) -> None:
    env = environment | {"AGENTCTL_TOKEN": demo.token}
    with sit_at("chat", "slow", "--url", demo.url, env=env, folder=tmp_path) as person:
        first = re.search(r"session (\S+);", person.wait_for("conversation\n> "))
        assert first

        person.type("/help\n")
        assert "Ctrl-C stops a run" in person.wait_for("\n> ")

        person.type("count\n")
        person.wait_for("count count")
        person.type("\x03")
        assert " is CANCELLED" in person.wait_for("\n> ")

        person.type("again\n")
        person.wait_for("again again")
        person.type("\x03")
        assert " is CANCELLED" in person.wait_for("\n> ")

        person.type("/new\n")
        second = person.wait_for("\n> ").split()[-1]
        assert second != first[1]

        person.type("\x04")
        person.wait_for("continue with: agentctl chat slow --session ")
        person.wait_for(second)
        assert person.process.wait(PATIENCE) == 0

    runs = agentctl(
        "runs", "list", "--session", first[1], "-o", "json", "--config", str(demo.config)
    )
    statuses = [row["status"] for row in json.loads(runs.stdout)["data"]]
    assert statuses == ["CANCELLED", "CANCELLED"]


LISTENING = """
import asyncio
from pathlib import Path

import agentctl


async def listening(message: str, context: agentctl.RunContext):
    if message != "work":
        yield f"this is about {message}"
        return
    yield "begun"
    while not (sent := await context.messages()):
        await asyncio.sleep(0.05)
    yield f" heard {sent[0].text}"
    while not Path(__file__).with_name("go").exists():
        await asyncio.sleep(0.05)
    yield " done"
"""


def test_line_typed_while_a_run_works_is_a_message_to_it(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "listening_agent.py").write_text(LISTENING)
    (tmp_path / "agentctl.toml").write_text(CONFIG.replace("held", "listening"))
    with sit_at("chat", "listening", env=environment, folder=tmp_path) as person:
        person.wait_for("conversation\n> ")
        person.type("work\n")
        person.wait_for("begun")
        person.type("only primes\n")
        person.wait_for("sent: the next step reads it")
        person.wait_for("heard only primes")
        person.type("odd ones\n")
        person.wait_for("sent: the next step reads it")
        (tmp_path / "go").touch()
        person.wait_for("done")
        person.wait_for("answered next: odd ones")
        person.wait_for("this is about odd ones")
        person.wait_for("\n> ")

        # A run that is stopped reads no more lines.
        (tmp_path / "go").unlink()
        person.type("work\n")
        person.wait_for("begun")
        person.type("only primes\n")
        person.wait_for("heard only primes")
        person.type("even ones\n")
        person.wait_for("sent: the next step reads it")
        person.type("\x03")
        person.wait_for("not read: even ones: The run was cancelled")
        person.wait_for("\n> ")
        person.type("\x04")
        assert person.process.wait(PATIENCE) == 0


HELD = """
import asyncio
from contextlib import suppress


async def held(message: str):
    yield "begun"
    for _ in range(600):
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
"""
CONFIG = """
[[databases]]
id = "main"
url = "sqlite:///agentctl.db"
[[agents]]
id = "held"
object = "held_agent:held"
"""


def test_second_interrupt_leaves_although_the_agent_ignores_its_cancel(
    environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "held_agent.py").write_text(HELD)
    (tmp_path / "agentctl.toml").write_text(CONFIG)
    with sit_at("chat", "held", env=environment, folder=tmp_path) as person:
        person.wait_for("conversation\n> ")
        person.type("\n\ngo\n")
        person.wait_for("begun")
        person.type("\x03")
        person.wait_for("is CANCELLED")
        person.type("\x03")
        assert person.process.wait(PATIENCE) == 130


def test_each_line_of_a_pipe_is_a_message(agentctl: Agentctl, demo: Demo) -> None:
    door = ("--config", str(demo.config))
    session = "piped"
    chat = ("chat", "echo", "--session", session, *door)
    ended = agentctl(*chat, input="one\n\n/new\ntwo")
    assert (ended.code, ended.stdout) == (0, "one\n/new\ntwo\n"), ended.stderr
    listed = agentctl(
        "runs", "list", "--session", session, "-o", "name", "--config", str(demo.config)
    )
    assert len(listed.lines) == 3
    missing = agentctl("chat", "ekco", *door, input="one\ntwo\n")
    assert (missing.code, missing.stderr.count("agent not found: ekco")) == (5, 1)
    assert agentctl("chat", *door).code == 2
    assert agentctl("chat", "echo", "-o", "json", *door).code == 2
