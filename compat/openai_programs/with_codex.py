"""The program Codex of OpenAI, in a folder of its user."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

from operations import (
    KEY,
    URL,
    ask_as_administrator,
    due,
    expect,
    operation,
    report,
    wait_for_live_run,
    wait_for_status,
)

CODEX = Path(os.environ["PROGRAMS"]) / "node" / "node_modules" / ".bin" / "codex"


def build_line(folder: Path, model: str, *words: str) -> list[str]:
    provider = f'{{name="agentctl",base_url="{URL}",wire_api="responses",env_key="CODEX_KEY"}}'
    line = [str(CODEX), "exec", "--json", "--skip-git-repo-check", "-C", str(folder)]
    # There may be no sandbox on the machine of the test.
    line += ["--dangerously-bypass-approvals-and-sandbox", "-m", model]
    line += ["-c", f"model_providers.agentctl={provider}", "-c", 'model_provider="agentctl"']
    return [*line, *words]


def build_environment(folder: Path, key: str = KEY) -> dict[str, str]:
    return {**os.environ, "HOME": str(folder), "CODEX_KEY": key}


def codex(*words: str, model: str = "plan", folder: Path | None = None, key: str = KEY) -> str:
    """Return the events of Codex in a folder."""
    place = folder or Path(tempfile.mkdtemp(prefix="codex-"))
    ended = subprocess.run(
        build_line(place, model, *words),
        env=build_environment(place, key),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=55,
    )
    return ended.stdout


def find_texts(events: str) -> list[str]:
    items = [json.loads(line).get("item", {}) for line in events.splitlines()]
    return [item["text"] for item in items if item.get("type") == "agent_message"]


def call(name: str, **arguments: object) -> dict[str, object]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": name, "type": "function", "function": function}]}


def plan(*answers: dict[str, object]) -> str:
    return f"Do the work\n{json.dumps(answers)}"


@operation
def first_message() -> None:
    events = codex(plan({"content": "hi there"}))
    expect(find_texts(events) == ["hi there"], events)


@operation
def task_with_a_tool_of_the_agent_and_one_of_codex() -> None:
    folder = Path(tempfile.mkdtemp(prefix="codex-"))
    command = "echo 5 > sum.txt && cat sum.txt"
    steps = [call("add", a=2, b=3), call("exec_command", cmd=command), {"content": "written"}]
    events = codex(plan(*steps), model="adder", folder=folder)
    expect(find_texts(events) == ["written"], events)
    expect((folder / "sum.txt").read_text() == "5\n", events)
    newest = ask_as_administrator("/runs?limit=1&component_id=adder")["data"][0]
    names = [tool["tool_name"] for tool in newest["tools"]]
    expect(names == ["add", "exec_command"], newest)


@operation
def second_message_of_a_conversation() -> None:
    folder = Path(tempfile.mkdtemp(prefix="codex-"))
    codex(plan({"content": "one"}), folder=folder)
    events = codex("resume", "--last", plan({"content": "two"}), folder=folder)
    expect(find_texts(events) == ["two"], events)


@operation
def interrupt_cancels_the_run() -> None:
    folder = Path(tempfile.mkdtemp(prefix="codex-"))
    program = subprocess.Popen(
        build_line(folder, "hang", "x"),
        env=build_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        session_id = wait_for_live_run("hang")
        program.send_signal(signal.SIGINT)
        wait_for_status(session_id, "CANCELLED")
    finally:
        program.kill()
        program.wait()


@due
def unknown_model() -> None:
    events = codex("hi", model="gone")
    expect("model does not exist" in events, events)


@due
def wrong_key() -> None:
    events = codex("hi", key="wrong")
    expect("401" in events, events)


if __name__ == "__main__":
    report()
