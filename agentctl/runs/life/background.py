"""The background work that follows the end of a run: a summary of the session, and memories.

Background work is a run with a purpose, a child of the run that it follows. So it is listed,
cancelled, drained, counted and recovered like every run. The transaction that creates it locks the
session: a session has at most one live run of each purpose, with any number of servers. Work that a
dead worker has left is done again after the next run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson

from agentctl import errors
from agentctl.config.settings import Agent, Team
from agentctl.interface.requests import SUMMARY_WAIT
from agentctl.records.run_spec import Purpose, RunSpec
from agentctl.records.text import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.life.admission import Admission, admit_child_run
from agentctl.runs.life.live import LiveRun
from agentctl.runs.log.results import parse_summary
from agentctl.runtime.transcript.history import MAXIMUM_INPUT, cut_turn
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import run_reads, sessions

MAXIMUM_TURNS = 100
"""Turns in the input of one summary."""

KNOWN_MEMORIES = 20
"""Memories in the input of an extraction."""


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """The input of a summary."""

    prompt: str
    """The summary so far and the turns after it."""

    last_run_id: str
    """The run with the last of these turns."""

    covered: int
    """The number of this run in its session."""


def build_summary(run: LiveRun) -> str | None:
    """Return the summary that a run has made as JSON text; None if it made none."""
    text = run.transcript.content.strip()
    if run.spec.purpose != "summary" or not text:
        return None

    summary = {
        "summary": text,
        "updated_at": format_rfc3339(run.finished_at or now()),
        "covered_runs": run.spec.covered,
    }
    return orjson.dumps(summary).decode()


def requires_background_work(run: LiveRun) -> bool:
    """Return True for a root run whose component has a setting for background work.

    Also for a root run whose conversation fills the context window of its model: later runs get the
    summary in place of the messages that do not fit.
    """
    spec = run.component.spec
    if run.parent is not None or run.spec.purpose is not None:
        return False
    if not isinstance(spec, Agent | Team):
        return False

    if run.transcript.is_full or spec.summary.every_runs:
        return True
    return spec.memory.mode == "after_run"


async def plan_background_runs(run: LiveRun) -> list[RunSpec]:
    """Return the background runs that a completed run requires (`requires_background_work`).

    These are a summary of its session, an extraction of memories, both or none.
    """
    spec = run.component.spec
    assert isinstance(spec, Agent | Team)

    planned_runs = [await _plan_summary_run(run, spec), await _plan_memory_run(run, spec)]
    return [planned_run for planned_run in planned_runs if planned_run is not None]


async def _plan_summary_run(run: LiveRun, spec: Agent | Team) -> RunSpec | None:
    """Plan a summary after every few turns, and when the conversation fills the window."""
    every_runs = spec.summary.every_runs
    is_full = run.transcript.is_full
    if not every_runs and not is_full:
        return None

    maximum = MAXIMUM_INPUT
    room = run.transcript.room
    if room:
        # A character has at most four bytes, and a token about three.
        maximum = min(MAXIMUM_INPUT, room // 2)

    plan = await plan_summary(run.database, run.spec.session_id, maximum)
    if plan is None:
        return None

    new_turns, summary = plan
    if not is_full and new_turns < every_runs:
        return None
    return build_background_spec(run.spec, "summary", summary)


async def _plan_memory_run(run: LiveRun, spec: Agent | Team) -> RunSpec | None:
    """Plan the extraction of memories from the turn of a run, if its user has memories."""
    if spec.memory.mode != "after_run" or run.memories is None:
        return None

    known_memories = await run.memories.recall(run.spec.input, limit=KNOWN_MEMORIES)
    lines = [f"- [{memory.memory_id}] {memory.memory}" for memory in known_memories]
    facts = "\n".join(lines) or "(none)"
    turn = _format_turn(run.spec.input, run.transcript.content)
    prompt = f"Known facts:\n{facts}\n\n{turn}"
    return build_background_spec(run.spec, "memory", SummaryPlan(prompt, run.run_id, 0))


async def plan_summary(
    database: Database, session_id: str, maximum: int = MAXIMUM_INPUT
) -> tuple[int, SummaryPlan] | None:
    """Plan the summary of a session. Turns that do not fit are left for the next summary.

    Args:
        maximum: characters of the input.

    Returns:
        The number of new turns and the plan; None if no turn is new.
    """
    last_summary = parse_summary(await database.read(sessions.get_summary(session_id)))
    listing = run_reads.list_turns(session_id, last_summary.covered, MAXIMUM_TURNS)
    turns = await database.read(listing)
    if not turns:
        return None

    parts = [f"Summary so far:\n{last_summary.text}"] if last_summary.text else []
    size = sum(map(len, parts))
    last_turn = turns[0]
    for number, turn in enumerate(turns):
        text = _format_turn(turn.input, turn.content)
        size += len(text)
        # The first turn is always part of it, cut if necessary: each summary covers more.
        if number and size > maximum:
            break
        parts.append(text)
        last_turn = turn

    prompt = "\n\n".join(parts)[:maximum]
    return len(turns), SummaryPlan(prompt, last_turn.run_id, last_turn.seq)


def build_background_spec(base: RunSpec, purpose: Purpose, plan: SummaryPlan) -> RunSpec:
    """Return the specification of background work.

    Args:
        base: the specification of any run of the session.
    """
    return replace(
        base,
        run_id=new_id(),
        parent_run_id=plan.last_run_id,
        input=plan.prompt,
        input_object=None,
        files=None,
        background=True,
        recorded=False,
        survives_disconnect=True,
        time_limit=min(base.time_limit, SUMMARY_WAIT),
        metadata=None,
        output_schema=None,
        client_tools=None,
        tool_choice=None,
        dependencies=None,
        claims=None,
        purpose=purpose,
        covered=plan.covered,
        durable=False,
    )


@unit
def admit_background_run(spec: RunSpec, worker_id: str) -> Steps[Admission]:
    """Write the row of background work.

    Raises:
        NotFound: the session was deleted meanwhile.
        Conflict: the session has live work of the same purpose.
    """
    # The new row comes first: it locks the session, so that no other row is added meanwhile.
    admission = yield from admit_child_run(spec, worker_id)
    live_run_ids = yield from run_reads.list_background_work(spec.session_id, spec.purpose or "")
    if live_run_ids != [spec.run_id]:
        raise errors.Conflict(f"The session has live work of this purpose: {live_run_ids[0]}")
    return admission


def _format_turn(question: str, answer: str | None) -> str:
    return f"User:\n{cut_turn(question)}\n\nAssistant:\n{cut_turn(answer or '(no answer)')}"
