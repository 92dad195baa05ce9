"""What was found, for people and programs: a line each, what to do below it.

`agentctl doctor`: is this installation as it should be, and what is to be done if not.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import Format, resolve_format, show_list, write_line
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import escape_controls, note
from agentctl.errors import AgentctlError, InvalidConfiguration, SomethingWrong, UsageError

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.service.doctor.finding import Finding

__all__ = ["EXAMPLE", "check_findings", "doctor", "show_findings"]

_COLUMNS = [
    Column("verdict"),
    Column("check"),
    Column("what", look="whole"),
    Column("remedy", look="whole"),
]


def show_findings(findings: Sequence[Finding], form: Format) -> None:
    """Write them all; tables have no columns here, so that no remedy is cut."""
    from agentctl.records.document import build_document

    if form != "table":
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
    """Say how it is.

    Raises:
        SomethingWrong: something has to be mended.
    """
    tally = Tally(finding.verdict for finding in findings)
    notes = {0: "", 1: ", 1 note"}.get(tally["note"], f", {tally['note']} notes")
    if not tally["wrong"]:
        note(f"nothing is wrong{notes}")
        return
    things = "1 thing is" if tally["wrong"] == 1 else f"{tally['wrong']} things are"
    raise SomethingWrong(f"{things} wrong{notes}")


EXAMPLE = "agentctl doctor --config agentctl.toml"


def doctor(
    config: Config = None,
    output: Output = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Refused: it works locally only")
    ] = None,
) -> None:
    """Look at configuration, keys, databases, versions and exposure, each with the remedy.

    Nothing is changed. A note may be meant that way; what is wrong makes the exit code 1. The
    databases are read as a whole, which may take a while.
    """
    from agentctl.cli.target import run_until_done

    if url is not None:
        raise UsageError(
            f"this works locally only, not on {url}",
            cause="it looks at files, modes and databases, which no server shows to others",
            hint="run it where the server is, with --config FILE",
        )
    form = resolve_format(output)
    findings: list[Finding] = []
    run_until_done(_examine(_settings(config), findings))
    show_findings(findings, form)
    check_findings(findings)


def _settings(config: Config) -> Settings | AgentctlError:
    """The configuration, or what is wrong with it."""
    from agentctl.config import load_settings

    try:
        return load_settings(config)
    except InvalidConfiguration as failure:
        return failure


async def _examine(settings: Settings | AgentctlError, findings: list[Finding]) -> None:
    from agentctl.cli.log import discard_log
    from agentctl.cli.show.progress import showing_progress
    from agentctl.service.doctor.checks import list_steps, run_step

    # What is logged of a failure is in the finding about it.
    discard_log()
    for step in list_steps(settings):
        async with showing_progress(f"looking at {step.name}"):
            findings += await run_step(step)
