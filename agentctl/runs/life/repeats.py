"""Runs that repeat another one: what they begin with, and which calls they may make again.

A retry begins after the last finished tool calls of its origin, a fork after one of its messages.
Agents in code and broadcasts have no state in their messages, so that their retries work from the
beginning; a workflow begins with its first step that did not complete.
docs/contract.md "Retry and fork" has the rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agentctl.records.approvals import ApprovalRow
from agentctl.records.document import parse_records, require
from agentctl.records.items import DELEGATIONS
from agentctl.records.messages import parse_messages
from agentctl.records.run_spec import (
    MAXIMUM_SHOWN_ARGUMENTS,
    MAXIMUM_SHOWN_CALLS,
    CallState,
    Origin,
    RepeatedCallRecord,
    RepeatPlan,
)
from agentctl.records.runs import RunRow
from agentctl.records.text import new_id
from agentctl.runs.workers.recovery import WORKER_LOST_REASON
from agentctl.runtime.component import Component
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.transcript.history import CANCELLED_RESULT, mark_kept
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals, run_reads
from agentctl.store.visibility import EVERYONE, Visibility

Message = Mapping[str, Any]


def _load(text: str | None) -> list[dict[str, Any]]:
    return require(parse_records(text or "[]"))


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """A run that has ended, with everything below it.

    Attributes:
        below: the runs of its members and steps and those below them, without background work.
        asked: what it and they waited for.
        retries: the runs that are retries of it, oldest first.
    """

    row: RunRow
    below: Sequence[RunRow]
    asked: Sequence[ApprovalRow]
    retries: Sequence[str]

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages as its record has them."""
        return require(parse_messages(self.row.messages or "[]"))

    @property
    def files(self) -> list[dict[str, Any]]:
        """The references of the files of its message, without those that it has made."""
        return [each for each in _load(self.row.files) if "created_at" not in each]

    @property
    def was_lost(self) -> bool:
        """True if its server died, so that its last calls may not be known."""
        runs = (self.row, *self.below)
        return any(
            run.error_code == "WORKER_LOST"
            or (run.cancel_reason or "").lower().endswith(WORKER_LOST_REASON.lower())
            for run in runs
        )


@unit
def load_origin(run_id: str, visibility: Visibility) -> Steps[StoredOrigin | None]:
    """Read a run and the runs below it; None if no visible run has the id."""
    row = yield from run_reads.get(run_id, visibility)
    if row is None:
        return None
    below = list[RunRow]()
    level = [run_id]
    while level:
        children = yield from run_reads.list_children(level)
        level = []
        for child_id in [each for ids in children.values() for each in ids]:
            child = yield from run_reads.get(child_id, EVERYONE)
            if child is not None and child.purpose is None:
                below.append(child)
                level.append(child_id)
    asked = yield from approvals.list_of_root(run_id)
    retries = yield from run_reads.list_retries(run_id)
    # The ids begin with their time.
    return StoredOrigin(row, below, asked, sorted(retries))


def copy_files(
    origin: Origin, files: Sequence[Mapping[str, Any]]
) -> tuple[Origin, list[dict[str, Any]], dict[str, str]]:
    """Return what a run of another session begins with, its files, and the ids of their copies.

    Files are deleted with their session, so the session of the new run gets separate rows for
    all files that its messages name.
    """
    listed = [*files, *(file for each in origin.messages for file in each.get("files", ()))]
    copies = {file["file_id"]: new_id() for file in listed}

    def copy(files: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**file, "file_id": copies[file["file_id"]]} for file in files]

    messages = tuple(
        {**each, "files": copy(each["files"])} if "files" in each else each
        for each in origin.messages
    )
    return replace(origin, messages=messages), copy(files), copies


def can_continue(component: Component, catalog: Catalog) -> bool:
    """Return True if a run of the component can go on after the results of tool calls."""
    if component.kind == "workflow" or catalog.is_hosted(component):
        return False
    return component.kind == "agent" or component.team.mode != "broadcast"


def plan_retry(stored: StoredOrigin, component: Component, catalog: Catalog) -> Origin:
    """Return what a retry of a run begins with."""
    row = stored.row
    origin = Origin(row.run_id, "retry", before=row.seq)
    if component.kind == "workflow":
        at, output = _find_step(stored, catalog.steps(component))
        return Origin(row.run_id, "retry", at, row.seq, step_input=output)
    messages = stored.messages
    asked = next((n for n, each in enumerate(messages) if _is_own(each, "user")), None)
    at = _find_last_step(messages, _load(row.tools)) if can_continue(component, catalog) else 0
    if at and (asked is None or at > asked):
        return Origin(row.run_id, "retry", at, row.seq, mark_kept(messages[:at], row.run_id), False)
    at = sum(1 for each in messages if "origin_run_id" in each)
    if not at:
        return origin
    at += sum(1 for each in messages if each["role"] == "system")
    kept = mark_kept(messages[:at], row.run_id)
    return Origin(row.run_id, "retry", at, row.seq, kept, asked is not None)


def find_open_calls(messages: Sequence[Message], at: int) -> tuple[int, int] | None:
    """Return the numbers of messages around unfinished calls at a message; None if there are none.

    Args:
        at: number of messages from the beginning.

    Returns:
        The number of messages before the answer with the calls, and with all of their results.
    """
    start = at
    while start and messages[start - 1]["role"] == "tool":
        start -= 1
    if not start or not messages[start - 1].get("tool_calls"):
        return None
    end = start
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    answered = {each["tool_call_id"] for each in messages[start:at]}
    is_open = any(call["id"] not in answered for call in messages[start - 1]["tool_calls"])
    return (start - 1, end) if is_open else None


def _is_own(message: Message, role: str) -> bool:
    return message["role"] == role and "origin_run_id" not in message


def _find_last_step(messages: Sequence[Message], tools: Sequence[Message]) -> int:
    """Return the number of messages up to the last results of which one is not a failure.

    All calls of each answer before it have ended.
    """
    states = {tool["tool_call_id"]: _find_state(tool) for tool in tools}
    last = 0
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = [call["id"] for call in message.get("tool_calls") or ()]
        if not calls:
            continue
        answered = set()
        while index < len(messages) and messages[index]["role"] == "tool":
            answered.add(messages[index]["tool_call_id"])
            index += 1
        known = "origin_run_id" in message
        found = ["done" if known else states.get(call_id, "unknown") for call_id in calls]
        if "unknown" in found or not answered.issuperset(calls):
            break
        if "done" in found:
            last = index
    return last


def _find_step(stored: StoredOrigin, steps: Sequence[tuple[str, Component]]) -> tuple[int, Any]:
    """Return the first step of a workflow that did not complete, and its input.

    A step counts if the configuration still has it. The last step is always repeated.
    """
    runs = {run.run_id: run for run in stored.below}
    spans = {
        int(str(span["id"]).removeprefix("step-")): span
        for span in _load(stored.row.spans)
        if span.get("kind") == "step"
    }
    index = min(spans, default=0)
    found: str | None = None
    while index < len(steps):
        span = spans.get(index)
        run = runs.get(span["member_run_id"] or "") if span is not None else None
        name, worker = steps[index]
        if span is None or run is None or (span["name"], run.component_id) != (name, worker.id):
            break
        found = run.input if index else None
        if run.status != "COMPLETED" or index == len(steps) - 1:
            break
        found = run.content or ""
        index += 1
    return (index, found) if found is not None else (0, None)


def _find_state(tool: Message) -> CallState:
    if tool["tool_call_error"] is None or tool["result"] == CANCELLED_RESULT:
        return "unknown"
    return "failed" if tool["tool_call_error"] else "done"


def build_plan(stored: StoredOrigin, origin: Origin, *, runs_code: bool) -> RepeatPlan:
    """Return the plan of a run: the calls of its origin that it may make again.

    Args:
        runs_code: True if the code of an agent in code runs again.
    """
    calls = list(_list_calls(stored, origin))
    is_retry = origin.kind == "retry"
    retries = list(stored.retries) if is_retry else []
    shown = [origin.run_id, origin.kind, origin.at, calls, runs_code, stored.was_lost, retries]
    plan: RepeatPlan = {
        "run_id": origin.run_id,
        "kind": origin.kind,
        "at": origin.at,
        "calls": calls[:MAXIMUM_SHOWN_CALLS],
        "calls_total": len(calls),
        "runs_code": runs_code,
        "calls_unknown": stored.was_lost,
        "retries": retries,
        "confirm": f"sha256:{hashlib.sha256(orjson.dumps(shown)).hexdigest()}",
    }
    return plan


def needs_confirmation(plan: RepeatPlan) -> bool:
    """Return True if the run of a plan may repeat an effect."""
    return bool(plan["calls"] or plan["runs_code"] or plan["calls_unknown"] or plan["retries"])


def _list_calls(stored: StoredOrigin, origin: Origin) -> Iterator[RepeatedCallRecord]:
    """Yield the calls that are not part of what the run begins with, without delegations."""
    kept = {call["id"] for each in origin.messages for call in each.get("tool_calls") or ()}
    steps = 0 if origin.step_input is None else origin.at
    done = kept | {f"step-{index}" for index in range(steps)}
    spans = [span for span in _load(stored.row.spans) if span.get("member_run_id")]
    finished = {span["member_run_id"] for span in spans if done & {span["id"], span["parent"]}}
    asked = {(row.run_id, row.tool_call_id): row for row in stored.asked}
    yield from _list_calls_of(stored.row, kept, asked)
    for run in stored.below:
        if run.run_id in finished or run.parent_run_id in finished:
            finished.add(run.run_id)
            continue
        yield from _list_calls_of(run, (), asked)


def _list_calls_of(
    run: RunRow, kept: Collection[str], asked: Mapping[tuple[str, str], ApprovalRow]
) -> Iterator[RepeatedCallRecord]:
    for tool in _load(run.tools):
        call_id = tool["tool_call_id"]
        approval = asked.get((run.run_id, call_id))
        if call_id in kept or tool["tool_name"] in DELEGATIONS:
            continue
        if approval is not None and approval.kind != "outcome" and approval.execution is None:
            continue  # it was never made
        state = _find_state(tool)
        if approval is not None and approval.execution in ("executing", "unknown"):
            state = "unknown"
        arguments = orjson.dumps(tool["tool_args"]).decode()
        if len(arguments) > MAXIMUM_SHOWN_ARGUMENTS:
            arguments = f"{arguments[:MAXIMUM_SHOWN_ARGUMENTS]}…"
        yield {
            "run_id": run.run_id,
            "tool_call_id": call_id,
            "tool_name": tool["tool_name"],
            "arguments": arguments,
            "state": state,
        }
