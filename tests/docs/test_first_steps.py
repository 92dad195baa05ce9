"""The first ten minutes of a new user, with the commands as they are printed.

The README itself is executed by `test_commands.py`. Here are the steps that programs print: those
of `agentctl init` for each kind of agent, with its test, its server and the console; and the client
of OpenAI in docs/openai.md.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.docs.shell import Shell
from tests.docs.test_commands import URL, start_demo
from tests.kit.conditions import PATIENCE
from tests.kit.documents import page
from tests.kit.ports import find_free_port

ANSWERS = {
    "function": "me, message 1: hello",
    "pydantic-ai": '{"identify_user":"me"}',
    "langgraph": "me, after 0 messages: hello",
    "mcp": "note 1: hello",
}
BINARIES = str(Path(sys.executable).parent)


def read_steps(printed: str) -> tuple[list[str], list[str]]:
    """Return the commands that `init` prints for the first and for the second terminal."""
    first, _, second = printed.partition("next, in one terminal:")[2].partition("and in another:")
    return (
        [line.strip() for line in first.splitlines() if line.strip()],
        [line.strip() for line in second.splitlines() if line.strip()],
    )


@contextmanager
def open_shells(folder: Path) -> Iterator[tuple[Shell, Shell]]:
    """Open two terminals in the same folder, with agentctl on the PATH and a separate port."""
    # The variable is read by `init`, which prints the port, and by the server.
    variables = {"AGENTCTL_SERVER__PORT": str(find_free_port()), "BROWSER": "true"}
    with Shell(folder / "one", variables) as one, Shell(folder / "two", variables) as two:
        for shell in (one, two):
            shell.run(f"export PATH={shlex.quote(BINARIES)}:$PATH; cd {shlex.quote(str(folder))}")
        yield one, two


def run_all(shell: Shell, commands: list[str]) -> str:
    """Run commands one after the other, and return what they printed."""
    printed = ""
    for command in commands:
        code, output = shell.run(command)
        assert code == 0, f"$ {command}\n{output}"
        printed += output
    return printed


@contextmanager
def served(shell: Shell, command: str, url: str) -> Iterator[None]:
    """Run the command of a server in a terminal until the end of the block."""
    assert command == "agentctl serve"
    code, _ = shell.run(f"{command} 2>server.log & echo $! >server.pid")
    assert code == 0
    deadline = time.monotonic() + PATIENCE
    try:
        while True:
            try:
                if httpx2.get(f"{url}/ready").status_code == 200:
                    break
            except httpx2.TransportError:
                pass
            assert time.monotonic() < deadline, shell.run("cat server.log")[1]
            time.sleep(0.1)
        yield
    finally:
        code, output = shell.run("kill $(cat server.pid); wait $(cat server.pid)")
        assert code == 0, output


@pytest.mark.parametrize("kind", [None, *ANSWERS])
def test_steps_of_a_new_project_work_as_printed(tmp_path: Path, kind: str | None) -> None:
    options = "" if kind is None else f" --agent {kind}"
    with open_shells(tmp_path) as (one, two):
        first, second = read_steps(run_all(one, [f"agentctl init 'my project'{options}"]))
        *before, serve = first
        assert before[0] == second[0] == "cd 'my project'"
        tested = run_all(one, before)
        assert kind is None or "1 passed" in tested
        (url,) = set(re.findall(r"http://[\d.]+:\d+", "\n".join(second)))
        with served(one, serve, url):
            printed = run_all(two, second)
            assert ANSWERS.get(kind or "", "") in printed
            assert f"console: {url}/console" in printed
            # The console shows the sessions that the commands create: one user has all tokens.
            assert re.findall(r"minted for (\S+)", printed) == ["me", "me"]
            # The token opens all that the console shows.
            code, token = two.run("agentctl console --no-open 2>/dev/null")
            assert code == 0
            headers = {"Authorization": f"Bearer {token.strip()}"}
            assert "<title>" in httpx2.get(f"{url}/console").text
            for place in ("agents", "teams", "workflows", "sessions", "runs", "auth/me"):
                assert httpx2.get(f"{url}/{place}", headers=headers).status_code == 200, place
            for name in ("agents", "teams", "workflows"):
                assert two.run(f"agentctl {name} list --url {url}")[0] == 0


GRAPH = """\
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict[str, list[tuple[str, str]]]:
    return {"messages": [("ai", f"sunny in {state['messages'][-1].content}")]}


agent = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
"""
"""An agent as a reader of the README has it, without a model."""


def test_a_reader_of_the_readme_hosts_an_agent_in_three_lines(tmp_path: Path) -> None:
    readme = page("README.md")
    here, there = (block.text.splitlines() for block in readme.blocks("sh")[1:3])
    # What the first two lines install is there.
    assert here[0] == "python3 -m venv env"
    assert here[1] == 'env/bin/pip install "$HOME/agentctl[langgraph]"'
    (tmp_path / "weather.py").write_text(GRAPH)

    with open_shells(tmp_path) as (one, two):
        run_all(one, [line.replace("env/bin/", "") for line in here[2:]])
        assert readme.blocks("toml")[0].text in (tmp_path / "agentctl.toml").read_text()
        url = "http://127.0.0.1:" + one.run("echo $AGENTCTL_SERVER__PORT")[1].strip()
        commands = [line.replace("env/bin/", "").replace(URL, url) for line in there]
        with served(one, "agentctl serve", url):
            printed = run_all(two, commands)

    assert "sunny in Paris?" in printed
    assert f"console: {url}/console" in printed


def test_client_of_openai_in_the_page_works_as_printed(tmp_path: Path) -> None:
    (code,) = page("docs/openai.md").blocks("python")
    with start_demo(tmp_path / "demo") as demo:
        with Shell(tmp_path / "shell", {}) as shell:
            assert shell.run(demo.export)[0] == 0
            token = shell.run("agentctl token mint --sub me --scope user 2>/dev/null")[1].strip()
        program = code.text.replace(URL, demo.url) + "print(following.output_text)\n"
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.defpath, "TOKEN": token},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (0, "hello\nmore\n"), ended.stderr
