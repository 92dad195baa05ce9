"""`agentctl db check`: the integrity of databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.cli.commands.doctor import check_findings, show_findings
from agentctl.cli.databases import OnlyDatabase, select_databases
from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.target import run_until_done

if TYPE_CHECKING:
    from agentctl.service.doctor.finding import Finding


def check(config: Config = None, db: OnlyDatabase = None, output: Output = None) -> None:
    """Check integrity: pages, schema, references (read-only).

    Reads the whole database, which can take long; servers continue to work. Exit code 1 if there
    is a problem.
    """
    output_format = resolve_format(output)
    entries = select_databases(config, db)
    findings: list[Finding] = []

    async def check_entries() -> None:
        from agentctl.service.databases import check_integrity

        for entry in entries:
            counter = Counter("")
            async with showing_progress(counter):
                async for finding in check_integrity(entry, counter.show):
                    findings.append(finding)

    run_until_done(check_entries())
    show_findings(findings, output_format)
    check_findings(findings)
