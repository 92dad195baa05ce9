"""The judge finds each fault that is written into the rows of a run."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import apsw

from agentctl.auth.principal import local_principal
from agentctl.interface.requests import RunRequest
from agentctl.service.service import Service
from tests.kit.concurrent_callers import Event
from tests.kit.conditions import wait_for_run
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint
from tests.lab.judge import is_in_order, judge_world
from tests.lab.ledger import Ledger
from tests.lab.servers import Server
from tests.lab.world import World

STEP = (
    "INSERT INTO run_steps (run_id, seq, attempt, kind, state, started_at)"
    " SELECT run_id, 1, 1, 'tool', 'started', 1 FROM runs"
)

APPROVAL = (
    "INSERT INTO approvals (approval_id, kind, status, execution, policy, run_id, root_run_id,"
    " session_id, component_type, component_id, tool_call_id, tool_name, idempotent,"
    " arguments_hash, created_at, arguments)"
    " SELECT 'a', 'approval', {}, {}, 'user', run_id, run_id, session_id, 'agent', 'echo', 'c',"
    " 'pay', 0, '', 1, '' FROM runs"
)

FAULTS = {
    "UPDATE sessions SET run_count = 2": "sessions whose runs are not numbered",
    "INSERT INTO idempotency VALUES ('p', 'k', '', 'gone', 1)": "idempotency keys without",
    "UPDATE runs SET finished_at = NULL": "runs whose end time does not fit",
    "UPDATE runs SET status = 'RUNNING', finished_at = NULL": "runs that are still live",
    "UPDATE runs SET status = 'PAUSED', finished_at = NULL": "a run, of which doctor says",
    "DELETE FROM runs": "events without their run",
    "UPDATE run_events SET last_seq = last_seq + 1": "batches of another length",
    "DELETE FROM run_events WHERE first_seq > 0": "runs whose last event is not their end",
    "UPDATE runs SET status = 'ERROR'": "runs whose last event is not their end",
    STEP: "ended runs with a journal",
    "INSERT INTO run_checkpoints SELECT run_id, 1, 'start', '{}' FROM runs": (
        "ended runs with a checkpoint"
    ),
    APPROVAL.format("'pending'", "NULL"): "ended runs that wait for a person",
    APPROVAL.format("'approved'", "'executing'"): "ended runs with a call that is being executed",
}
"""Statements, and the violation that each causes."""


async def test_each_fault_of_a_row_is_found(
    deployment: Deployment, model_endpoint: ModelEndpoint, tmp_path: Path
) -> None:
    async with Service.open(deployment.settings, create=True) as service:
        operations = service.operations_for(local_principal("ann"))
        request = RunRequest("one two three", background=True)
        run = (await operations.runs.create("agent", "echo", request)).value
        await wait_for_run(operations, run["run_id"])

    file = deployment.folder / "main.db"
    servers = [Server("a", deployment)]
    world = World(servers, model_endpoint, Ledger(tmp_path / "ledger"), Random(1), file=file)
    assert not await judge_world(world)
    shutil.copy(file, tmp_path / "right.db")
    for statement, violation in FAULTS.items():
        shutil.copy(tmp_path / "right.db", file)
        connection = apsw.Connection(str(file))
        connection.execute(statement)
        connection.close()
        found = await judge_world(world)
        assert any(text.startswith(violation) for text in found), (statement, found)


def test_gaps_are_right_only_where_a_process_has_died() -> None:
    lost = 1_000_000
    cases = {
        (1, (0, 1, 2)): True,
        (1, (0, 2)): False,
        (1, (1, 2)): False,
        (1, (0, 1, 1 + lost)): True,
        (1, (0, lost, lost + 1)): False,
        (2, (0, lost, lost + 1)): True,
        (2, (0, 5)): False,
        (2, (2, 3)): True,
    }
    for (attempt, numbers), expected in cases.items():
        events = [Event(number, "RunContent", {}) for number in numbers]
        assert is_in_order(events, attempt) is expected, (attempt, numbers)
