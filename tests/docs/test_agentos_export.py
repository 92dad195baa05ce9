"""The program of `docs/examples/agentos` moves what agno has stored to agentctl."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE
from tests.kit.documents import ROOT
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment

EXPORT = ROOT / "docs" / "examples" / "agentos" / "export_agentos.py"
WRITE = Path(__file__).with_name("agentos_database.py")

CONFIG = """
[[models]]
id = "history"
provider = "openai"
model = "history"
base_url = "{url}"
api_key_env = "KEY"

[[agents]]
id = "adder"
model = "history"
"""


class Moved:
    """A deployment with the sessions and memories of a database of AgentOS."""

    def __init__(self, folder: Path, model_url: str) -> None:
        self.folder = folder
        self.database = folder / "agentos.db"
        (folder / "agentctl.toml").write_text(CONFIG.format(url=model_url))
        self.run_program(WRITE, str(self.database), model_url)

        self.export = self.run_program(EXPORT, str(self.database), "sessions")
        (folder / "sessions.jsonl").write_text(self.export.stdout)
        self.imported = self.run_command("sessions", "import", "sessions.jsonl")

        memories = self.run_program(EXPORT, str(self.database), "memories")
        (folder / "memories.jsonl").write_text(memories.stdout)
        assert self.run_command("memories", "import", "memories.jsonl").code == 0

    def run_program(self, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment with agno to its end."""
        ended = subprocess.run(
            [sys.executable, str(program), *words],
            env=base_environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 0, ended.stderr
        return ended

    def run_command(self, *words: str) -> Result:
        """Run a command of agentctl to its end."""
        environment = base_environment() | {"HOME": str(self.folder), "KEY": "none"}
        return run_command(*words, environment=environment, folder=self.folder)

    def read(self, *words: str) -> Any:
        """Return the document of a command that succeeds."""
        ended = self.run_command(*words, "-o", "json")
        assert ended.code == 0, ended.stderr
        return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Moved:
    return Moved(tmp_path_factory.mktemp("agentos"), model_endpoint.base_url)


def test_sessions_of_every_kind_are_imported(moved: Moved) -> None:
    assert (moved.imported.code, moved.imported.stdout) == (
        0,
        "what\tcount\nsessions\t6\nruns\t7\n",
    ), moved.imported.stderr
    listed = moved.read("sessions", "list")["data"]
    assert {row["session_id"]: row["session_type"] for row in listed} == {
        "sums": "agent",
        "broken": "agent",
        "paused": "agent",
        "cut": "agent",
        "talk": "team",
        "steps": "workflow",
    }
    assert moved.run_command("doctor", "--db").code == 0


def test_import_can_be_repeated(moved: Moved) -> None:
    again = moved.run_command("sessions", "import", "sessions.jsonl")
    assert (again.code, again.stdout) == (
        0,
        "what\tcount\nsessions that existed\t6\nruns that existed\t7\n",
    )


def test_session_keeps_its_owner_state_and_history(moved: Moved) -> None:
    session = moved.read("sessions", "get", "sums")
    assert (session["user_id"], session["session_name"]) == ("ada", "Two sums")
    assert (session["agent_id"], session["session_state"]) == ("adder", {"mood": "fine"})
    assert [(line["role"], line["content"]) for line in session["chat_history"]] == [
        ("user", '{"a": 2, "b": 3}'),
        ("assistant", "5"),
        ("user", '{"a": 4, "b": 5}'),
        ("assistant", "9"),
    ]
    runs = moved.read("sessions", "runs", "sums")
    assert session["total_tokens"] == sum(run["metrics"]["total_tokens"] for run in runs) > 0


def test_run_keeps_its_tool_calls_without_earlier_messages(moved: Moved) -> None:
    _, run = moved.read("sessions", "runs", "sums")
    assert (run["status"], run["input"], run["content"]) == ("COMPLETED", '{"a": 4, "b": 5}', "9")
    (call,) = run["tools"]
    assert (call["tool_name"], call["tool_args"], call["result"]) == ("add", {"a": 4, "b": 5}, "9")
    assert [line["role"] for line in run["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert run["messages"][1]["tool_calls"] == [
        {"id": call["tool_call_id"], "name": "add", "arguments": {"a": 4, "b": 5}}
    ]


def test_cancelled_run_has_only_calls_with_a_result(moved: Moved) -> None:
    (run,) = moved.read("sessions", "runs", "cut")
    assert (run["status"], run["created_at"]) == ("CANCELLED", "2026-11-18T11:06:40.000000Z")
    assert run["finished_at"] == run["cancel_requested_at"] == "2026-11-18T11:06:42.500000Z"
    assert run["metrics"]["total_tokens"] == 7
    # What cannot be stored is kept as text: half of an object, an array, an integer of 65 bits.
    _, asking, result, *_ = run["messages"]
    assert asking["tool_calls"] == [
        {"id": "c1", "name": "add", "arguments": {"arguments": '{"a": 1'}},
        {"id": "c2", "name": "add", "arguments": {"arguments": "[2]"}},
        {"id": "c3", "name": "add", "arguments": {"a": "12345678901234567891"}},
    ]
    assert (result["tool_call_id"], result["content"]) == ("c1", "failed")


def test_member_of_a_team_is_below_its_run(moved: Moved) -> None:
    team, member = moved.read("sessions", "runs", "talk")
    assert (team["team_id"], team["parent_run_id"]) == ("crew", None)
    assert (member["agent_id"], member["parent_run_id"]) == ("writer", team["run_id"])
    assert team["member_runs"] == [member["run_id"]]
    assert team["tools"][0]["tool_name"] == "delegate_task_to_member"


def test_workflow_keeps_its_answer_and_tokens(moved: Moved) -> None:
    (run,) = moved.read("sessions", "runs", "steps")
    assert (run["workflow_id"], run["input"]) == ("line", "hello to the line")
    assert run["content"] == "hello to the line"
    assert run["metrics"]["total_tokens"] > 0


def test_failed_run_keeps_its_error(moved: Moved) -> None:
    (run,) = moved.read("sessions", "runs", "broken")
    assert (run["status"], run["content"], run["error"]["code"]) == ("ERROR", None, "RUN_FAILED")
    assert run["error"]["detail"]


def test_run_that_waits_is_named_and_left_out(moved: Moved) -> None:
    assert moved.read("sessions", "runs", "paused") == []
    (line,) = moved.export.stderr.splitlines()
    assert line.startswith("left out: run ")
    assert line.endswith(" is PAUSED")


def test_imported_conversation_continues(moved: Moved) -> None:
    words = ("runs", "start", "--agent", "adder", "--session", "sums", "-m", "and then?")
    ended = moved.run_command(*words, "--as-user", "ada")
    assert ended.code == 0, ended.stderr
    sent = json.loads(ended.stdout)
    assert ["user", '{"a": 4, "b": 5}'] in sent
    assert ["assistant", "9"] in sent


def test_memories_are_imported(moved: Moved) -> None:
    (memory,) = moved.read("memories", "list", "--user", "ada")["data"]
    assert (memory["memory"], memory["topics"]) == ("Likes tea", ["drinks"])
