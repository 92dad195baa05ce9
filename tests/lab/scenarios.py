"""The scenarios of the lab: for each its deployments, workload, disturbances and judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["IN_PROCESS", "SCENARIOS", "Scenario", "format_scenarios"]


class Scenario(NamedTuple):
    """A scenario. Its module has `add_options` and `run`, which returns the violations."""

    module: str

    deployments: Sequence[str]
    """Names in `tests.lab.world.DEPLOYMENTS`, or `IN_PROCESS`."""

    workload: str

    disturbances: Sequence[str]
    """Names in `tests.lab.disturbances.DISTURBANCES`, and those that the scenario makes itself."""

    judge: str
    """The rules in addition to those of `tests.lab.judge`, which hold in every world."""


IN_PROCESS = "two servers in this process"
"""The deployment of scenarios whose steps are put in order: no process, and no endpoint of it."""

SCENARIOS: dict[str, Scenario] = {
    "starts": Scenario(
        "tests.lab.starts",
        ("postgresql", "one on postgresql", "one on sqlite"),
        "starts at a rate, each with another message",
        (
            "crash of PostgreSQL",
            "fast stop of PostgreSQL",
            "full disk",
            "slow commits",
            "runs locked",
            "sessions locked",
            "workers locked",
            "file locked",
            "process stopped",
            "clocks apart",
            "rolling restart",
        ),
        "answers, rows and calls of the model agree",
    ),
    "crashes": Scenario(
        "tests.lab.crashes",
        ("postgresql", "mixed", "pgbouncer", "sqlite"),
        "random requests of many clients, also streams and cancels",
        (
            "crash of PostgreSQL",
            "connections cut",
            "pooler killed",
            "file locked",
            "server killed",
            "server and PostgreSQL killed",
            "worker killed",
            "process stopped",
        ),
        "what clients have received is stored, once, and can be read again",
    ),
    "calls": Scenario(
        "tests.lab.durable_calls",
        ("sqlite", "postgresql", "postgresql, workers"),
        "durable runs of agents, teams and a library, with six calls each",
        (
            "worker killed",
            "server killed",
            "PostgreSQL killed",
            "process of PostgreSQL killed",
            "servers stopped in turn",
        ),
        "the ledger has each call once, and the records have its results",
    ),
    "halts": Scenario(
        "tests.lab.halts.scenario",
        ("postgresql", "sqlite"),
        "runs on thirteen paths, from a start to a takeover",
        (
            "everything, a user, a model, a tool or all components halted",
            "server killed",
            "worker killed",
            "process stopped",
        ),
        "no call begins after the return of a halt; what it has held continues once",
    ),
    "markers": Scenario(
        "tests.lab.markers.search",
        ("two workers on sqlite", "two workers on postgresql"),
        "runs of two users, of every kind and through every interface, with marked texts",
        ("worker killed", "models that fail, are slow or hang", "clients that cancel or leave"),
        "no user, model or tool gets the text of another user or session",
    ),
    "failures": Scenario(
        "tests.lab.failures.scenario",
        ("one on sqlite", "one on postgresql"),
        "messages in one session each, of every kind of agent",
        (
            "a failure of the model, a tool, the caller or stored data",
            "the server killed or stopped",
        ),
        "the failure blames the right part; the next message reaches a strict model",
    ),
    "pairs": Scenario(
        "tests.lab.pairs.scenario",
        (IN_PROCESS,),
        "a run in each of its states, of sixteen kinds",
        ("an operation that stops at each of its points while another runs through",),
        "the rows of the session, the calls of the tool and of the model agree",
    ),
    "fates": Scenario(
        "tests.lab.fates",
        (IN_PROCESS,),
        "messages to runs of twelve kinds, from their process and from another one",
        ("the process of the runs killed, or stopped",),
        "each message is delivered, the next run or refused, as the model has seen",
    ),
    "inputs": Scenario(
        "tests.lab.hostile.scenario",
        ("one on sqlite",),
        "the longest and the most that clients, models, tools and MCP servers may send",
        ("one input after another",),
        "each input has its answer, and `/health` answers meanwhile",
    ),
    "approvals": Scenario(
        "tests.lab.approved_calls",
        ("two on sqlite", "three on postgresql"),
        "approved calls of a real program",
        ("server killed before each statement", "servers killed at random"),
        "the ledger of the program has each approved call once",
    ),
}
"""The scenarios by the name of their command."""


def format_scenarios() -> str:
    """Return the four lists of each scenario, as text."""
    lines: list[str] = []
    for name, scenario in SCENARIOS.items():
        lines += [
            name,
            f"  deployments   {'; '.join(scenario.deployments)}",
            f"  workload      {scenario.workload}",
            f"  disturbances  {'; '.join(scenario.disturbances)}",
            f"  judge         {scenario.judge}",
        ]
    return "\n".join(lines)
