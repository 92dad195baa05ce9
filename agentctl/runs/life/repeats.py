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
from agentctl.records.items import CANCELLED_RESULT, DELEGATIONS
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
from agentctl.runtime.transcript.history import mark_kept
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import approvals, run_reads
from agentctl.store.visibility import EVERYONE, Visibility

Message = Mapping[str, Any]


def _parse_list(text: str | None) -> list[dict[str, Any]]:
    """Return the objects of a stored JSON array; none for a column that is NULL."""
    return require(parse_records(text or "[]"))


@dataclass(frozen=True, slots=True)
class StoredOrigin:
    """A run that has ended, with everything below it."""

    row: RunRow

    runs_below: Sequence[RunRow]
    """The runs of its members and steps and the runs below them, without background work."""

    approvals: Sequence[ApprovalRow]
    """The approvals of all these runs."""

    retries: Sequence[str]
    """The ids of the runs that are retries of it, oldest first."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Its messages as its record has them."""
        return require(parse_messages(self.row.messages or "[]"))

    @property
    def files(self) -> list[dict[str, Any]]:
        """The references of the files of its message, without the files that it has saved."""
        return [file for file in _parse_list(self.row.files) if "created_at" not in file]

    @property
    def was_lost(self) -> bool:
        """True if its server died, so that its last calls may not be known."""
        for run in (self.row, *self.runs_below):
            if run.error_code == "WORKER_LOST":
                return True
            # A run that was to be cancelled when its server died is CANCELLED: its reason says so.
            cancel_reason = run.cancel_reason or ""
            if cancel_reason.lower().endswith(WORKER_LOST_REASON.lower()):
                return True
        return False


@unit
def load_origin(run_id: str, visibility: Visibility) -> Steps[StoredOrigin | None]:
    """Read a run and the runs below it; None if no visible run has the id."""
    row = yield from run_reads.get(run_id, visibility)
    if row is None:
        return None

    runs_below = list[RunRow]()
    level_ids = [run_id]
    while level_ids:
        child_ids_by_parent = yield from run_reads.list_children(level_ids)
        level_ids = []
        for child_ids in child_ids_by_parent.values():
            for child_id in child_ids:
                child = yield from run_reads.get(child_id, EVERYONE)
                if child is not None and child.purpose is None:
                    runs_below.append(child)
                    level_ids.append(child_id)

    approval_rows = yield from approvals.list_of_root(run_id)
    retries = yield from run_reads.list_retries(run_id)
    # The ids begin with their time.
    return StoredOrigin(row, runs_below, approval_rows, sorted(retries))


def copy_files(
    origin: Origin, files: Sequence[Mapping[str, Any]]
) -> tuple[Origin, list[dict[str, Any]], dict[str, str]]:
    """Copy the files of a run of another session.

    Files are deleted with their session, so the session of the new run gets separate rows for
    all files that its messages name.

    Args:
        files: the references of the files of its own message.

    Returns:
        The origin and the references with the ids of the copies, and these ids by the ids of the
        files.
    """
    all_files = [*files]
    for message in origin.messages:
        all_files += message.get("files", ())
    copy_ids = {file["file_id"]: new_id() for file in all_files}

    def refer_to_copies(references: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{**file, "file_id": copy_ids[file["file_id"]]} for file in references]

    messages = list[Mapping[str, Any]]()
    for message in origin.messages:
        if "files" in message:
            message = {**message, "files": refer_to_copies(message["files"])}
        messages.append(message)

    return replace(origin, messages=tuple(messages)), refer_to_copies(files), copy_ids


def can_continue(component: Component, catalog: Catalog) -> bool:
    """Return True if a run of the component can begin after the results of tool calls."""
    if component.kind == "workflow" or catalog.is_hosted(component):
        return False
    return component.kind == "agent" or component.team.mode != "broadcast"


def plan_retry(stored: StoredOrigin, component: Component, catalog: Catalog) -> Origin:
    """Return what a retry of a run begins with.

    It keeps as much of the run as has certainly succeeded: the steps of a workflow that completed,
    or the messages up to the last results of calls. Otherwise it begins as the run did.
    """
    row = stored.row
    if component.kind == "workflow":
        at, output = _find_step(stored, catalog.steps(component))
        return Origin(row.run_id, "retry", at, row.seq, step_input=output)

    messages = stored.messages
    question_index: int | None = None
    for index, message in enumerate(messages):
        if _is_own(message, "user"):
            question_index = index
            break

    if can_continue(component, catalog):
        at = _find_last_step(messages, _parse_list(row.tools))
        while at and at < len(messages) and "message_id" in messages[at]:
            # A message that was sent to the run after these results.
            at += 1

        # Before its question, there are only messages of the run that this one repeats.
        if at and (question_index is None or at > question_index):
            kept_messages = mark_kept(messages[:at], row.run_id)
            return Origin(row.run_id, "retry", at, row.seq, kept_messages, False)

    kept_count = sum(1 for message in messages if "origin_run_id" in message)
    if not kept_count:
        return Origin(row.run_id, "retry", before=row.seq)

    # The run is itself a repetition: the retry begins with the same messages of its origin.
    at = kept_count + sum(1 for message in messages if message["role"] == "system")
    kept_messages = mark_kept(messages[:at], row.run_id)
    return Origin(row.run_id, "retry", at, row.seq, kept_messages, question_index is not None)


def find_open_calls(messages: Sequence[Message], at: int) -> tuple[int, int] | None:
    """Return the numbers of messages around unfinished calls at a message; None if there are none.

    For example, with the messages user, answer with two calls, result, result: after the first
    result (`at` is 3) the second call is open, and the numbers are 1 and 4.

    Args:
        at: number of messages from the beginning.

    Returns:
        The number of messages before the answer with the calls, and with all of their results.
    """
    start = at
    while start and messages[start - 1]["role"] == "tool":
        start -= 1
    if not start:
        return None

    calls = messages[start - 1].get("tool_calls")
    if not calls:
        return None

    answered_ids = {message["tool_call_id"] for message in messages[start:at]}
    if all(call["id"] in answered_ids for call in calls):
        return None

    end = start
    while end < len(messages) and messages[end]["role"] == "tool":
        end += 1
    return start - 1, end


def _is_own(message: Message, role: str) -> bool:
    return message["role"] == role and "origin_run_id" not in message


def _find_last_step(messages: Sequence[Message], tools: Sequence[Message]) -> int:
    """Return the number of messages up to the last group of results that has a success.

    All calls of each answer before it have ended. It is 0 if there is no such group.

    Args:
        tools: the calls of the run.
    """
    states = {tool["tool_call_id"]: _find_state(tool) for tool in tools}
    last = 0
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        call_ids = [call["id"] for call in message.get("tool_calls") or ()]
        if not call_ids:
            continue

        answered_ids = set()
        while index < len(messages) and messages[index]["role"] == "tool":
            answered_ids.add(messages[index]["tool_call_id"])
            index += 1

        if "origin_run_id" in message:
            # The calls of the run that this one repeats were checked then.
            call_states: list[CallState] = ["done"]
        else:
            call_states = [states.get(call_id, "unknown") for call_id in call_ids]
        if "unknown" in call_states or not answered_ids.issuperset(call_ids):
            break
        if "done" in call_states:
            last = index

    return last


def _find_step(stored: StoredOrigin, steps: Sequence[tuple[str, Component]]) -> tuple[int, Any]:
    """Return the first step of a workflow that did not complete, and its input.

    A step counts if the configuration still has it. The last step is always repeated. Without a
    step that counts, the result is 0 and None: the workflow begins with its own input.

    Args:
        steps: the name and the component of each step in the configuration.
    """
    runs = {run.run_id: run for run in stored.runs_below}
    spans = {
        int(str(span["id"]).removeprefix("step-")): span
        for span in _parse_list(stored.row.spans)
        if span.get("kind") == "step"
    }

    # A retry of a retry has no spans of the steps before its first one.
    index = min(spans, default=0)
    step_input: str | None = None
    while index < len(steps):
        span = spans.get(index)
        if span is None:
            break
        run = runs.get(span["member_run_id"] or "")
        name, worker = steps[index]
        if run is None or span["name"] != name or run.component_id != worker.id:
            break

        step_input = run.input if index else None
        if run.status != "COMPLETED" or index == len(steps) - 1:
            break
        step_input = run.content or ""
        index += 1

    if step_input is None:
        return 0, None
    return index, step_input


def _find_state(tool: Message) -> CallState:
    """Return what is known of a call: `done`, `failed` or `unknown`."""
    if tool["tool_call_error"] is None or tool["result"] == CANCELLED_RESULT:
        return "unknown"
    return "failed" if tool["tool_call_error"] else "done"


def build_plan(stored: StoredOrigin, origin: Origin, *, runs_code: bool) -> RepeatPlan:
    """Return the plan of a run: the calls of its origin that it may make again.

    Args:
        runs_code: True if the code of an agent in code runs again.
    """
    calls = list(_list_calls(stored, origin))
    retries = list(stored.retries) if origin.kind == "retry" else []

    # All calls, not only the shown ones: a confirmation counts for this plan and no other.
    confirmed = [origin.run_id, origin.kind, origin.at, calls, runs_code, stored.was_lost, retries]
    digest = hashlib.sha256(orjson.dumps(confirmed)).hexdigest()

    plan: RepeatPlan = {
        "run_id": origin.run_id,
        "kind": origin.kind,
        "at": origin.at,
        "calls": calls[:MAXIMUM_SHOWN_CALLS],
        "calls_total": len(calls),
        "runs_code": runs_code,
        "calls_unknown": stored.was_lost,
        "retries": retries,
        "confirm": f"sha256:{digest}",
    }
    return plan


def needs_confirmation(plan: RepeatPlan) -> bool:
    """Return True if the run of a plan may repeat an effect."""
    return bool(plan["calls"] or plan["runs_code"] or plan["calls_unknown"] or plan["retries"])


def _list_calls(stored: StoredOrigin, origin: Origin) -> Iterator[RepeatedCallRecord]:
    """Yield the calls that are not part of what the run begins with, without delegations."""
    kept_call_ids: set[str] = set()
    for message in origin.messages:
        kept_call_ids |= {call["id"] for call in message.get("tool_calls") or ()}

    # The members of a kept call or a kept step have ended: nothing of them is made again.
    kept_steps = 0 if origin.step_input is None else origin.at
    kept_span_ids = kept_call_ids | {f"step-{index}" for index in range(kept_steps)}
    kept_run_ids: set[str] = set()
    for span in _parse_list(stored.row.spans):
        if span.get("member_run_id") and kept_span_ids & {span["id"], span["parent"]}:
            kept_run_ids.add(span["member_run_id"])

    approval_rows = {(row.run_id, row.tool_call_id): row for row in stored.approvals}
    yield from _list_calls_of(stored.row, kept_call_ids, approval_rows)
    # Parents come before their children.
    for run in stored.runs_below:
        if run.run_id in kept_run_ids or run.parent_run_id in kept_run_ids:
            kept_run_ids.add(run.run_id)
            continue
        yield from _list_calls_of(run, (), approval_rows)


def _list_calls_of(
    run: RunRow,
    kept_call_ids: Collection[str],
    approval_rows: Mapping[tuple[str, str], ApprovalRow],
) -> Iterator[RepeatedCallRecord]:
    for tool in _parse_list(run.tools):
        call_id = tool["tool_call_id"]
        approval = approval_rows.get((run.run_id, call_id))
        if call_id in kept_call_ids or tool["tool_name"] in DELEGATIONS:
            continue
        if approval is not None and approval.kind != "outcome" and approval.execution is None:
            # It was never made.
            continue

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
