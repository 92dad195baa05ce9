"""`agentctl approvals watch`: show approvals as runs begin to wait for them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.approvals import COMMANDS
from agentctl.cli.options import Output
from agentctl.cli.show.approvals import APPROVAL, describe_call
from agentctl.cli.show.output import Format, resolve_format, write_line, write_value
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.watched_list import DEFAULT_SECONDS, read_again
from agentctl.cli.target import Target, with_target
from agentctl.errors import AgentctlError
from agentctl.requests import MAXIMUM_LIMIT, Page
from agentctl.requests.approvals import ApprovalFilter

if TYPE_CHECKING:
    from agentctl.records.approvals import ApprovalPage, ApprovalRecord
    from agentctl.records.document import Document


@with_target(
    without=("status", "execution", "limit", "page", "cursor", "sort_order", "sort_by"),
    order=(
        "kind", "component_type", "component_id", "tool_name", "run_id", "session_id", "user_id",
        "db_id", ...,
    ),
)  # fmt: skip
async def watch_approvals(
    target: Target,
    filter: ApprovalFilter,
    every: Annotated[
        float,
        typer.Option(
            "--every", metavar="SECONDS", min=0.1, max=86_400, help="Seconds between two reads"
        ),
    ] = DEFAULT_SECONDS,
    output: Output = None,
) -> None:
    """Show pending approvals, and each new one as it comes, until Ctrl-C.

    With -o jsonl each one is a line of JSON, for scripts.
    """
    output_format = resolve_format(output)
    page = Page(limit=MAXIMUM_LIMIT, sort_order="desc")
    matching = replace(filter, status="pending", page=page)

    async def read() -> Document[ApprovalPage]:
        return await target.operations.get_approvals(matching)

    seen: set[str] = set()
    if output_format == "tsv":
        write_line("\t".join(column.name for column in APPROVAL))
    async with showing_progress("waiting for the next approval, Ctrl-C ends this"):
        async for document in read_again(target, read, every):
            if isinstance(document, AgentctlError):
                note(f"{document.detail}; retrying every {every:g} s")
                continue
            rows = document.value["data"]
            for row in reversed(rows):
                if row["approval_id"] not in seen:
                    _show(target, row, output_format)
            seen = {row["approval_id"] for row in rows}


def _show(target: Target, approval: ApprovalRecord, output_format: Format) -> None:
    if output_format == "tsv":
        write_line("\t".join(column.cell(dict(approval)) for column in APPROVAL))
    elif output_format == "name":
        write_line(approval["approval_id"])
    elif output_format in ("json", "jsonl"):
        write_value(approval)
    else:
        for line in describe_call(dict(approval)):
            write_line(line)
        words = f"approvals {COMMANDS[approval['kind']]} {approval['approval_id']}"
        note(f"  decide with: {target.command(words)}")
