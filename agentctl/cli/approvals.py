"""Options and steps that the commands about approvals share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from agentctl.cli.ids import choose_id
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import CommandOutput, argument, complete_values, option
from agentctl.cli.show.approvals import APPROVAL, SHOWN_HASH, describe_call
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, Conflict, NotFound, UsageError, WaitsForDecision
from agentctl.interface.requests import MAXIMUM_LIMIT, MINIMUM_ID_PREFIX, SUMMARY_VIEW, Page
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.records.approvals import VERBS, Verb
from agentctl.records.phase import describe_wait
from agentctl.records.strict import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentctl.records.approvals import ApprovalRecord

ApprovalId = Annotated[
    str, argument("APPROVAL_ID", "Approval id", autocompletion=complete_values("approval"))
]
Note = Annotated[str | None, option("--note", "TEXT", "Note, at most 500 characters")]
SeenHash = Annotated[
    str | None,
    option(
        "--hash",
        "HASH",
        f"Hash of the call that you have seen, {SHOWN_HASH} characters or more: asks nothing",
    ),
]

_HASH = re.compile(f"[0-9a-f]{{{SHOWN_HASH},64}}")

COMMANDS = {"approval": "approve", "input": "answer", "external": "complete", "outcome": "get"}
"""The command for each kind of approval."""


async def find_approval(target: Target, text: str, db: str | None) -> ApprovalRecord:
    """Return the approval that an id, or its first 8 characters or more, names.

    Raises:
        NotFound: there is none.
        UsageError: the ids of several begin with the text.
    """
    rows: Sequence[ApprovalRecord] = []
    if len(text) >= MINIMUM_ID_PREFIX:
        page = Page(limit=MAXIMUM_LIMIT)
        matching = ApprovalFilter(id_prefix=text, db_id=db, page=page)
        rows = (await target.operations.get_approvals(matching)).value["data"]
    candidates = {
        row["approval_id"]: f"{row['status']}  {row['tool_name']}  {row['created_at']}"
        for row in rows
    }
    approval_id = choose_id("approvals", text, candidates)
    for row in rows:
        if row["approval_id"] == approval_id:
            return row
    raise NotFound("Approval not found")


def confirm_call(
    target: Target,
    approval: ApprovalRecord,
    question: str,
    *,
    seen_hash: str | None,
    yes: bool,
    edited: Mapping[str, Any] | None = None,
) -> None:
    """Show a call and ask, unless `--hash` or `--yes` is given.

    The answer about a decided approval comes from the server, without a question.

    Raises:
        UsageError: `seen_hash` is too short or no hash; or no one can be asked.
        Conflict: the hash is that of another call.
        ConfirmationDeclined: the answer was no.
    """
    look = target.command(f"approvals get {approval['approval_id']}")
    if seen_hash is not None:
        digits = seen_hash.removeprefix("sha256:").lower()
        if not _HASH.fullmatch(digits):
            raise UsageError(
                f"--hash must be {SHOWN_HASH} to 64 hexadecimal digits",
                hint=f"copy the hash from: {look}",
            )
        if not approval["arguments_hash"].removeprefix("sha256:").startswith(digits):
            raise Conflict("--hash is that of another call", hint=f"look at it with: {look}")
    is_confirmed = yes or seen_hash is not None or approval["status"] != "pending"
    hint = "pass --hash HASH, the one of the call that you have seen, or --yes"
    check_confirmable(yes=is_confirmed, hint=hint)
    if not is_confirmed or edited is not None:
        show_call(approval, edited)
    confirm(question, yes=is_confirmed)


def show_call(approval: Mapping[str, Any], edited: Mapping[str, Any] | None = None) -> None:
    """Write what an approval is about to stderr, see `describe_call`."""
    for line in describe_call(dict(approval), edited):
        note(line)


def name_command(target: Target, approval: Mapping[str, Any]) -> str:
    """Return the command line that decides about an approval."""
    verb = COMMANDS[approval["kind"]]
    return target.command(f"approvals {verb} {approval['approval_id']}")


async def send_ruling(
    target: Target, approval: ApprovalRecord, ruling: Ruling, out: CommandOutput
) -> None:
    """Decide about an approval and report it.

    Raises:
        AgentctlError: the decision is refused.
    """
    document = await target.operations.decide_approval(
        approval["component_type"], approval["component_id"], approval["approval_id"], ruling
    )
    decided = document.value
    if not out.is_table:
        out.show_record(document, APPROVAL, "approval_id")
    target.report_done(f"{decided['status']}: {decided['kind']} of {decided['tool_name']}")
    if target.local is not None:
        await _note_continuation(target, decided["root_run_id"])


async def _note_continuation(target: Target, run_id: str) -> None:
    run = (await target.operations.get_run(run_id, form=SUMMARY_VIEW)).value
    if run["status"] == "PAUSED":
        note(f"run {run_id} still waits for {describe_wait(run['approvals'])}")
    else:
        note(f"a server continues run {run_id}")


def parse_value(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Return the value of a text: JSON, or the text itself.

    Args:
        schema: JSON Schema of the value; a string needs no quotes.
    """
    schema = schema or {}
    if text in (schema.get("enum") or ()):
        return text
    try:
        value = parse_json(text)
    except ValueError:
        return text
    is_text = schema.get("type") == "string" and not isinstance(value, str)
    return text if is_text else value


def read_value(option: str, text: str) -> str:
    """Return the text of an option: that of stdin for `-`, of a file for `@FILE`.

    Raises:
        UsageError: stdin or the file cannot be read.
    """
    if not text.startswith("@"):
        return read_text_or_stdin(text, option)
    try:
        return Path(text[1:]).read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{option}: the file {text[1:]} cannot be read as text") from None


def check_decidable(approval: ApprovalRecord, verb: Verb, target: Target) -> None:
    """Refuse a command that does not fit the kind of an approval.

    Raises:
        UsageError: it is of another kind.
    """
    kind = approval["kind"]
    if verb not in VERBS[kind]:
        raise UsageError(
            f"the approval is of the kind {kind}", hint=f"use: {name_command(target, approval)}"
        )


async def read_pending(target: Target, run_id: str) -> list[Mapping[str, Any]] | None:
    """Return what a run and its members wait for, oldest first.

    Returns:
        None if the caller may not read approvals.
    """
    matching = ApprovalFilter(
        run_id=run_id, status="pending", page=Page(limit=MAXIMUM_LIMIT, sort_order="asc")
    )
    try:
        page = (await target.operations.get_approvals(matching)).value
    except AgentctlError:
        return None
    return [dict(row) for row in page["data"]]


def build_waiting(
    target: Target, run_id: str, approvals: Sequence[Mapping[str, Any]]
) -> WaitsForDecision:
    """Return the error of a command whose run waits for people."""
    pending = [each for each in approvals if each.get("status") in (None, "pending")]
    needs_others = any(each.get("policy") == "other" for each in pending)
    hint = f"list what it waits for with: {target.command(f'approvals list --run {run_id}')}"
    # A product that has no record of an approval names it by the call, for the client of the run.
    if pending and all(each["approval_id"] == each.get("tool_call_id") for each in pending):
        if not needs_others:
            hint = "its client continues it: agentctl runs start asks at a terminal"
    elif len(pending) == 1:
        hint = f"decide with: {name_command(target, pending[0])}"
    return WaitsForDecision(
        f"run {run_id} waits for {describe_wait(pending)}",
        cause="another person has to decide" if needs_others else None,
        hint=hint,
    )
