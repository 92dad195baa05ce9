"""The work of both servers: the same agents, teams, sessions, texts, keys and model."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agentctl.auth.keys.files import write_private_key
from agentctl.auth.keys.signing import build_public_pem, generate_key
from tests.kit.deployment import Deployment

__all__ = [
    "SCOPES",
    "Session",
    "Work",
    "create_work",
    "listed_sessions",
    "single_run_sessions",
    "sized_sessions",
    "wait_for_port",
]

SCOPES = (
    "agents:read", "agents:run", "teams:read", "teams:run", "sessions:read", "sessions:write",
)  # fmt: skip

USER = "user-4711"

QUESTION = "Which of the two offers would you take, and what speaks against the other one? " * 2
ANSWER = "The first one, for its price and because it comes with somebody who repairs it. " * 6

AGENTS = [
    {
        "id": topic,
        "name": topic.title(),
        "description": f"Answers questions about {topic}",
        "instructions": f"You know about {topic}. Answer briefly, and name where you have it from.",
    }
    for topic in ("offers", "contracts", "deliveries")
]

TEAMS = [
    {
        "id": f"desk-{number}",
        "name": f"Desk {number}",
        "description": "Takes what comes in and asks who knows",
        "instructions": "Ask the member who knows, then answer from what it says.",
    }
    for number in range(5)
]

LISTED = 400

SHORT_RUNS = 5
LONG_RUNS = 50
"""Runs per session of the older and of the newer half of the sessions to list."""

SIZES = (1, 100, 1_000)


@dataclass(frozen=True)
class Session:
    """A session to create; `created_at` is in seconds."""

    session_id: str
    runs: int
    created_at: int


def sized_sessions(sizes: Iterable[int] = SIZES) -> list[Session]:
    """Return one session per number of runs, too old for the first page of a list."""
    return [Session(f"runs-{size}", size, 1_500_000_000) for size in sizes]


def listed_sessions(count: int = LISTED, longer: int = LONG_RUNS) -> list[Session]:
    """Return sessions to list; the newer half has `longer` runs each."""
    return [
        Session(
            f"listed-{number}",
            SHORT_RUNS if number < count // 2 else longer,
            1_600_000_000 + number,
        )
        for number in range(count)
    ]


def single_run_sessions(count: int) -> list[Session]:
    """Return sessions of one run, too old for the first page of a list."""
    return [Session(f"single-{number}", 1, 1_400_000_000 + number) for number in range(count)]


@dataclass(frozen=True)
class Work:
    """A folder with keys, and the data of a server."""

    folder: Path
    model_url: str
    sessions: list[Session]
    user: str = USER
    question: str = QUESTION
    answer: str = ANSWER
    agents: list[dict[str, str]] = field(default_factory=lambda: AGENTS)
    teams: list[dict[str, str]] = field(default_factory=lambda: TEAMS)

    @cached_property
    def token(self) -> str:
        """A token of an ordinary user, valid for both servers.

        It is signed once: a client that signs one for each of its connections keeps them waiting.
        """
        return Deployment(self.folder).token(self.user, *SCOPES, seconds=7_200)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def described(self, port: int) -> dict[str, Any]:
        """Return the work as JSON for a program without these classes."""
        return asdict(self) | {
            "folder": str(self.folder),
            "public_key": str(self.folder / "keys" / "signing.pub.pem"),
            "port": port,
        }


def create_work(
    folder: Path,
    model_url: str,
    sessions: list[Session],
    *,
    database: str = "sqlite:///agentctl.db",
    workers: int = 1,
) -> Work:
    """Write keys and the configuration of agentctl into an empty folder."""
    folder.mkdir(exist_ok=True)
    private = generate_key("RS256")
    write_private_key(folder / "keys" / "signing.pem", private)
    (folder / "keys" / "signing.pub.pem").write_bytes(build_public_pem(private, "RS256"))
    parts = [_HEAD.format(workers=workers, database=database, model_url=model_url)]
    parts += [_component("agents", agent, "history_runs = 0") for agent in AGENTS]
    members = json.dumps([agent["id"] for agent in AGENTS])
    parts += [_component("teams", team, f"members = {members}") for team in TEAMS]
    parts.append(_component("agents", AGENTS[0] | {"id": "remembers"}, "history_runs = 5"))
    (folder / "agentctl.toml").write_text("\n".join(parts))
    return Work(folder, model_url, sessions)


def _component(table: str, texts: dict[str, str], extra: str) -> str:
    lines = [f"{name} = {json.dumps(value)}" for name, value in texts.items()]
    return "\n".join([f"[[{table}]]", *lines, 'model = "paced"', extra, ""])


_HEAD = """
[server]
id = "benchmark"
workers = {workers}
drain_seconds = 1

[authorization]
verification_key_files = ["keys/signing.pub.pem"]

[limits]
concurrent_runs = 4096

[signing]
key_file = "keys/signing.pem"

[[databases]]
id = "main"
url = "{database}"

[[models]]
id = "paced"
provider = "openai"
model = "paced"
base_url = "{model_url}"
"""


def wait_for_port(port: int, seconds: float) -> None:
    """Wait until a process listens on the port.

    Raises:
        RuntimeError: no process listens in time.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"nobody listens on port {port}")
