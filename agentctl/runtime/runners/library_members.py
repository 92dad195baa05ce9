"""The members of a library: a team of agno, a subgraph of LangGraph, a handoff of openai-agents.

The library executes them itself, inside the run of their parent. A runner reports each of them as
the run of a member. It then has its own record, with messages and tokens, and its own events
(`RunStarted` with `parent_run_id` to `RunCompleted`), and appears where members of configured teams
appear: in `member_runs`, spans, items, transcripts and exports (decision 84).

    members = LibraryMembers(run)                       # once in each leg of the run
    member = members.start("researcher", "researcher", task, call_id=call_id)
    member.run.add_text("Found it")                     # every report of a HostedRun
    member.run.environment.add_usage({"input_tokens": 3})  # not added to the run as well
    members.end("researcher")

A key names one execution of a member: a library that starts the same agent twice needs two keys.
`parent` is the key of the member that started another member. Reports may be made before the row of
the member is committed; nothing waits for that.

Members that are open when the runner returns are complete. If it raises ExecutionError, the member
in which it happened fails with it, if that is clear, and the others are cancelled. If it raises
`Paused`, open members are paused. The runner keeps `members.to_json()` in the state of the pause,
and calls `await members.restore(stored)` first in the next leg. A cancel needs nothing.

A run that has `MAXIMUM_MEMBERS` members fails when the next one starts.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentctl.records.text import replace_unstorable
from agentctl.runtime.context import ReportedMember, RunEnvironment
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Paused
from agentctl.runtime.runners.hosted_run import HostedRun

MAXIMUM_MEMBERS = 1_000
"""Maximum number of members of a library in one leg of a run."""

NAME_CHARACTERS = 200
"""Characters of the name of a member; a longer one is cut."""

_FAILED_WAIT_SECONDS = 2.0
"""Maximum time until a run that failed ends without its members."""

MemberKind = Literal["agent", "team"]


@dataclass(slots=True)
class LibraryMember:
    """One execution of a member."""

    key: str
    """Names this execution in its run."""

    name: str
    kind: MemberKind

    run: HostedRun
    """Receives the reports about the member."""

    parent: str | None
    """The key of the member that started it; None for the run itself."""

    _environment: ReportedMember

    @property
    def is_open(self) -> bool:
        return not self._environment.is_reported

    @property
    def run_id(self) -> str:
        return self._environment.spec.run_id

    def end(self, failure: ExecutionError | None = None) -> None:
        """Report the end: the member is complete, or has failed. Only the first end counts."""
        _end(self._environment, failure)


class LibraryMembers:
    """The members of one run, by the keys of its runner."""

    def __init__(self, run: HostedRun) -> None:
        self._run = run
        self._members: dict[str, LibraryMember] = {}
        self._started = 0

    def find(self, key: str) -> LibraryMember | None:
        return self._members.get(key)

    def list_open(self) -> list[LibraryMember]:
        """Return the members that have not ended, parents first."""
        return [member for member in self._members.values() if member.is_open]

    def start(
        self,
        key: str,
        name: object,
        task: str,
        *,
        kind: MemberKind = "agent",
        parent: str | None = None,
        call_id: str | None = None,
    ) -> LibraryMember:
        """Report that a member starts. A key whose member has ended names a new one.

        Args:
            name: id and name of the member in records and events.
            task: its input, which is its first message.
            call_id: the open tool call of its parent that started it.

        Raises:
            ExecutionError: the run has `MAXIMUM_MEMBERS`.
            asyncio.CancelledError: the run has to stop.
        """
        if self._started == MAXIMUM_MEMBERS:
            raise ExecutionError("AGENT_FAILED", "The run has too many members")

        self._started += 1

        name = replace_unstorable(str(name))[:NAME_CHARACTERS] or "member"
        task = replace_unstorable(task)

        parent_run = self._find_run(parent)
        environment = parent_run.environment.report_member(kind, name, task, call_id=call_id)

        environment.transcript.forget_usage()
        # Without the files of the run: the library decides what its member gets.
        environment.transcript.add_user(task)
        return self._add(key, name, kind, parent, environment)

    def end(self, key: str, failure: ExecutionError | None = None) -> None:
        """Report the end of a member and of the members that it started; see `LibraryMember.end`.

        A key without a member is ignored.
        """
        for member in reversed(self._members.values()):
            if member.key == key or self._is_below(member, key):
                member.end(failure if member.key == key else None)

    def to_json(self) -> list[dict[str, Any]]:
        """Return the open members for the state of a pause."""
        names = ("key", "name", "kind", "parent", "run_id")
        return [{name: getattr(member, name) for name in names} for member in self.list_open()]

    async def restore(self, entries: Iterable[Mapping[str, Any]]) -> None:
        """Continue with the members of a pause. One that was ended meanwhile is left out."""
        for entry in entries:
            name = entry["name"]
            kind = entry["kind"]
            parent = entry["parent"]

            parent_environment = self._find_run(parent).environment
            environment = await parent_environment.continue_reported(kind, name, entry["run_id"])

            if environment is not None:
                self._add(entry["key"], name, kind, parent, environment)

    def _add(
        self, key: str, name: str, kind: MemberKind, parent: str | None, environment: ReportedMember
    ) -> LibraryMember:
        run = HostedRun(environment, self._run.kind, self._run.repeats.limits)
        # A key that is used again moves to the end: parents stay before their members.
        self._members.pop(key, None)
        member = LibraryMember(key, name, kind, run, parent, environment)
        self._members[key] = member
        return member

    def _find_run(self, key: str | None) -> HostedRun:
        member = self._members.get(key) if key is not None else None
        return self._run if member is None else member.run

    def _is_below(self, member: LibraryMember, key: str) -> bool:
        parent = member.parent
        while parent is not None and parent != key:
            above = self._members.get(parent)
            parent = above.parent if above is not None else None
        return parent == key


async def complete_members(environment: RunEnvironment) -> None:
    """End the open members of a run that is complete, and wait until all of them are stored."""
    for member in _walk(environment):
        _end(member, None)
    await _wait(environment.reported)


async def pause_members(environment: RunEnvironment) -> None:
    """Pause the open members of a run that pauses, and wait until that is stored."""
    for member in _walk(environment):
        member.end_report(Paused([], {}))
    await _wait(environment.reported)


async def fail_members(environment: RunEnvironment, failure: ExecutionError) -> None:
    """End the open members of a run that failed, and wait for that for a short time.

    Unless the runner has reported the failure of a member, it is that of the only member without an
    open member below it, and of those above it. Others are ended by the engine, as cancelled with
    their parent.
    """
    if environment.is_stopping:
        return
    if not any(member.has_failed for member in environment.reported):
        for member in reversed(_find_failed(environment)):
            _end(member, failure)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FAILED_WAIT_SECONDS):
            await _wait([member for member in environment.reported if member.is_reported])


def _find_failed(environment: RunEnvironment) -> list[ReportedMember]:
    failed_members: list[ReportedMember] = []
    while True:
        unreported_members = [member for member in environment.reported if not member.is_reported]

        if len(unreported_members) > 1:
            return []

        if not unreported_members:
            return failed_members

        environment = unreported_members[0]
        failed_members.append(unreported_members[0])


def _walk(environment: RunEnvironment) -> Iterator[ReportedMember]:
    """Yield the members of a run, each after the members below it."""
    for member in environment.reported:
        yield from _walk(member)
        yield member


def _end(member: ReportedMember, failure: ExecutionError | None) -> None:
    # A member that has to stop ends with the work of its run, which may be its own.
    if member.is_reported or member.is_stopping:
        return
    if failure is None:
        member.recorder.complete()
    member.end_report(failure)


async def _wait(members: Sequence[ReportedMember]) -> None:
    for member in members:
        await member.wait_until_stored()
