"""Random messages to runs of every kind: each has one fate, and the endpoint agrees.

    python -m tests.lab fates --messages 10000 --seed 7

The runs work in one simulated process that is killed now and then, and another one only sends.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, MessageRequest, RunRequest
from agentctl.records.kinds import ComponentKind
from agentctl.service.service import ServiceOperations
from agentctl.work.event_loop import retrieve_exception
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment
from tests.lab.judge import judge_rows
from tests.runs.simulated_processes import Process, create_process_task
from tests.server.database_checks import open_read_only
from tests.steering.conftest import create_site
from tests.steering.stepping_models import SteppingModels, serve_stepping_models

__all__ = ["Experiment", "add_options", "format_fates", "run", "send_messages"]

COMPONENTS: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "worker"),
    ("agent", "durable"),
    ("agent", "typed"),
    ("agent", "durable-typed"),
    ("agent", "listener"),
    ("agent", "durable-listener"),
    ("agent", "graph"),
    ("agent", "durable-graph"),
    ("agent", "keeping-graph"),
    ("agent", "runner"),
    ("team", "office"),
    ("workflow", "lane"),
)

MESSAGES_OF_A_RUN = 6

FATES = ("delivered", "next_run", "refused", "not accepted")
"""The fates of a message. One that is not accepted was refused before it was stored."""

SETTLED = ("PAUSED", "COMPLETED", "ERROR", "CANCELLED")


@dataclass
class Sent:
    """A run with the messages that were sent to it, by their ids."""

    run_id: str
    kind: ComponentKind
    component: str
    session_id: str
    texts: dict[str, str] = field(default_factory=dict)


class Experiment:
    """Runs in one process that is killed now and then, and another one that only sends."""

    def __init__(
        self,
        site: Deployment,
        models: SteppingModels,
        seed: int,
        components: Sequence[tuple[ComponentKind, str]],
    ) -> None:
        self.random = random.Random(seed)
        self.components = components
        self.runs: list[Sent] = []
        self.fates: dict[str, Counter[str]] = {name: Counter() for _, name in components}
        self.violations = Counter[str]()
        self._site = site
        self._models = models
        self._count = 0

    async def send_all(self, count: int) -> None:
        """Send messages to runs at random moments; kill the process of the runs in between."""
        sender = await self._open()
        while self._count < count:
            host = await self._open()
            works = [
                host.spawn(self._work(host, sender, number))
                for number in range(len(self.components))
            ]
            if self.random.random() < 0.5:
                await asyncio.sleep(self.random.uniform(0.1, 0.6))
                await host.kill()
                await asyncio.wait(works)
            else:
                await asyncio.wait(works)
                await host.stop()
        await sender.run(self.judge(sender.operations))
        await sender.stop()
        self.violations = await judge_rows(self)

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Query the database directly."""
        with open_read_only(self._site.folder / "main.db") as connection:
            return connection.execute(sql).fetchall()

    async def _open(self) -> Process:
        process = Process(self._site.settings)
        await process.run(process.open())
        return process

    async def _work(self, host: Process, sender: Process, number: int) -> None:
        operations = host.operations
        kind, component = self.components[number]
        name = f"run-{len(self.runs)}-{number}"
        steps = self.random.randint(0, 4)
        work = RunRequest(f"work {steps} {name}", session_id=name, background=True)
        run = (await operations.runs.create(kind, component, work)).value
        sent = Sent(run["run_id"], kind, component, name)
        self.runs.append(sent)

        for _ in range(self.random.randint(1, MESSAGES_OF_A_RUN)):
            await asyncio.sleep(self.random.uniform(0, 0.03))
            self._count += 1
            text = f"note-{self._count}-end"
            late: Any = self.random.choice(("next_run", "refuse"))
            door = self.random.choice((host, sender))
            request = MessageRequest(text, late)
            # In the context of the process that is asked: the runs that the sender starts for the
            # message are its own, and do not die with the host.
            sending = door.spawn(door.operations.runs.send_message(sent.run_id, request))
            # A host that is killed does not wait for the answer of the other process.
            sending.add_done_callback(retrieve_exception)
            try:
                message = await asyncio.shield(sending)
            except errors.Conflict:
                self.fates[component]["not accepted"] += 1
                continue
            sent.texts[message.value["message_id"]] = text

        if self.random.random() < 0.15:
            await operations.runs.cancel(kind, component, sent.run_id, CancelRequest(name))
        await wait_for_run(operations, sent.run_id)

    async def judge(self, operations: ServiceOperations) -> None:
        """Check the fate of every message against the runs and the log of the endpoint."""
        for sent in self.runs:
            run = await wait_for_run(operations, sent.run_id, *SETTLED)
            if run["status"] == "PAUSED":
                # Its process died in a call that nobody knows the outcome of.
                cancel = CancelRequest(sent.session_id)
                await operations.runs.cancel(sent.kind, sent.component, sent.run_id, cancel)
                run = await wait_for_run(operations, sent.run_id)

            async def list_messages(run_id: str = sent.run_id) -> Any:
                page = (await operations.runs.list_messages(run_id)).value["messages"]
                return None if any(each["status"] == "waiting" for each in page) else page or True

            listed = await wait_until(list_messages)
            messages = [] if listed is True else listed
            # A request whose answer was lost with its process may have been carried out.
            assert sent.texts.keys() <= {each["message_id"] for each in messages}
            for message in messages:
                await self._judge_message(operations, sent, run, message)

    async def _judge_message(
        self, operations: ServiceOperations, sent: Sent, run: dict[str, Any], message: Any
    ) -> None:
        status = message["status"]
        text = message["content"]
        self.fates[sent.component][status] += 1
        is_part = [each for each in run["messages"] if each.get("message_id")]
        parts = [each["message_id"] for each in is_part].count(message["message_id"])
        assert parts == (status == "delivered"), (message, run["status"])

        def is_shown() -> bool:
            return any(text in request.texts for request in self._models.requests)

        reaches_model = "listener" not in sent.component
        if status == "refused":
            assert not is_shown(), message
        elif status == "next_run":
            next_run = await wait_for_run(operations, message["next_run_id"], *SETTLED)
            assert (next_run["input"], next_run["session_id"]) == (text, sent.session_id)
            if next_run["status"] == "COMPLETED" and reaches_model:
                assert is_shown(), message
        else:
            with pytest.raises(errors.NotFound):
                await operations.runs.get(message["message_id"])
            if run["status"] == "COMPLETED" and reaches_model:
                assert is_shown(), message
            if run["status"] == "COMPLETED":
                assert run["content"].count(text) == 1, message


async def send_messages(
    folder: Path,
    count: int,
    seed: int,
    components: Sequence[tuple[ComponentKind, str]] = COMPONENTS,
) -> Experiment:
    """Carry out an experiment with a new database in a folder."""
    asyncio.get_running_loop().set_task_factory(create_process_task)
    with serve_stepping_models() as models:
        site = create_site(folder, models, [component for _, component in components])
        experiment = Experiment(site, models, seed, components)
        await experiment.send_all(count)
    return experiment


def format_fates(fates: Mapping[str, Counter[str]]) -> str:
    """Return the table of docs/internals/measurements.md, with the kinds by their ids."""
    lines = [f"{'component':18}" + "".join(f"{fate:>14}" for fate in FATES)]
    rows = [*fates.items(), ("all", sum(fates.values(), Counter[str]()))]
    for name, counts in rows:
        lines.append(f"{name:18}" + "".join(f"{counts[fate]:14}" for fate in FATES))
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)


async def run(options: argparse.Namespace) -> Counter[str]:
    """Send messages, print their fates, and return the violations of the rows.

    Raises:
        AssertionError: a message has no fate, or another one than the endpoint has seen.
    """
    with tempfile.TemporaryDirectory() as folder:
        experiment = await send_messages(Path(folder), options.messages, options.seed)
    print(format_fates(experiment.fates))
    return experiment.violations
