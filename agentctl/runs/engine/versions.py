"""Versions of components in the life of runs (docs/versions.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from agentctl.records.approvals import ApprovalRow
from agentctl.records.kinds import KINDS
from agentctl.records.runs import RunState
from agentctl.records.times import now
from agentctl.runs.desk.decisions import (
    append_pause_event,
    build_question,
    find_answer,
    is_question,
)
from agentctl.runs.desk.end import end_waiting_run
from agentctl.runs.desk.waiting import lock_queue
from agentctl.runs.life.legs import MAXIMUM_PENDING, begin_queued
from agentctl.runs.log.fold import load_log
from agentctl.runs.states import Ending
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import (
    describe_tool,
    describe_version,
    dump_sorted,
    find_changes,
    find_version,
)
from agentctl.store.database import Database, Steps, unit
from agentctl.store.databases import Databases
from agentctl.store.outbox import Outbox
from agentctl.store.repositories import approvals, component_versions, run_reads, runs, workers
from agentctl.webhooks.facts import publish_run

Configuration = dict[str, Any]
"""The configuration of a version (`runtime.components.versions`)."""

MAXIMUM_CHANGES = 20
"""Differences of two configurations that a question shows."""

MAXIMUM_VALUE = 500
"""Characters of a value in such a difference."""


def list_all_sides(catalog: Catalog) -> Iterator[Component]:
    """Yield all components, each with its sides."""
    for kind in KINDS:
        for component in catalog.components(kind).values():
            yield from catalog.list_sides(component)


def list_served(catalog: Catalog) -> str:
    """Return the versions of all components as the row of a worker has them."""
    names: list[str] = []
    for side in list_all_sides(catalog):
        version = find_version(catalog, side)
        if version is not None:
            names.append(name_version(side, version))
    return " ".join(names)


def name_version(component: Component, version: str) -> str:
    """Return the name of a version of a component: two components may have equal versions."""
    return f"{component.kind}/{component.id}/{version}"


class ChangedCall(NamedTuple):
    """An approved call that would not be made as it was approved."""

    row: ApprovalRow

    needs_approver: bool
    """True if only another person can approve it now."""


class VersionGate:
    """Decides with which version a run that waits continues here (docs/versions.md).

    A run keeps the version with which it began while any server executes this version. Afterwards
    `on_change` of its component counts.
    """

    def __init__(self, catalog: Catalog, databases: Databases) -> None:
        self._catalog = catalog
        self._databases = databases

    def find_component(self, database: Database, state: RunState) -> Component | None:
        """Return the component of a run, which keeps its database; None if it is not configured."""
        component = self._catalog.get(state.component_type, state.component_id)
        if component is None:
            return None

        component = replace(component, database=database.id)
        for side in self._catalog.list_sides(component):
            if state.version is not None and find_version(self._catalog, side) == state.version:
                return side
        return self._catalog.choose_side(component, state.session_id)

    async def choose(self, database: Database, state: RunState) -> Component | None:
        """Return the component with which this process may claim the next leg of a run.

        None if the run does not continue here now: another server has its version, it asks a
        person, or it has ended.

        Raises:
            Unavailable: a database does not answer.
        """
        component = self.find_component(database, state)
        if component is None:
            return None
        version = find_version(self._catalog, component)
        if version is None or state.version in (None, version):
            return component

        served_versions = await self._databases.system.read(workers.list_versions())
        if name_version(component, state.version) in served_versions:
            return None

        # The answer of a person counts before the rule: the rule may have changed since.
        rule = component.spec.on_change or self._catalog.settings.runs.on_change
        rows = await database.read(approvals.list_of_root(state.run_id))
        answer = find_answer(rows, version)
        if answer is not None and answer.status == "approved":
            return component
        if answer is not None or rule == "fail":
            ending = _build_ending(state.version, version, answer)
            await database.write(_end_run(database.outbox, state.run_id, ending))
            database.outbox.wake()
            return None

        changed_calls = [
            call async for call in self._find_changed_calls(database, component, state, rows)
        ]
        if rule == "continue" and not changed_calls:
            return component

        changes = await self._describe_changes(component, state.version)
        question = _ask_about_version(
            database.outbox, state.run_id, version, changes, changed_calls, self._expire_seconds
        )
        await database.write(question)
        database.outbox.wake()
        return None

    @property
    def _expire_seconds(self) -> int:
        return self._catalog.settings.approvals.expire_seconds

    async def _find_changed_calls(
        self, database: Database, root: Component, state: RunState, rows: Sequence[ApprovalRow]
    ) -> AsyncIterator[ChangedCall]:
        """Yield the approved calls with another tool now, or that need another approver now."""
        # By the key of a component and the version that has asked: before and after.
        configurations = dict[tuple[str, str | None], tuple[Configuration | None, Configuration]]()
        for row in rows:
            is_open = row.status == "approved" and row.execution is None
            if not is_open or row.kind != "approval" or is_question(row):
                continue

            component = root
            if row.run_id != state.run_id:
                # The members of a library belong to the agent in code.
                member = self._catalog.get(row.component_type, row.component_id)
                component = root if member is None else member

            asking_run = await database.read(run_reads.get_state(row.run_id))
            asking_version = None if asking_run is None else asking_run.version
            key = (component.key, asking_version)
            if key not in configurations:
                before = await self._read_configuration(component, asking_version)
                configurations[key] = (before, self._find_configuration(component))
            before, after = configurations[key]

            policy = self._catalog.find_policy(component, row.tool_name)
            is_own = row.decided_by in (row.user_id, row.started_by)
            needs_approver = policy == "other" and row.policy != "other" and is_own

            # A tool that cannot be compared counts as changed.
            is_same = False
            if before is not None:
                tool_before = describe_tool(before, row.tool_name)
                is_same = tool_before == describe_tool(after, row.tool_name)

            if needs_approver or not is_same:
                yield ChangedCall(row, needs_approver)

    def _find_configuration(self, component: Component) -> Configuration:
        """Return the present configuration of a component; empty if it has no version."""
        description = describe_version(self._catalog, component)
        if description is None:
            return {}
        configuration: Configuration = orjson.loads(description.configuration)
        return configuration

    async def _read_configuration(
        self, component: Component, version: str | None
    ) -> Configuration | None:
        """Return the stored configuration of a version; None if it is not known."""
        work = component_versions.get(component.kind, component.id, version or "")
        row = await self._databases.system.read(work)
        if row is None:
            return None
        configuration: Configuration = orjson.loads(row.configuration)
        return configuration

    async def _describe_changes(self, component: Component, version: str) -> list[dict[str, Any]]:
        """Return the differences to an earlier version, with long values cut."""
        before = await self._read_configuration(component, version)
        if before is None:
            return []
        changes = find_changes(before, self._find_configuration(component))[:MAXIMUM_CHANGES]
        return [{name: _cut_value(value) for name, value in change.items()} for change in changes]


def _cut_value(value: Any) -> Any:
    text = value if isinstance(value, str) else dump_sorted(value)
    if len(text) <= MAXIMUM_VALUE:
        return value
    return f"{text[:MAXIMUM_VALUE]}…"


def _build_ending(before: str, after: str, answer: ApprovalRow | None) -> Ending:
    detail = f"The run began with version {before} of its component, which has {after} now"
    if answer is not None:
        detail += f"; the change was {answer.status} by {answer.decided_by}"
    return Ending.failed("VERSION_CHANGED", detail)


@unit
def _end_run(outbox: Outbox, run_id: str, ending: Ending) -> Steps[None]:
    """End a run that waits for its next leg."""
    # The session of a queued run first: the end of another run locks both in this order.
    state = yield from run_reads.get_state(run_id)
    yield from lock_queue(state)
    run = yield from run_reads.get_for_update(run_id)
    if run is not None and run.status == "PENDING":
        yield from end_waiting_run(outbox, run, ending)


@unit
def _ask_about_version(
    outbox: Outbox,
    run_id: str,
    version: str,
    changes: Sequence[Mapping[str, Any]],
    calls: Sequence[ChangedCall],
    expire_seconds: int,
) -> Steps[None]:
    """Pause a run before its next leg, with the question if it continues with a version.

    Nothing is written if too many approvals are pending: a later claim asks.
    """
    # The session of a queued run first, as in `_end_run`.
    state = yield from run_reads.get_state(run_id)
    yield from lock_queue(state)
    state = yield from run_reads.lock_state(run_id)
    log = yield from load_log(run_id)
    if state is None or log is None:
        return

    pending_count = yield from approvals.count_pending(MAXIMUM_PENDING)
    if pending_count >= MAXIMUM_PENDING:
        return

    at = now()
    if not (yield from runs.hold(run_id, at)):
        # Another process has claimed it, or has asked.
        return

    question = build_question(
        state,
        log.spec,
        version,
        at,
        changes=changes,
        calls=[call.row for call in calls],
        policy="other" if any(call.needs_approver for call in calls) else "user",
        expires_at=at + expire_seconds * 1_000_000 if expire_seconds else None,
    )
    yield from approvals.create([question])

    if state.queue_turn is not None:
        # It had its turn: it does not hold up the queue while a person decides.
        yield from begin_queued(state, at)
    if not log.has_lost_leg(state.attempt):
        # The next leg is not a repetition.
        yield from approvals.renew_checkpoint(run_id, state.attempt)

    yield from append_pause_event(run_id, [question])
    yield from publish_run(outbox, run_id)
