"""The part of `agentctl runs retry` and `runs fork` that both have: origin and question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agentctl.cli.commands.runs.show_new import NewRun, show_new_run
from agentctl.cli.show.output import Format
from agentctl.cli.show.terminal import confirm, note
from agentctl.cli.target import Target
from agentctl.errors import NeedsConfirmation
from agentctl.operations.partial import PartialOperations
from agentctl.records.kinds import ComponentRef, component_of_run
from agentctl.requests import SUMMARY_VIEW
from agentctl.transcripts.model import clean_line

_STATES = {"done": "done", "failed": "failed", "unknown": "outcome not known"}


async def find_origin(target: Target, run_id: str, db: str | None, operation: str) -> ComponentRef:
    """Return the component of a run that is repeated.

    Args:
        operation: the operation, which other products do not have.

    Raises:
        Unsupported: the server is another product.
    """
    if isinstance(target.operations, PartialOperations):
        # Before the run is looked up, which fails in another way there.
        target.operations.execute(operation, {})
    run = (await target.operations.get_run(run_id, db_id=db, form=SUMMARY_VIEW)).value
    return component_of_run(run)


async def show_repeat(
    target: Target,
    build: Callable[[str | None], NewRun],
    output_format: Format,
    *,
    stream: bool,
    yes: bool,
) -> None:
    """Start a run that repeats another one, and show its output.

    What it may repeat is shown on stderr, and confirmed first.

    Args:
        build: returns the run to start for the hash of a plan, None for no confirmation.

    Raises:
        UsageError: there is no terminal to ask at, and not `yes`.
        ConfirmationDeclined: the answer was not yes.
    """
    new = build(None)
    try:
        await show_new_run(target, new, output_format, stream=stream)
        return
    except NeedsConfirmation as needed:
        plan = needed.plan
    part = "step" if new.component[0] == "workflow" else "message"
    for line in _describe_plan(plan, part):
        note(line)
    confirm(f"Start the {plan['kind']}?", yes=yes)
    await show_new_run(target, build(str(plan["confirm"])), output_format, stream=stream)


def _describe_plan(plan: Mapping[str, Any], part: str) -> Iterator[str]:
    """Yield the lines about what a run begins with, and what it may repeat."""
    at = plan["at"]
    yield f"begins after {part} {at} of the run" if at else "works from the beginning"
    if plan["runs_code"]:
        yield "the code of the agent runs again, with all of its effects"
    if plan["calls_unknown"]:
        yield "the server of the run died: calls that it made at last may not be known"
    for retry in plan["retries"]:
        yield f"the run was retried already: {clean_line(retry)}"
    calls = plan["calls"]
    if calls:
        yield "tool calls that may be made again:"
    for call in calls:
        name, arguments = clean_line(call["tool_name"]), clean_line(call["arguments"])
        yield f"  {name} {arguments} ({_STATES.get(call['state'], 'outcome not known')})"
    if (more := plan["calls_total"] - len(calls)) > 0:
        yield f"  and {more} more"
