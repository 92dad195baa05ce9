"""The steps for coding agents, `agentctl help skill`, followed literally in an empty project."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import agentctl
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.ports import find_free_port

SKILL = Path(agentctl.__file__).parent / "cli" / "templates" / "SKILL.md"

AGENT = """
async def agent(message, context):
    return f"sunny in {message}"
"""


def read_blocks() -> list[str]:
    """Return the blocks of commands of the page."""
    return re.findall(r"^```sh\n(.*?)^```", SKILL.read_text(), re.MULTILINE | re.DOTALL)


def test_local_commands_of_the_skill_work_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(AGENT)
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    lines = "".join(read_blocks()).splitlines()
    commands = [line for line in lines if re.match(r"agentctl (?!serve)(?!.* --url)", line)]

    printed = ""
    for command in commands:
        words = shlex.split(command.removesuffix(" || true"))[1:]
        ended = run_command(*words, environment=environment, folder=tmp_path)
        assert ended.code == 0 or command.endswith(" || true"), (command, ended.stderr)
        printed += ended.stdout

    assert len(commands) == 7
    assert "sunny in Oslo\n" in printed
    written = {path.name for path in tmp_path.iterdir()}
    assert {"agentctl.toml", "agentctl.schema.json", "AGENTS.md", "keys"} <= written


def test_every_step_of_the_skill_works_as_written(tmp_path: Path) -> None:
    (tmp_path / "weather.py").write_text(AGENT)
    port = str(find_free_port())
    blocks = read_blocks()
    script = "\n".join(["set -eu", *blocks]).replace("7777", port)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "AGENTCTL_SERVER__PORT": port,
    }

    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert len(blocks) == 7
    # Locally, through the server, and with curl.
    assert ended.stdout.count("sunny in Oslo\n") == 2
    assert '"content":"sunny in Oslo"' in ended.stdout


def test_help_prints_the_skill(tmp_path: Path) -> None:
    printed = run_command("help", "skill", environment={}, folder=tmp_path)
    assert printed.code == 0
    assert printed.stdout == SKILL.read_text()
