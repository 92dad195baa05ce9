"""The runs of members and steps: those that this process executes, and those of a library.

A library of agents executes its members itself, inside the run of their parent. Their runs are
reported: they have rows, events and ends like those of other members, but execute nothing.

A leader may call 128 members at once, and each of them may be a team that does the same. Without a
bound one root run would become thousands of live runs. So a member waits for a slot before its row
is written: of its root (`MEMBERS_PER_RUN`) and of the process
(`CONCURRENT_MEMBERS`). Members that wait for their own members keep their slots. So that
this is never a deadlock, each run can always execute one child without a slot: the child takes the
place of its parent, which waits for it (decision 39).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agentctl.errors import OutcomeUnknown
from agentctl.records.kinds import ComponentRef
from agentctl.records.logs import build_child_trace
from agentctl.records.run_spec import RunSpec
from agentctl.records.text import new_id
from agentctl.runs.life import legs
from agentctl.runs.life.admission import RunLost, admit_child_run, admit_durable_member
from agentctl.runs.life.live import LiveRun, ReportedRun
from agentctl.runs.states import Ending, Pause
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import find_version
from agentctl.runtime.context import MemberResult, MemberStatus
from agentctl.runtime.tracing import SPAN_STATUSES, Span
from agentctl.work.event_loop import Tasks, retry_until_stopped, retry_while_unavailable
from agentctl.work.run_scope import CurrentCall, outside_run

CONCURRENT_MEMBERS = 256
"""Members at work in one process; more wait."""

MEMBERS_PER_RUN = 16
"""Members at work under one run; more wait."""

R = TypeVar("R", bound=LiveRun)


class Members:
    """Starts the runs of members and steps of this process."""

    def __init__(self, host: legs.LegHost, run_tasks: Tasks, catalog: Catalog) -> None:
        self._host = host
        self._catalog = catalog
        self._run_tasks = run_tasks
        self._slots = MemberSlots()

    @property
    def waiting(self) -> int:
        """Number of members that wait until they may execute."""
        return self._slots.waiting

    async def run(
        self,
        parent: LiveRun,
        component: Component,
        message: str,
        call: CurrentCall,
        run_id: str | None,
        keeps_input: bool,
    ) -> MemberResult:
        """Execute the run of a member: a new one, or the paused one with this id.

        Args:
            call: the call or the step that starts it.
            keeps_input: True gives a new run the object `input` of its parent.
        """
        if run_id is not None:
            return await self._continue(parent, component, run_id)

        # A member is a tool of the team's leader; a step is a part of the workflow's own work.
        time_limit = parent.spec.time_limit
        if parent.component.kind == "team":
            time_limit = parent.spec.tool_timeout
        spec = parent.spec.build_member_spec(
            new_id(),
            component.kind,
            component.id,
            message,
            time_limit=time_limit,
            keeps_input=keeps_input,
            version=find_version(self._catalog, component),
        )

        async with self._slots.hold(parent):
            parent.checkpoint()
            span = parent.transcript.spans.start_member(spec.run_id, component.id)
            spec = _trace_member(parent, spec, span)
            run = LiveRun(spec, component, self._host.services, parent)
            return await self._wait(run, span, self._start(run, parent, call))

    async def _start(self, run: LiveRun, parent: LiveRun, call: CurrentCall) -> None:
        """Commit the row of a member, with its begin in the journal of its parent if it has one."""
        spec = run.spec
        admit = partial(admit_child_run, spec)
        if parent.journal is not None:
            step = parent.journal.begin_member(call.id, call.name, run.component.id, spec.run_id)
            admit = partial(admit_durable_member, spec, run.component.name, step)

        try:
            await self._host.start(run, admit)
        except RunLost:
            await parent.stop_as_stored()

    async def _wait(
        self, run: LiveRun, span: Span, start: Coroutine[Any, Any, object] | None = None
    ) -> MemberResult:
        """Wait for the end of the leg of a member; stop the member if the caller is cancelled.

        Args:
            span: the span of the member in the transcript of its parent.
            start: commits its row first; None if it is committed.
        """
        parent = run.parent
        assert parent is not None
        try:
            if start is not None:
                await start
            end = await asyncio.shield(run.ended)
        except asyncio.CancelledError:
            run.stop(_build_abandoned_end(parent))
            raise

        status: MemberStatus
        if isinstance(end, Ending):
            status = end.status
            span.end(SPAN_STATUSES[status])
        else:
            # Its span stays open: the next leg continues it.
            status = "PAUSED" if isinstance(end, Pause) else "PARKED"
        return MemberResult(
            status=status,
            content=run.transcript.content,
            error_detail=end.error_detail,
            error_code=end.error_code,
            run_id=run.run_id,
        )

    async def _continue(self, parent: LiveRun, component: Component, run_id: str) -> MemberResult:
        """Continue the paused run of a member.

        Returns:
            Its result; the stored one if it has ended, or a pause if people have to decide first.
        """
        span = parent.transcript.spans.find_open(run_id)
        async with self._slots.hold(parent):
            parent.checkpoint()
            run = await self._claim(parent, component, run_id, LiveRun)
            if run is not None:
                span = span or parent.transcript.spans.start_member(run_id, component.id)
                return await self._wait(run, span)

        # It has ended in a leg that was lost, or waits for people.
        result = await retry_until_stopped(
            lambda: parent.database.read(legs.read_waiting_member(run_id)), parent.stop_requested
        )
        if result is None:
            await parent.stop_as_stored()
        if result.status != "PAUSED":
            span = span or parent.transcript.spans.start_member(run_id, component.id)
            span.end(SPAN_STATUSES[result.status])
        return result

    async def _claim(
        self,
        parent: LiveRun,
        component: Component,
        run_id: str,
        run_class: type[R],
        on_begun: Callable[[R], None] | None = None,
    ) -> R | None:
        """Claim the paused run of a member and start its work; None if it does not wait.

        A parent that is cancelled does not interrupt it: a row that is claimed needs its
        supervisor. The work of the member is stopped before its first step then.

        Args:
            run_class: `LiveRun`, or `ReportedRun` for a member that a library executes.
            on_begun: called with the run once its work has started.
        """
        is_wanted = True

        async def claim() -> R | None:
            if run_class is LiveRun:
                version = find_version(self._catalog, component)
                component_ref = (component.kind, component.id)
                claimed = await self._claim_leg(parent, run_id, version, component_ref)
            else:
                # A member of a library is part of the code of its parent, and has its version.
                claimed = await self._claim_leg(parent, run_id, parent.spec.version, None)
            if claimed is None:
                return None

            spec, start = legs.build_leg_input(claimed)
            run = run_class(spec, component, self._host.services, parent, start=start)
            if not is_wanted:
                run.stop(_build_abandoned_end(parent))
            self._host.execute_leg(run, claimed)
            if on_begun is not None:
                on_begun(run)
            return run

        claiming = self._run_tasks.start(claim())
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            is_wanted = False
            # Claimed and cancelled in one step of the event loop.
            run = claiming.result() if claiming.done() else None
            if run is not None:
                run.stop(_build_abandoned_end(parent))
            raise

    async def _claim_leg(
        self, parent: LiveRun, run_id: str, version: str | None, component: ComponentRef | None
    ) -> legs.ClaimedLeg | None:
        # A reported parent may not have its worker yet; the whole tree has the worker of its root.
        work = legs.claim_member(run_id, parent.root.worker_id, version, component)
        claim = partial(parent.database.write, work)

        async def attempt() -> legs.ClaimedLeg | None:
            try:
                return await claim()
            except OutcomeUnknown:
                # Nothing else would execute the claimed leg.
                return await retry_while_unavailable(claim)

        return await retry_while_unavailable(attempt, stopped=parent.stop_requested)

    def report(
        self, parent: LiveRun, component: Component, message: str, call_id: str | None
    ) -> ReportedRun:
        """Start the run of a member that a library executes inside the run of its parent.

        It needs no slot: the library works on it already. Its row is committed in the background.

        Args:
            component: the member, as the library names it.
            message: its task.
            call_id: the tool call of the parent that started it; None if it is not known.
        """
        spec = parent.spec.build_member_spec(
            new_id(),
            component.kind,
            component.id,
            message,
            time_limit=parent.spec.time_limit,
            version=parent.spec.version,
        )
        # The journal of its parent has its calls.
        spec = replace(spec, durable=False)
        spans = parent.transcript.spans
        span = spans.start_member(spec.run_id, component.id, parent_id=call_id)
        spec = _trace_member(parent, spec, span)

        run = ReportedRun(spec, component, self._host.services, parent)
        start = self._start_reported(run, parent)
        # The task is work of this process, not of the run whose context this is.
        with outside_run():
            run.wait_for_result(self._run_tasks.start(self._wait(run, span, start)))
        return run

    async def _start_reported(self, run: ReportedRun, parent: LiveRun) -> None:
        if isinstance(parent, ReportedRun):
            # The row of a run is written after the row of its parent. The parent may never begin.
            begun: set[asyncio.Future[Any]] = {parent.begun, parent.result}
            await asyncio.wait(begun, return_when=asyncio.FIRST_COMPLETED)
        await self._host.start(run, partial(admit_child_run, run.spec))

    async def continue_reported(
        self, parent: LiveRun, component: Component, run_id: str
    ) -> ReportedRun | None:
        """Continue the paused run of a member that a library executes; None if it does not wait."""
        spans = parent.transcript.spans

        def wait_for_end(run: ReportedRun) -> None:
            span = spans.find_open(run_id) or spans.start_member(run_id, component.id)
            run.wait_for_result(self._run_tasks.start(self._wait(run, span)))

        with outside_run():
            return await self._claim(parent, component, run_id, ReportedRun, wait_for_end)


class _Slot(NamedTuple):
    """A slot of a member's run."""

    parent: LiveRun

    root: LiveRun | None
    """The root run, if the slot counts for the limits; None for the place of the parent."""


class MemberSlots:
    """The slots of the members' runs of a process.

    The first child of a parent works in the place of the parent, which waits for it. So a tree of
    any depth makes progress, even if all slots are taken.
    """

    def __init__(self) -> None:
        self._free = CONCURRENT_MEMBERS
        # By root run: its members at work.
        self._used: Counter[LiveRun] = Counter()
        # The parents whose place a child has.
        self._lending: set[LiveRun] = set()
        # By parent, in the order in which the parents get their turns.
        self._queues: dict[LiveRun, deque[asyncio.Future[_Slot]]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @contextlib.asynccontextmanager
    async def hold(self, parent: LiveRun) -> AsyncIterator[None]:
        """Wait for a slot for a child of `parent`, and hold it while the block lasts.

        The wait can be cancelled at any time.
        """
        slot = self._try_take(parent)
        if slot is None:
            slot = await self._wait(parent)
        try:
            yield
        finally:
            self._release(slot)

    def _try_take(self, parent: LiveRun) -> _Slot | None:
        """Take the place of a parent, or a slot that counts; None if neither is free."""
        if parent not in self._lending:
            self._lending.add(parent)
            return _Slot(parent, None)

        root = parent.root
        if self._free > 0 and self._used[root] < MEMBERS_PER_RUN:
            self._free -= 1
            self._used[root] += 1
            return _Slot(parent, root)
        return None

    async def _wait(self, parent: LiveRun) -> _Slot:
        granted: asyncio.Future[_Slot] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(parent, deque()).append(granted)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._forget(parent, granted)
            else:
                # Granted and cancelled in one step of the event loop.
                self._release(granted.result())
            raise

    def _forget(self, parent: LiveRun, waiting: asyncio.Future[_Slot]) -> None:
        queue = self._queues[parent]
        queue.remove(waiting)
        if not queue:
            del self._queues[parent]

    def _release(self, slot: _Slot) -> None:
        """Return a slot, and give it to the next child that waits."""
        if slot.root is None:
            # The place of a parent is for its own children.
            self._lending.discard(slot.parent)
            self._grant(slot.parent)
            return

        self._free += 1
        self._used[slot.root] -= 1
        if not self._used[slot.root]:
            del self._used[slot.root]
        for parent in list(self._queues):
            if self._grant(parent):
                return

    def _grant(self, parent: LiveRun) -> bool:
        """Give a slot to a child of a parent; return False if none waits, or none may have one."""
        queue = self._queues.get(parent, ())
        waiting = next((future for future in queue if not future.done()), None)
        if waiting is None:
            return False
        slot = self._try_take(parent)
        if slot is None:
            return False

        self._forget(parent, waiting)
        if parent in self._queues:
            # The next free slot is for a child of another parent.
            self._queues[parent] = self._queues.pop(parent)
        waiting.set_result(slot)
        return True


def _build_abandoned_end(parent: LiveRun) -> Ending:
    """Return the end of a member whose parent does not wait for it any more.

    It is the end that was requested for the parent, or a cancel if the parent continues.
    """
    reason = "The parent run continued without it"
    return parent.requested_end or Ending.cancelled("system:parent", reason)


def _trace_member(parent: LiveRun, spec: RunSpec, span: Span) -> RunSpec:
    """Return the specification of a member below the tool call of its parent that started it."""
    if parent.trace is None:
        return spec
    place = parent.trace.locate(parent.transcript.spans.find_parent(span))
    return replace(spec, trace=build_child_trace(spec.run_id, place).text)
