"""Public agents run against a scripted model: each record equals what model and tools have seen."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compat.agents.page import PAGE, replace_lists
from compat.agents.serving import (
    AgentServer,
    Library,
    Turn,
    create_library,
    find_differences,
    find_untold,
    wait_until,
)
from compat.agents.table import AGENTS, PENDING, PublicAgent
from tests.kit.scripted_models import ScriptedModels, models

__all__ = ["models"]

EVERY = os.environ.get("AGENTCTL_TEST_PEERS") == "1"

PACKAGES = str(Path(__file__).parents[1] / ".peers" / "agents")
"""The folder of packages that `make compat` installs."""

FEW = {
    "langgraph": ["tooled", "handoff"],
    "pydantic_ai": ["bank", "jokes"],
    "functions": ["loop", "voting"],
}
"""Agents of libraries that are installed, all in one server; `make compat` runs each of all."""

FIRST = "first question"
SECOND = "second question"


WORKING = {
    library: [name for name in agents if (name, "*") not in PENDING]
    for library, agents in AGENTS.items()
}
"""The agents that work, by library."""


@pytest.fixture(scope="session")
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels
) -> Library:
    folder: Path = tmp_path_factory.mktemp(request.param)
    chosen = {request.param: WORKING[request.param]} if request.param in WORKING else FEW
    return create_library(chosen, folder, models)


@pytest.fixture(scope="session")
def first_turns(library: Library) -> dict[str, Turn | Exception]:
    """The first run of a session for each agent, in a server that has ended."""
    turns: dict[str, Turn | Exception] = {}
    with library.serve(PACKAGES) as server:
        for name in library.agents:
            try:
                turns[name] = server.turn(name, FIRST, f"{name}-restart")
            except Exception as error:
                turns[name] = error
    return turns


@pytest.fixture(scope="session")
def server(library: Library, request: pytest.FixtureRequest) -> Iterator[AgentServer]:
    if EVERY:
        request.getfixturevalue("first_turns")
    with library.serve(PACKAGES) as served:
        yield served


def test_lists_of_the_page_are_current() -> None:
    text = PAGE.read_text()
    assert text == replace_lists(text), "run: python -m compat.agents.page"


few_agents = pytest.mark.parametrize(
    ("library", "agent"),
    [("few", name) for agents in FEW.values() for name in agents if not EVERY],
    indirect=["library"],
    scope="session",
)

every_agent = pytest.mark.parametrize(
    ("library", "agent"),
    [(library, name) for library, agents in WORKING.items() for name in agents if EVERY],
    indirect=["library"],
    scope="session",
)


@few_agents
def test_runs_equal_what_was_seen(server: AgentServer, agent: str) -> None:
    """The tests below in four runs: a record, the next turn, a cancel, and the turn after it."""
    public = server.library.agents[agent]
    first = server.turn(agent, FIRST, agent, "streamed")
    check_equal(public, first)
    second = server.turn(agent, SECOND, agent)
    check_equal(public, second)
    check_told(public, first, second, "history")
    call = first.calls[-1]
    check_cancel_in_model_call(server, agent, f"{agent}-cancel", (call.role, call.number))


@every_agent
@pytest.mark.parametrize("mode", ["waiting", "streamed", "background"])
def test_record_equals_what_was_seen(server: AgentServer, agent: str, mode: str) -> None:
    skip_pending(agent, mode)
    turn = server.turn(agent, FIRST, f"{agent}-{mode}", mode)
    check_equal(server.library.agents[agent], turn)


@every_agent
def test_next_turn_after_a_restart_is_told(
    server: AgentServer, agent: str, first_turns: dict[str, Turn | Exception]
) -> None:
    skip_pending(agent, "restart")
    public = server.library.agents[agent]
    first = first_turns[agent]
    assert isinstance(first, Turn), first
    check_equal(public, first)
    second = server.turn(agent, SECOND, f"{agent}-restart")
    check_equal(public, second)
    check_told(public, first, second, "history", "restart")


@every_agent
def test_next_turn_is_told(server: AgentServer, agent: str) -> None:
    skip_pending(agent, "history")
    public = server.library.agents[agent]
    first = server.turn(agent, FIRST, f"{agent}-history")
    second = server.turn(agent, SECOND, f"{agent}-history")
    check_equal(public, second)
    check_told(public, first, second, "history")


@every_agent
def test_cancel_in_each_model_call(server: AgentServer, agent: str) -> None:
    skip_pending(agent, "cancel-model")
    calls = server.turn(agent, FIRST, f"{agent}-calls").calls
    for number, place in enumerate(dict.fromkeys((call.role, call.number) for call in calls)):
        check_cancel_in_model_call(server, agent, f"{agent}-cancel-model-{number}", place)


@every_agent
def test_cancel_in_each_tool(server: AgentServer, agent: str) -> None:
    skip_pending(agent, "cancel-tool")
    start = len(server.read_ledger())
    server.turn(agent, FIRST, f"{agent}-tools")
    tools = dict.fromkeys(entry["tool"] for entry in server.read_ledger()[start:])
    for tool in tools:
        session = f"{agent}-cancel-{tool}"
        begun = len(server.read_ledger())
        with server.held_tool(tool):
            turn, answer = server.cancelled_turn(
                agent,
                session,
                lambda begun=begun, tool=tool: any(
                    entry["tool"] == tool for entry in server.read_ledger()[begun:]
                ),
            )
            check_stopped(server, turn, answer, tool)
        check_cancelled(server, agent, session, turn, answer, tool)


def check_cancel_in_model_call(
    server: AgentServer, agent: str, session: str, place: tuple[str, int]
) -> None:
    """Cancel a run while the model call at a place is held, and check it and the next one."""
    models = server.library.models
    turn, answer = server.cancelled_turn(
        agent, session, lambda: any(call.state == "open" for call in models.calls), hold=place
    )
    check_cancelled(server, agent, session, turn, answer, str(place))


def check_stopped(server: AgentServer, turn: Turn, answer: dict[str, Any], place: str) -> None:
    """Check the response to the cancel of a run whose work is still held."""
    assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED"), (place, answer)
    if answer["stopped_at"] is not None:
        assert server.library.models.open_calls() == [], place
        ended = {each["call"] for each in server.read_ledger() if each["event"] != "begin"}
        assert {each["call"] for each in turn.entries} <= ended, place


def check_cancelled(
    server: AgentServer, agent: str, session: str, turn: Turn, answer: dict[str, Any], place: str
) -> None:
    """Check a cancelled run, and that the session goes on with what has happened."""
    public = server.library.agents[agent]
    models = server.library.models
    check_stopped(server, turn, answer, place)
    models.release()
    run_id = turn.record["run_id"]
    wait_until(lambda: server.get_run(run_id)["stopped_at"] is not None)
    own = [each for each in turn.events if each["run_id"] == run_id]
    pieces = [each["content"] for each in own if each["event"] == "RunContent"]
    assert (turn.record["content"] or "").startswith("".join(pieces)), place
    last = "RunCancelled" if public.decision is None else turn.events[-1]["event"]
    assert turn.events[-1]["event"] == last, place
    second = server.turn(agent, SECOND, session)
    # Calls that the cancelled run still made would be counted here.
    check_equal(public, second, place)
    if not {"history", "cancel"} & public.limits.keys():
        check_told(public, turn, second, place=place)


@every_agent
def test_failure_of_each_model_call(server: AgentServer, agent: str) -> None:
    skip_pending(agent, "failure")
    public = server.library.agents[agent]
    calls = server.turn(agent, FIRST, f"{agent}-failing").calls
    for place in dict.fromkeys((call.role, call.number) for call in calls):
        for status, code in ((500, "MODEL_UNAVAILABLE"), (400, "MODEL_REJECTED")):
            refuse = (*place, status)
            session = f"{agent}-failing-{place}-{status}"
            run = server.turn(agent, FIRST, re.sub(r"[^\w-]+", "-", session), refuse=refuse)
            assert "secret" not in str(run.record), refuse
            error = (run.record["error"] or {}).get("code")
            expected = {public.failure or code}
            if place[0] in public.inner:
                # The tool that runs an inner agent fails, or its library reports it to the model.
                expected |= {"TOOL_FAILED", "AGENT_FAILED", None}
            assert error in expected, refuse


def check_equal(public: PublicAgent, turn: Turn, place: str = "") -> None:
    """Check that the record of a run equals what its models and tools have seen."""
    found = find_differences(public, turn)
    assert not found, "\n".join(["", place, *found])


def check_told(
    public: PublicAgent, first: Turn, second: Turn, *cases: str, place: str = ""
) -> None:
    """Check that models get what happened in the turn before, except where a limit is known."""
    untold = find_untold(public, first, SECOND, second)
    assert (untold is not None) is public.conversation, place
    if public.conversation:
        assert bool(untold) is any(case in public.limits for case in cases), (place, untold)


def skip_pending(agent: str, case: str) -> None:
    """Skip a cell that does not work yet."""
    if (agent, case) in PENDING:
        pytest.skip(f"{PENDING[agent, case]}: none, it does not work yet")
