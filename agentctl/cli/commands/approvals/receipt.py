"""`agentctl approvals receipt`: the signed receipt of a decided approval."""

from __future__ import annotations

from agentctl.cli.approvals import ApprovalId, find_approval
from agentctl.cli.files import create_file
from agentctl.cli.options import DbId, Output, ToFile
from agentctl.cli.show.output import resolve_format, write_json, write_line
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target


@with_target()
async def get_receipt(
    target: Target,
    approval_id: ApprovalId,
    to_file: ToFile = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Print the receipt of a decided approval: who decided, which call, what followed.

    The receipt is signed. Others verify it with the public key of the server, without the server:
    with `approvals verify-receipt`, or any library for JWS.
    """
    output_format = resolve_format(output)
    found = await find_approval(target, approval_id, db)
    document = await target.operations.get_receipt(
        found["component_type"], found["component_id"], found["approval_id"]
    )
    if to_file is not None and str(to_file) != "-":
        create_file(to_file, f"{document.value['receipt']}\n".encode())
        note(f"wrote the receipt to {to_file}")
    elif output_format == "json":
        write_json(document.raw)
    else:
        write_line(document.value["receipt"])
