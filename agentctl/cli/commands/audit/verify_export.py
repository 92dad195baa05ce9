"""`agentctl audit verify-export`: compare an export of the audit log with a copy of its heads."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated

import typer

from agentctl.cli.commands.audit.verify import PublicKey, read_heads_file, report_verification
from agentctl.cli.options import Output
from agentctl.cli.paging import Row
from agentctl.cli.show.output import resolve_format
from agentctl.errors import UsageError


def verify_export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of audit export")],
    heads: Annotated[
        Path, typer.Option("--heads", metavar="FILE", help="Copy of the heads of the audit log")
    ],
    key: PublicKey,
    output: Output = None,
) -> None:
    """Verify an export without the service: its entries, and a copy of the heads.

    The export must be of the whole audit log: a filter leaves out entries that are signed. Exit
    code 1 if anything is wrong.
    """
    import asyncio

    from agentctl.auth.audit_chain import verify_audit_log
    from agentctl.auth.statements import load_verification_keys

    output_format = resolve_format(output)
    keys, tokens = load_verification_keys(key), read_heads_file(heads)
    result = asyncio.run(verify_audit_log(tokens, _read_lines(file), keys))
    report_verification(result, output_format)


async def _read_lines(file: Path) -> AsyncGenerator[Row]:
    import orjson

    try:
        with file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                entry = orjson.loads(line)
                if not isinstance(entry, dict) or type(entry.get("seq")) is not int:
                    raise UsageError(f"Line {number} of {file} is not an audit entry")
                yield entry
    except OSError as failure:
        cause = (failure.strerror or "").lower()
        raise UsageError(f"{file} cannot be read", cause=cause) from None
    except orjson.JSONDecodeError:
        raise UsageError(f"Line {number} of {file} is not an audit entry") from None
