"""`agentctl approvals verify-receipt`: verify the receipt of an approval without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctl.cli.io import read_file_or_stdin
from agentctl.cli.options import Fields, Output
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.show.table import plain_columns


def verify_receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of the receipt (- is stdin)")],
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="Public key of the server, in PEM")
    ],
    output: Output = None,
    fields: Fields = None,
) -> None:
    """Verify a receipt and show its content. Exit code 1 if it is not valid."""
    from agentctl.auth.statements import load_verification_keys, verify_statement

    output_format = resolve_format(output)
    keys = load_verification_keys(key)
    receipt = read_file_or_stdin(str(file)).decode("ascii", "replace")
    content = verify_statement(receipt.strip(), "approval-receipt", keys)
    columns = plain_columns(*content)
    show_record(content, columns, output_format, id_field="approval_id", fields=fields)
