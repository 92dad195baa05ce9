"""Supervision of one run, from its committed row to its final status.

The supervisor never waits for the work without a limit. The component is a separate task. Its end,
a stop request and the time limit are the three reasons to end the run; the first one counts. A task
that does not end within `GRACE_SECONDS` of its cancellation is abandoned, and its further events
are ignored. The final status is stored once and published afterwards.

When very many runs start at once, each caller would wait for the model calls of the runs before its
own. So the work of a run waits until the starts that began before it are complete (`Starts`): all
callers have their first event, or the row of a run without events, before the first model call. The
row is committed before that, and a cancel ends this wait as it ends work.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import orjson

from agentctl import errors
from agentctl.records.logs import RateLimitedLog, extend_log_context
from agentctl.records.messages import parse_messages
from agentctl.records.times import now
from agentctl.runs.gate.gate import Gate
from agentctl.runs.life.finish import store_end, store_hand_over, store_pause
from agentctl.runs.life.live import LiveRun, ReportedRun
from agentctl.runs.life.tracing import RunTracer
from agentctl.runs.log import event_rows
from agentctl.runs.log.results import parse_summary
from agentctl.runs.states import (
    CLIENT_DISCONNECTED,
    PARENT_ENDED,
    Ending,
    HandOver,
    LegEnd,
    Pause,
    RunCounters,
)
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.context import EarlierRun, leave_out
from agentctl.runtime.failures import DETAILS, ExecutionError
from agentctl.runtime.pauses import Parked, Paused
from agentctl.runtime.transcript.context_window import measure_message
from agentctl.runtime.transcript.history import is_acceptable, shorten_run
from agentctl.store.database import Steps, Work, unit
from agentctl.store.repositories import run_reads, runs, sessions
from agentctl.store.threads import call_in_thread
from agentctl.work.event_loop import Tasks, retry_while_unavailable, wait_until_done

GRACE_SECONDS = 0.1
"""Time that cancelled work has to end before its run gets its final status without it."""

HELD_LOOK_SECONDS = 0.05
"""Minimum time between two looks at the time limit of a run that a halt holds."""

STORE_WAIT_SECONDS = 8.0
"""Time that followers of a run wait for a database that is unavailable.

Then their stream ends without a last event: a status that is not stored is not published. This is
no limit for a database that is only busy.
"""

HISTORY_BYTES = 4_194_304
"""Maximum size of the earlier messages that a model receives: some million tokens.

Their conversion is one step of the event loop.
"""

SMALL_WINDOW = 8_192
"""Tokens of a context window that is not configured.

If the earlier messages may fill it, the summary of the session is read, also if `summary` is not
configured.
"""

CROWD = 32
"""Number of incomplete starts up to which work begins at once: they delay each other little."""

START_LIMIT_SECONDS = 5.0
"""Maximum wait of work, and the time after which an incomplete start no longer counts."""

_INTERRUPTED = Ending.failed("INTERNAL", "The run was interrupted inside the server")
_FAILED = Ending.failed("INTERNAL", DETAILS["INTERNAL"])
DATABASE_UNAVAILABLE = Ending.failed("INTERNAL", "The database was unavailable for too long")

_log = logging.getLogger("agentctl.runs")
_rate_limited = RateLimitedLog(_log)


class _Start(NamedTuple):
    """An incomplete start."""

    number: int
    """Its number among all starts of the process, from 1."""

    began: float
    """Its time by `time.monotonic`, in seconds."""


class _Waiter(NamedTuple):
    """Work that waits for the starts before it."""

    number: int
    """The number of the last start that it waits for."""

    turn: asyncio.Future[None]
    """Done when these starts are complete."""


class Starts:
    """The incomplete starts of a process, in the order in which they began.

    Work of a run waits for the starts before it (`wait_for_earlier`), unless they are few.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Start] = OrderedDict()
        self._last_number = 0
        # In the order of their numbers.
        self._waiting: deque[_Waiter] = deque()

    def begin(self, run_id: str) -> None:
        """Count a start until `end`, or until it takes longer than `START_LIMIT_SECONDS`."""
        self._last_number += 1
        self._open[run_id] = _Start(self._last_number, time.monotonic())

    def end(self, run_id: str) -> None:
        """Complete a start. Work that waits for no other start continues."""
        if self._open.pop(run_id, None) is None:
            return

        oldest_number = self._last_number + 1
        if self._open:
            oldest_number = next(iter(self._open.values())).number
        while self._waiting and self._waiting[0].number < oldest_number:
            self._waiting.popleft().turn.set_result(None)

    async def wait_for_earlier(self) -> None:
        """Wait until the starts that are incomplete now are complete, if they are many."""
        # A caller that never completes its start delays nobody for long.
        latest = time.monotonic() - START_LIMIT_SECONDS
        while self._open and next(iter(self._open.values())).began < latest:
            self._open.popitem(last=False)
        if len(self._open) <= CROWD:
            return

        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(self._last_number, turn))
        await asyncio.wait({turn}, timeout=START_LIMIT_SECONDS)


class Supervision:
    """Executes the runs of an engine, one call of `supervise` for each.

    Args:
        run_tasks: group for tasks that need the databases; the closing engine waits for them.
    """

    def __init__(
        self,
        catalog: Catalog,
        run_tasks: Tasks,
        counters: RunCounters,
        starts: Starts,
        gate: Gate,
        tracer: RunTracer | None = None,
    ) -> None:
        self._gate = gate
        self._tracer = tracer
        self._starts = starts
        self._catalog = catalog
        self._counters = counters
        self._run_tasks = run_tasks
        self._component_tasks = Tasks()

    async def supervise(self, run: LiveRun) -> None:
        """Execute a run whose row is committed, and set `run.ended`."""
        extend_log_context(session_id=run.spec.session_id, run_id=run.run_id)
        if self._tracer is not None:
            trace = self._tracer.begin_leg(run)
            if trace is not None:
                run.trace = trace
                extend_log_context(trace_id=trace.own.trace_id, span_id=trace.own.span_id)

        ending: LegEnd = _FAILED
        stored_ending: LegEnd | None = None
        try:
            ending = await self._execute(run)
            # Before its results are read: abandoned work may still report.
            run.detach()

            if run.is_handed_over and ending == run.requested_end:
                ending = HandOver(lost=True)

            ending = _keep_state(run, ending)
            stored_ending = await self._store(run, ending)
        except asyncio.CancelledError:
            # A tool cancelled every task of the process: store the end in a new one, for which
            # nothing waits. If another end is stored already, it remains.
            interrupted = run.requested_end or _INTERRUPTED
            if interrupted.reason == CLIENT_DISCONNECTED:
                # The task of its request was cancelled as well; the client may still wait.
                interrupted = _INTERRUPTED

            run.stop(interrupted)
            run.detach()
            self._run_tasks.start(self._store(run, interrupted))
            raise
        except Exception:
            _log.exception("run %s ended with an unexpected error", run.run_id)
        finally:
            self._end(run, ending, stored_ending)

    def _end(self, run: LiveRun, ending: LegEnd, stored_ending: LegEnd | None) -> None:
        """Publish the end of a leg, unless the wait for its database has ended before.

        Args:
            ending: the expected end, for a leg whose end is not stored yet.
            stored_ending: the stored end; None if it is not stored: then it has no last event.
        """
        if run.ended.done():
            return

        # After the commit: a status that a follower has seen cannot be lost.
        _publish_end(run, stored_ending)
        run.ended.set_result(stored_ending or ending)

        folder = run.files.folder
        if folder is not None:
            self._run_tasks.start(call_in_thread(folder.cleanup))
        for member in run.reported:
            # Also after an unexpected error: it waits for this without a limit.
            member.end_report()

    async def _store(self, run: LiveRun, ending: LegEnd) -> LegEnd:
        """Store an end; the run ends without it if the database is unavailable for too long.

        Storing continues then: a living process leaves no run without a status.
        """
        loop = asyncio.get_running_loop()
        latest = loop.time() + STORE_WAIT_SECONDS
        timer: asyncio.TimerHandle | None = None

        def on_unavailable() -> None:
            nonlocal timer
            _rate_limited.log("ends and pauses of runs could not be stored yet")
            if timer is None:
                timer = loop.call_at(latest, self._end, run, ending, None)

        stored_ending = await self._store_end(run, ending, on_unavailable)
        # After the end is published: the followers of the run do not wait for this.
        loop.call_soon(self._report_leg, run, stored_ending)
        return stored_ending

    def _report_leg(self, run: LiveRun, ending: LegEnd) -> None:
        """Count the model calls of a leg that has ended, and export its spans."""
        calls = run.transcript.spans.take_ended()
        for call in calls:
            if call.kind == "model":
                self._catalog.models.counters.count_call(call)
        if self._tracer is not None:
            self._tracer.end_leg(run, ending, calls)

    async def _store_end(
        self, run: LiveRun, ending: LegEnd, on_unavailable: Callable[[], None]
    ) -> LegEnd:
        def on_stopped(late: bool) -> None:
            write = runs.record_work_stopped(run.run_id, run.attempt, now(), late)
            self._run_tasks.start(_record_stopped_work(run, write, "its abandoned work"))

        def on_change() -> None:
            write = _replace_holding(run)
            self._run_tasks.start(_record_stopped_work(run, write, "a part of its work"))

        # A pause or a hand-over that the row does not allow becomes an end.
        if isinstance(ending, Pause):
            ending = await store_pause(
                run, ending, self._catalog.settings.approvals, on_unavailable
            )
            if isinstance(ending, Pause):
                return ending
        if isinstance(ending, HandOver):
            ending = await store_hand_over(run, ending, on_unavailable)
            if isinstance(ending, HandOver):
                return ending

        assert isinstance(ending, Ending)
        stored_ending = await store_end(run, ending, on_stopped, on_change, on_unavailable)
        # The process that has written the end counts it.
        if not run.was_ended_elsewhere:
            self._counters.count_finished(run.component.kind, stored_ending)
            # Before the end is published: a client that reads it, and tries again, finds the halt.
            await self._gate.breakers.count_run(run.spec, stored_ending)
        return stored_ending

    async def _execute(self, run: LiveRun) -> LegEnd:
        """Execute the component until it ends, is stopped, or exceeds its time limit.

        Returns:
            How the leg ends; nothing of it is stored yet.
        """
        try:
            if not await _claim_run(run):
                return run.requested_end or Ending.cancelled("system", None)

            if run.stream.recorded:
                run.stream.publish(*_format_begin(run), place=run.start_place)
            work = self._component_tasks.start(self._execute_component(run))
            await _wait_for_end(run, work)

            if not work.done():
                # The stop first: members end with its cause, and work that ignores its
                # cancellation fails at its next checkpoint.
                run.stop(Ending.failed("RUN_TIMEOUT", "The run exceeded its time limit"))
                work.cancel()
                if not await wait_until_done({work}, GRACE_SECONDS):
                    _log.warning("run %s: its work did not end when cancelled", run.run_id)
                    run.transcript.unstopped.add(work)

            await _stop_children(run)
            ending = _find_ending(run, work)
            # A background task of a completed run continues, and the record of the run names it.
            await run.transcript.unstopped.end_started(cancel=ending.status != "COMPLETED")
            await _end_reported(run)
            return ending
        except errors.Unavailable:
            return run.requested_end or DATABASE_UNAVAILABLE
        except Exception:
            _log.exception("run %s could not be executed", run.run_id)
            return _FAILED

    async def _execute_component(self, run: LiveRun) -> None:
        from agentctl.runtime.components.execute import execute_component

        if run.trace is not None:
            run.trace.activate()
        if isinstance(run, ReportedRun):
            # A library executes it.
            await run.execute()
            return

        if run.parent is None:
            await self._starts.wait_for_earlier()
        await run.wait_while_halted()
        ask = await self._gate.check_work(run, is_continued=run.is_continued)
        if ask is not None:
            # Without a state: the next leg begins as the first one.
            raise Paused([ask], None)

        is_first_leg = run.leg is None
        if is_first_leg and run.spec.purpose is None:
            await self._load_earlier(run)
        await execute_component(run.component, run, self._catalog)

    async def _load_earlier(self, run: LiveRun) -> None:
        """Set the earlier runs of the session that the component gets."""
        # A workflow has no messages; its steps share the state.
        damaged_bytes = run.state.measure_damage() if run.component.kind != "workflow" else 0
        if damaged_bytes:
            leave_out(run, "damaged_state", "", damaged_bytes)

        run.earlier_runs = await _load_history(run, self._catalog)

        origin = run.spec.origin
        kept_messages = () if origin is None else origin.messages
        messages = (*kept_messages, *run.spec.earlier_messages)
        if messages:
            run.earlier_runs = [*run.earlier_runs, EarlierRun(messages, from_request=True)]


async def _wait_for_end(run: LiveRun, work: asyncio.Task[None]) -> None:
    """Wait for the end of the work, a stop, or the time limit, which halts prolong."""
    # The clock of the wait itself: another one could differ from it.
    clock = asyncio.get_running_loop().time
    began = clock()
    seconds_left = run.spec.time_limit
    while seconds_left > 0:
        timeout = seconds_left
        if run.is_held:
            # The rest of its time stays the same: without a minimum, this would be a busy loop.
            timeout = max(seconds_left, HELD_LOOK_SECONDS)
        await asyncio.wait(
            {work, run.stop_requested}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if work.done() or run.stop_requested.done():
            return

        worked_seconds = clock() - began - run.held_seconds
        seconds_left = run.spec.time_limit - worked_seconds


async def _claim_run(run: LiveRun) -> bool:
    """Take a background run, whose row is PENDING until now; return False if the run must stop.

    The row of any other run is RUNNING from its first transaction on.
    """
    if run.requested_end is not None:
        return False
    if run.leg is not None or not run.spec.background:
        return True
    return await retry_while_unavailable(
        lambda: run.database.write(_claim_row(run, now())), stopped=run.stop_requested
    )


@unit
def _claim_row(run: LiveRun, at: int) -> Steps[bool]:
    if (yield from runs.claim(run.run_id, run.attempt, run.worker_id, at)):
        return True

    # An earlier attempt with an unknown outcome may have claimed it.
    state = yield from run_reads.get_state(run.run_id)
    return state is not None and (state.status, state.attempt) == ("RUNNING", run.attempt)


async def _load_history(run: LiveRun, catalog: Catalog) -> list[EarlierRun]:
    """Return the last `history_runs` runs of the session, oldest first.

    Their number and size are limited, so that the cost of a run does not depend on the length of
    its session (docs/contract.md "Runs"). Members' runs and workflows have no history.
    """
    has_history = run.component.kind != "workflow" and run.spec.session_history
    if run.parent is not None or run.is_first or not has_history:
        return []

    # Outside of the retries: a factory that fails is not called again and again.
    native_kinds: Sequence[str] | None = None
    if catalog.is_hosted(run.component):
        native_kinds = await catalog.find_native_kinds(run.component)
    return await retry_while_unavailable(
        lambda: _read_history(run, catalog, native_kinds), stopped=run.stop_requested
    )


async def _read_history(
    run: LiveRun, catalog: Catalog, native_kinds: Sequence[str] | None
) -> list[EarlierRun]:
    """Return the earlier runs of the session.

    Args:
        native_kinds: the kinds of native messages that the agent in code reads; None for another
            component.
    """
    component = run.component
    # One run is always read: for its system message, which is not repeated in `chat_history`.
    count = max(component.history_runs, 1)
    before = None if run.spec.origin is None else run.spec.origin.before

    covered = 0
    if native_kinds is None and component.worker.summary.every_runs:
        covered = await _load_summary(run)

    history_rows = await _read_recent(run, count, native_kinds, covered, before)
    if native_kinds is not None:
        history_rows = run_reads.drop_until_too_large(history_rows)
    elif not covered:
        # The messages may fill the window: the summary, if there is one, replaces some of them.
        window = catalog.model(component).context_tokens or SMALL_WINDOW
        if sum(len(row.messages) for row in history_rows) > window:
            await _load_summary(run)

    recent_rows = history_rows
    if covered and not history_rows:
        # The summary covers all runs: the newest one is read for its system message only.
        recent_rows = await _read_recent(run, 1, native_kinds)

    parsed_runs: list[tuple[run_reads.RecentRun, list[dict[str, Any]]]] = []
    for row in recent_rows:
        messages = _parse(run, row)
        if messages is not None:
            parsed_runs.append((row, messages))
    if parsed_runs:
        _, last_messages = parsed_runs[-1]
        run.previous_instructions = _find_instructions(last_messages)

    if not history_rows or not component.history_runs:
        return []
    return [_build_earlier(row, messages) for row, messages in parsed_runs]


def _parse(run: LiveRun, row: run_reads.RecentRun) -> list[dict[str, Any]] | None:
    """Return the messages of an earlier run; None if they are damaged, as the run then reports."""
    messages = parse_messages(row.messages)
    if messages is None:
        leave_out(run, "damaged_messages", row.run_id, len(row.messages.encode()))
    return messages


async def _read_recent(
    run: LiveRun,
    count: int,
    native_kinds: Sequence[str] | None,
    after: int = 0,
    before: int | None = None,
) -> Sequence[run_reads.RecentRun]:
    recent = run_reads.list_recent(
        run.spec.session_id,
        count,
        HISTORY_BYTES,
        native_kinds=native_kinds or (),
        after_seq=after,
        before_seq=before,
    )
    return await run.database.read(recent, size="run")


def _build_earlier(row: run_reads.RecentRun, messages: list[dict[str, Any]]) -> EarlierRun:
    """Return a run as later runs get it: of a run that was too large its message and one line."""
    later_messages = [message for message in messages if message["role"] != "system"]
    if row.was_too_large:
        size = sum(map(measure_message, later_messages))
        return EarlierRun(shorten_run(later_messages), run_id=row.run_id, omitted_bytes=size)

    native = row.native if is_acceptable(later_messages) else None
    return EarlierRun(later_messages, native, run_id=row.run_id, seq=row.seq)


async def _load_summary(run: LiveRun) -> int:
    """Read the summary of the session; return the number of the last run that it covers."""
    summary = parse_summary(await run.database.read(sessions.get_summary(run.spec.session_id)))
    run.summary = summary.text or None
    if summary.damaged_bytes:
        leave_out(run, "damaged_summary", "", summary.damaged_bytes)
    return summary.covered if summary.text else 0


def _find_instructions(messages: list[dict[str, Any]]) -> str | None:
    return next((message["content"] for message in messages if message["role"] == "system"), None)


async def _stop_children(run: LiveRun) -> None:
    """Stop the members that this process executes, and wait for their ends for a short time.

    Members that a library executes end later (`_end_reported`).
    """
    executed = [child for child in run.children if not isinstance(child, ReportedRun)]
    open_children = [child for child in executed if not child.ended.done()]
    for child in open_children:
        child.stop(run.requested_end or PARENT_ENDED)

    if open_children:
        # Twice: each child waits as long for its own work first.
        await wait_until_done({child.ended for child in open_children}, 2 * GRACE_SECONDS)
    for child in executed:
        _add_unstopped(run, child)


async def _end_reported(run: LiveRun) -> None:
    """End the members that the library left open.

    Work of the run that continues may be theirs, so each of them reports it, too.
    """
    if not run.reported:
        return

    ending = run.requested_end or PARENT_ENDED
    for member in run.reported:
        if not member.is_reported:
            member.transcript.unstopped.add_present(run.transcript.unstopped)
            member.stop(ending)
            member.end_report()

    open_ends = {member.ended for member in run.reported if not member.ended.done()}
    if open_ends:
        await wait_until_done(open_ends, 2 * GRACE_SECONDS)
    for member in run.reported:
        _add_unstopped(run, member)


def _add_unstopped(run: LiveRun, child: LiveRun) -> None:
    run.transcript.unstopped.add_all(child.transcript.unstopped)
    run.transcript.unstopped.add(child.ended, has_result=False)


def _format_begin(run: LiveRun) -> tuple[str, bytes]:
    at: int | None = None
    if run.start_place is not None:
        at = run.start_place.at

    version_fields: dict[str, Any] = {}
    if run.spec.version is not None:
        version_fields["version"] = run.spec.version
    if run.version_change is not None:
        version_fields["version_change"] = orjson.loads(run.version_change)

    if run.attempt == 1:
        return event_rows.format_started(run.identity, run.spec.origin, at, version_fields)

    decisions = run.leg.decisions if run.leg else []
    return event_rows.format_continued(
        run.identity, run.attempt, run.transcript.content, decisions, at, version_fields
    )


def _keep_state(run: LiveRun, ending: LegEnd) -> LegEnd:
    """Keep the state of the session; return the end of the run, a failure if it is not stored."""
    try:
        run.keep_state()
    except ExecutionError as failure:
        _log.warning("run %s: its state is not stored: %s", run.run_id, failure.detail)
        if ending.status in ("COMPLETED", "PAUSED"):
            return Ending.failed(failure.code, failure.detail)
    return ending


def _publish_end(run: LiveRun, ending: LegEnd | None) -> None:
    """Publish the last event of a leg, and close the stream of a root run.

    A hand-over, and an end that is not stored, have no last event: followers read on elsewhere.
    """
    last_event: tuple[str, bytes] | None = None
    if run.stream.recorded:
        if isinstance(ending, Pause):
            last_event = ending.event
        elif isinstance(ending, Ending):
            last_event = event_rows.format_end(
                run.identity, ending, run.transcript, run.finished_at
            )

    if run.parent is None:
        run.stream.close(last_event)
    elif last_event is not None:
        run.stream.publish(*last_event, place=run.end_place)


async def _record_stopped_work(run: LiveRun, write: Work[object], stopped_work: str) -> None:
    """Store that work which continued after the end of its run has stopped.

    Args:
        stopped_work: names the work in the log.
    """
    try:
        # Nothing else would record it: the run would seem to hold this work for ever.
        await retry_while_unavailable(lambda: run.database.write(write))
    except errors.AgentctlError:
        _log.warning("run %s: could not record that %s has ended", run.run_id, stopped_work)


@unit
def _replace_holding(run: LiveRun) -> Steps[None]:
    # Read the names now: more work may have ended since the unit was scheduled.
    names = run.transcript.unstopped.names
    if names:
        yield from runs.set_holding(run.run_id, run.attempt, orjson.dumps(names).decode())


def _find_ending(run: LiveRun, work: asyncio.Task[None]) -> LegEnd:
    """Return how a leg ends by the outcome of its work.

    A result counts although a stop was requested. For everything else, the stop is the cause.
    """
    if not work.done() or work.cancelled():
        return run.requested_end or _INTERRUPTED
    failure = work.exception()
    if failure is None:
        return Ending.completed()
    if run.requested_end is not None:
        return run.requested_end

    if isinstance(failure, Paused):
        return Pause(failure.asks, failure.state)
    if isinstance(failure, Parked):
        return HandOver()
    if isinstance(failure, ExecutionError):
        return Ending.failed(failure.code, failure.detail)
    if isinstance(failure, errors.BytesMissing):
        return Ending.failed("INTERNAL", failure.detail)
    if errors.is_store_failure(failure):
        return DATABASE_UNAVAILABLE

    _log.error("run %s failed", run.run_id, exc_info=failure)
    return _FAILED
