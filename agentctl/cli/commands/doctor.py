"""`agentctl doctor`: check an installation and suggest fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import Format, resolve_format, show_list, write_line
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import escape_controls, note
from agentctl.cli.target import run_until_done
from agentctl.errors import InvalidConfiguration, SomethingWrong

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.service.doctor.finding import Finding

EXAMPLE = "agentctl doctor --config agentctl.toml"

_COLUMNS = [
    Column("verdict"),
    Column("check"),
    Column("what", look="whole"),
    Column("remedy", look="whole"),
]


def doctor(config: Config = None, output: Output = None) -> None:
    """Check the installation and suggest fixes.

    Checks configuration, keys, databases, versions and network exposure, and changes nothing. The
    databases are read completely, which can take a while. Exit code 1 if there is a problem; a note
    is no problem.
    """
    form = resolve_format(output)
    findings: list[Finding] = []
    run_until_done(_examine(config, findings))
    show_findings(findings, form)
    check_findings(findings)


async def _examine(config: Config, findings: list[Finding]) -> None:
    from agentctl.cli.log import discard_log
    from agentctl.cli.show.progress import showing_progress
    from agentctl.config import load_settings
    from agentctl.service.doctor.checks import list_steps, run_step

    settings: Settings | InvalidConfiguration
    try:
        settings = load_settings(config)
    except InvalidConfiguration as failure:
        settings = failure
    discard_log()  # the finding describes the failure
    for step in list_steps(settings):
        async with showing_progress(f"checking {step.name}"):
            findings += await run_step(step)


def show_findings(findings: Sequence[Finding], form: Format) -> None:
    """Write the findings, in the table format as lines, so that no remedy is cut."""
    from agentctl.records.document import build_document

    if form not in ("table", "wide"):
        records = [asdict(finding) for finding in findings]
        show_list(build_document(records), _COLUMNS, form, id_field="check")
        return
    widest = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        head = f"{finding.verdict:5}  {finding.check:{widest}}  "
        write_line(head + escape_controls(finding.what))
        if finding.remedy is not None:
            write_line(" " * len(head) + "-> " + escape_controls(finding.remedy))


def check_findings(findings: Sequence[Finding]) -> None:
    """Note that there is no problem.

    Raises:
        SomethingWrong: there is a problem.
    """
    counts = Counter(finding.verdict for finding in findings)
    notes = {0: "", 1: ", 1 note"}.get(counts["note"], f", {counts['note']} notes")
    if not counts["wrong"]:
        note(f"no problems{notes}")
        return
    problems = "1 problem" if counts["wrong"] == 1 else f"{counts['wrong']} problems"
    raise SomethingWrong(f"{problems}{notes}")
