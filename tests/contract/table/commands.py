"""Rows of commands: each works locally and with a server, and prints the same document.

They are asked on the data that the rows of all targets have left. `tests/cli` has their options,
their tables and what they ask.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["COMMANDS", "CommandRow"]

ABSENT = "01900000-0000-7000-8000-000000000000"


@dataclass(frozen=True)
class CommandRow:
    """A command that is executed twice: with the configuration, and with the URL of its server."""

    words: tuple[str, ...]
    """The command; `{name}` stands for the id that a row kept."""

    has: str
    """A text that it must print: on stdout, or on stderr if it fails."""

    code: int = 0

    who: str = "me"
    """The caller: `me`, as the user of the local command, or `admin`."""

    is_same: bool = True
    """False if the moment of the command changes its answer."""

    hint: str = ""
    """A text of the hint of an error. The hint also names the target."""

    def __str__(self) -> str:
        return f"{' '.join(self.words)} as {self.who}: {self.code}"


READS = [
    CommandRow(("agents", "list"), '"agent_id":"echo"'),
    CommandRow(("agents", "get", "echo"), '"agent_id":"echo"'),
    CommandRow(("agents", "versions", "echo"), '"is_current":true'),
    CommandRow(("agents", "diff", "echo"), '"changes"'),
    CommandRow(("teams", "list"), '"team_id":"desk"'),
    CommandRow(("workflows", "get", "line"), '"workflow_id":"line"'),
    CommandRow(("sessions", "list", "--limit", "3"), '"session_id"'),
    CommandRow(("sessions", "get", "mine"), '"mine"'),
    CommandRow(("sessions", "runs", "mine"), "{agent_run}"),
    CommandRow(("sessions", "list", "--type", "team", "--name", "hEL"), '"mine-team"'),
    CommandRow(("runs", "list", "--status", "ERROR"), "{failed_run}"),
    CommandRow(("runs", "get", "{team_run}"), "{team_call}"),
    CommandRow(("runs", "messages", "{agent_run}"), "[]"),
    CommandRow(("files", "list"), "{loose_file}"),
    CommandRow(("files", "get", "{loose_file}"), '"origin":"upload"'),
    CommandRow(("approvals", "list", "--status", "approved"), "{decided_approval}", who="admin"),
    CommandRow(("approvals", "get", "{decided_approval}"), '"approved"', who="admin"),
    CommandRow(("accounts", "list"), '"ever"', who="admin", is_same=False),
    CommandRow(("halts", "list", "--all"), "{halt}", who="admin"),
    CommandRow(("halts", "get", "{halt}"), "{halt}", who="admin"),
    CommandRow(("usage", "--by", "user"), '"me"', who="admin"),
    CommandRow(("runs", "failures"), "{failed_run}", who="admin"),
    CommandRow(("audit", "list", "--limit", "1"), '"principal"', who="admin", is_same=False),
    CommandRow(("webhooks", "list"), "[]", who="admin"),
    CommandRow(("usage", "--budgets"), "[]", who="admin"),
]

CHANGES = [
    CommandRow(("sessions", "rename", "mine", "Renamed"), '"Renamed"'),
    CommandRow(("memories", "add", "Likes cake", "--topic", "food"), '"Likes cake"'),
    CommandRow(("memories", "list", "--search", "cake"), '"Likes cake"', is_same=False),
    CommandRow(("runs", "start", "--agent", "echo", "-m", "hi", "--no-stream"), '"COMPLETED"'),
]

REFUSALS = [
    CommandRow(("sessions", "get", "nothing"), "error: session not found: nothing", 5),
    CommandRow(("runs", "get", ABSENT), "error: run not found: ", 5),
    CommandRow(("agents", "get", "nothing"), "error: agent not found: nothing", 5),
    CommandRow(("agents", "get", "ecko"), "error: agent not found", 5, hint="did you mean echo? "),
    CommandRow(("runs", "list", "--tag="), "error: tag must be 1 to 256 characters", 2),
    CommandRow(("sessions", "rename", "mine", "x" * 256), "error: session_name", 2),
    CommandRow(("sessions", "summarize", "mine"), "makes summaries", 1),
    CommandRow(
        ("runs", "start", "--agent", "echo", "-m", "x", "--session", "mine-team", "--no-stream"),
        "error: ",
        6,
    ),
]

COMMANDS = [*READS, *CHANGES, *REFUSALS]
