"""`agentctl approvals`: list what paused runs wait for, and decide about it.

The commands that decide are one function with a verb, `_decide`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from agentctl.cli import approvals
from agentctl.cli.files import create_file
from agentctl.cli.help import CommandApp
from agentctl.cli.io import read_file_or_stdin
from agentctl.cli.lists import ListOutput
from agentctl.cli.options import DbId, ToFile, Yes, parse_object
from agentctl.cli.own_approvals import find_reader, read_whole
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show import output
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import check_confirmable
from agentctl.cli.show.terminal import note as write_note
from agentctl.cli.show.watched_list import DEFAULT_SECONDS, read_again
from agentctl.cli.target import Target, with_target
from agentctl.errors import AgentctlError, UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT, Page
from agentctl.interface.requests.approvals import ApprovalFilter, build_ruling
from agentctl.records.approvals import VALUES, ApprovalRecord, Verb
from agentctl.records.text import find_json_problem

app = CommandApp(
    help="List and decide pending approvals.",
    epilog="Example: agentctl approvals list --status pending",
)

_QUESTIONS: dict[Verb, str] = {
    "approve": "Approve this call of {}, {}?",
    "retry": "Call {} again, {}? It may have been called before",
}
"""The questions of the commands that let a call be made, with the tool and the place."""


def _command(words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a command to the group, with the words of its example, which begin with its name."""
    return app.command(words.partition(" ")[0], epilog=f"Example: agentctl approvals {words}")


_LIST_ORDER = (
    "status", "execution", "kind", "policy", "component_type", "component_id", "tool_name",
    "run_id", "session_id", "user_id", "limit", "page", "cursor", "sort_order", "all_pages",
    "db_id", ...,
)  # fmt: skip
"""The options of `approvals list` in the order of its help."""


@_command("list --status pending")
@with_target(without=("sort_by",), order=_LIST_ORDER)
async def list_approvals(target: Target, out: ListOutput, filter: ApprovalFilter) -> None:
    """List approvals, newest first.

    Without a scope for approvals, the list contains the approvals of your paused runs; with --run
    or --session, the approvals of all your runs there.
    """
    read = await find_reader(target) or target.operations.approvals.list
    await out.show(target, read, filter, approvals.APPROVALS, "approval_id")


@_command("get APPROVAL_ID")
@with_target()
async def get_approval(
    target: Target, out: output.FieldsOutput, approval_id: approvals.ApprovalId, db: DbId = None
) -> None:
    """Show an approval with the arguments of its call."""
    document = await read_whole(target, await approvals.find_approval(target, approval_id, db))
    is_table = out.is_table and out.fields is None
    columns = approvals.list_fields(dict(document.value)) if is_table else approvals.APPROVAL
    out.show_record(document, columns, "approval_id")


@_command('approve APPROVAL_ID --note "checked with Ada"')
@with_target()
async def approve_call(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    hash: approvals.SeenHash = None,
    yes: Yes = False,
    arguments: str | None = option(
        "--arguments",
        "JSON",
        "JSON object: the arguments to call with instead (- reads stdin, @FILE a file)",
    ),
    note: approvals.Note = None,
    db: DbId = None,
) -> None:
    """Show a call, ask for confirmation, and approve it.

    The decision applies only to the call that was shown, identified by its hash. Exit code 6 if the
    approval has already been decided.
    """
    await _decide(target, "approve", approval_id, db, out, note, arguments, hash, yes)


@_command('reject APPROVAL_ID --note "too much"')
@with_target()
async def reject_call(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    note: approvals.Note = None,
    db: DbId = None,
) -> None:
    """Reject a call or a question. The agent reads the note, and its run goes on."""
    await _decide(target, "reject", approval_id, db, out, note)


@_command("answer APPROVAL_ID --answer left")
@with_target()
async def answer_question(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    answer: str | None = option(
        "--answer",
        "VALUE",
        "The answer, JSON or text (- reads stdin, @FILE a file); without it a terminal asks",
    ),
    note: approvals.Note = None,
    db: DbId = None,
) -> None:
    """Answer the question of a run, which then continues."""
    hint = "pass --answer VALUE"
    check_confirmable(yes=answer is not None, what="an answer is", hint=hint)
    await _decide(target, "answer", approval_id, db, out, note, answer)


@_command('complete APPROVAL_ID --result "the file is open"')
@with_target()
async def complete_call(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    result: str | None = option(
        "--result", "VALUE", "The result of the call, JSON or text (- reads stdin, @FILE a file)"
    ),
    fail: bool = flag("--fail", "The call failed; give the reason with --note"),
    note: approvals.Note = None,
    db: DbId = None,
) -> None:
    """Report the result of a call that you made, or whose server died."""
    if (result is None) == (not fail):
        raise UsageError("give --result VALUE, or --fail with --note TEXT")
    verb: Verb = "fail" if fail else "complete"
    await _decide(target, verb, approval_id, db, out, note, result)


@_command("retry APPROVAL_ID")
@with_target()
async def retry_call(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    hash: approvals.SeenHash = None,
    yes: Yes = False,
    note: approvals.Note = None,
    db: DbId = None,
) -> None:
    """Repeat a call whose server died. It may have been made before."""
    await _decide(target, "retry", approval_id, db, out, note, None, hash, yes)


async def _decide(
    target: Target,
    verb: Verb,
    approval_id: str,
    db: str | None,
    out: output.CommandOutput,
    note: str | None,
    given: str | None = None,
    seen_hash: str | None = None,
    yes: bool = False,
) -> None:
    """Decide about an approval and report it.

    Args:
        given: the option with the value of the verb: the arguments, the answer or the result.
        seen_hash, yes: see `confirm_call`; for the verbs that are bound to a call.
    """
    text = None if given is None else approvals.read_value(f"--{VALUES[verb]}", given)
    value = parse_object("--arguments", text) if verb == "approve" else None

    approval = await approvals.find_approval(target, approval_id, db)
    approvals.check_decidable(approval, verb, target)

    if verb in _QUESTIONS:
        question = _QUESTIONS[verb].format(approval["tool_name"], target.place)
        approvals.confirm_call(
            target, approval, question, seen_hash=seen_hash, yes=yes, edited=value
        )
    elif text is not None:
        value = approvals.parse_value(text, approval["schema"] if verb == "answer" else None)
        if problem := find_json_problem(value):
            raise UsageError(f"--{VALUES[verb]} {problem}")
    elif verb == "answer" and approval["status"] == "pending":
        approvals.show_call(approval)
        value = approvals.ask_value("answer", approval["schema"])
    await approvals.send_ruling(target, approval, build_ruling(approval, verb, value, note), out)


@_command("receipt APPROVAL_ID --to-file receipt.jwt")
@with_target()
async def get_receipt(
    target: Target,
    out: output.CommandOutput,
    approval_id: approvals.ApprovalId,
    to_file: ToFile = None,
    db: DbId = None,
) -> None:
    """Print the receipt of a decided approval: who decided, which call, what followed.

    The receipt is signed. Anybody can verify it with the public key of the server, without
    contacting the server: with `approvals verify-receipt`, or with any JWS library.
    """
    found = await approvals.find_approval(target, approval_id, db)
    document = await target.operations.approvals.get_receipt(
        found["component_type"], found["component_id"], found["approval_id"]
    )
    if to_file is not None and str(to_file) != "-":
        create_file(to_file, f"{document.value['receipt']}\n".encode())
        write_note(f"wrote the receipt to {to_file}")
    elif out.format == "json":
        output.write_json(document.raw)
    else:
        output.write_line(document.value["receipt"])


@_command("verify-receipt receipt.jwt --key keys/audit.pub.pem")
def verify_receipt(
    out: output.FieldsOutput,
    file: Annotated[Path, argument("FILE", "File of the receipt (- is stdin)")],
    key: Annotated[Path, option("--key", "FILE", "Public key of the server, in PEM")],
) -> None:
    """Verify a receipt and show its content. Exit code 1 if it is not valid."""
    from agentctl.auth.audit_chain import load_verification_keys, verify_statement

    keys = load_verification_keys(key)
    receipt = read_file_or_stdin(str(file)).decode("ascii", "replace")
    content = verify_statement(receipt.strip(), "approval-receipt", keys)
    columns = plain_columns(*content)
    out.show_record(content, columns, "approval_id")


_WATCH_ORDER = (
    "kind", "component_type", "component_id", "tool_name", "run_id", "session_id", "user_id",
    "db_id", ...,
)  # fmt: skip
"""The options of `approvals watch` in the order of its help."""


@_command("watch --component clerk")
@with_target(
    without=("status", "execution", "limit", "page", "cursor", "sort_order", "sort_by"),
    order=_WATCH_ORDER,
)
async def watch_approvals(
    target: Target,
    out: output.CommandOutput,
    filter: ApprovalFilter,
    every: float = option(
        "--every",
        "SECONDS",
        "Seconds between two reads",
        min=0.1,
        max=86_400,
        default=DEFAULT_SECONDS,
    ),
) -> None:
    """Show pending approvals, and new ones as they arrive, until Ctrl-C.

    With -o jsonl, each approval is a line of JSON, for scripts.
    """
    page = Page(limit=MAXIMUM_LIMIT, sort_order="desc")
    matching = replace(filter, status="pending", page=page)

    read = partial(await find_reader(target) or target.operations.approvals.list, matching)
    seen: set[str] = set()
    if out.format == "tsv":
        output.write_line("\t".join(column.name for column in approvals.APPROVAL))
    async with showing_progress("waiting for the next approval, Ctrl-C ends this"):
        async for document in read_again(target, read, every):
            if isinstance(document, AgentctlError):
                write_note(f"{document.detail}; retrying every {every:g} s")
                continue
            rows = document.value["data"]
            for row in reversed(rows):
                if row["approval_id"] not in seen:
                    _show(target, row, out)
            seen = {row["approval_id"] for row in rows}


def _show(target: Target, approval: ApprovalRecord, out: output.CommandOutput) -> None:
    if out.format == "tsv":
        output.write_line("\t".join(column.cell(dict(approval)) for column in approvals.APPROVAL))
    elif out.format == "name":
        output.write_line(approval["approval_id"])
    elif out.format in ("json", "jsonl"):
        output.write_value(approval)
    else:
        for line in approvals.describe_call(dict(approval)):
            output.write_line(line)
        write_note(f"  decide with: {approvals.name_command(target, approval)}")
