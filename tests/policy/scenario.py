"""The sessions, runs and callers of the tests in this folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agentctl.auth.principal import Principal
from agentctl.interface.requests.administration import Grant, NewAccount
from agentctl.records.authorization import KNOWN_SCOPES
from tests.kit.deployment import ADMIN, Deployment
from tests.policy.in_process import HttpRequest, InProcessServer, serve_in_process
from tests.policy.tokens import signed

__all__ = ["ABSENT_RUN", "Scenario", "new_account", "open_scenario"]

ABSENT_RUN = "01900000-0000-7000-8000-000000000000"

RUNS = (
    ("me", "agents/echo", "mine"),
    ("other", "agents/echo", "theirs"),
    ("other", "teams/desk", "theirs-team"),
    ("other", "workflows/line", "theirs-flow"),
    ("other", "agents/hang", "theirs-live"),
    ("no sub", "agents/echo", "nobodys"),
)
"""User, component and id of each session. The run of `hang` does not end."""


@dataclass(frozen=True)
class Scenario:
    """An application with sessions and callers.

    Attributes:
        served: the application.
        runs: the id of the run in each session.
        bearers: the token of each kind of caller.
    """

    served: InProcessServer
    runs: dict[str, str]
    bearers: dict[str, str | None]

    def ask(self, who: str, request: str, body: Any = None) -> HttpRequest:
        """Build a request such as `GET /agents` of one of the callers."""
        method, _, path = request.partition(" ")
        content = None if body is None else json.dumps(body).encode()
        return HttpRequest(method, path, self.bearers[who], content)


def new_account(served: InProcessServer, name: str, *scopes: str) -> str:
    """Create a service account and return its token."""
    boss = served.service.operations_for(Principal("boss", admin=True, sees_all_users=True))
    new = NewAccount(name, tuple(map(Grant, scopes)), allow_privileged_scopes=True)
    document = served.call(lambda: boss.accounts.create(new))
    return str(document.value["token"])


@contextmanager
def open_scenario(deployment: Deployment) -> Iterator[Scenario]:
    """Run the world's application, with sessions of several users in it."""
    with serve_in_process(deployment) as served:
        bearers = _bearers(served)
        runs = {session: "" for _, _, session in RUNS}
        scenario_data = Scenario(served, runs, bearers)
        asks = []
        for who, component, session in RUNS:
            body = {"message": "echo", "session_id": session, "stream": False}
            body["background"] = session == "theirs-live"
            asks.append(scenario_data.ask(who, f"POST /{component}/runs", body))
        for session, answer in zip(runs, served.answers(asks), strict=True):
            assert answer.status_code in (200, 202), answer.text
            runs[session] = answer.json()["run_id"]
        yield scenario_data


def _bearers(served: InProcessServer) -> dict[str, str | None]:
    deployment = served.deployment
    everything = KNOWN_SCOPES
    here = ("theirs", "theirs-team", "theirs-flow", "theirs-live", "absent")
    narrow = [f"sessions:{one}:{act}" for one in here for act in ("read", "write", "delete")]
    return {
        "nobody": None,
        "bad": "not.a.token",
        "expired": signed(deployment, "me", *everything, exp=1_000_000_000),
        "powerless": signed(deployment, "me"),
        "me": signed(deployment, "me", *everything),
        "other": signed(deployment, "other", *everything),
        "no sub": signed(deployment, None, *everything),
        "one agent": signed(deployment, "me", "agents:echo:read", "agents:echo:run"),
        "their ids": signed(deployment, "me", *narrow, "agents:run", "agents:read"),
        "reader": signed(deployment, "me", "agents:read", "sessions:read", "config:read"),
        "admin": signed(deployment, "boss", ADMIN),
        "account": new_account(served, "all", *everything),
        "account of one": new_account(served, "one", "agents:echo:read", "sessions:mine:read"),
        "account of admin": new_account(served, "admin", ADMIN),
    }
