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
from agentctl.cli.show.output import Format, chosen_format, show_list, write_line
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import note, printable
from agentctl.errors import AgentctlError, InvalidConfiguration, UsageFailed

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.service.doctor.finding import Finding

__all__ = ["EXAMPLE", "SomethingWrong", "doctor", "show_findings", "sum_up"]

_COLUMNS = [
    Column("verdict"),
    Column("check"),
    Column("what", look="whole"),
    Column("remedy", look="whole"),
]


class SomethingWrong(AgentctlError):
    """Something about an installation has to be mended."""

    error_code = "SOMETHING_WRONG"


def show_findings(findings: Sequence[Finding], form: Format) -> None:
    """Write them all; tables have no columns here, so that no remedy is cut."""
    from agentctl.records.document import document_of

    if form != "table":
        records = [asdict(finding) for finding in findings]
        show_list(document_of(records), _COLUMNS, form, id_field="check")
        return
    widest = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        head = f"{finding.verdict:5}  {finding.check:{widest}}  "
        write_line(head + printable(finding.what))
        if finding.remedy is not None:
            write_line(" " * len(head) + "-> " + printable(finding.remedy))


def sum_up(findings: Sequence[Finding]) -> None:
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
        raise UsageFailed(
            f"this works locally only, not on {url}",
            cause="it looks at files, modes and databases, which no server shows to others",
            hint="run it where the server is, with --config FILE",
        )
    form = chosen_format(output)
    findings: list[Finding] = []
    run_until_done(_examine(_settings(config), findings))
    show_findings(findings, form)
    sum_up(findings)


def _settings(config: Config) -> Settings | AgentctlError:
    """The configuration, or what is wrong with it."""
    from agentctl.config import load

    try:
        return load(config)
    except InvalidConfiguration as failure:
        return failure


async def _examine(settings: Settings | AgentctlError, findings: list[Finding]) -> None:
    from agentctl.cli.log import say_nothing
    from agentctl.cli.show.progress import waiting
    from agentctl.service.doctor.checks import run, steps

    # What is logged of a failure is in the finding about it.
    say_nothing()
    for step in steps(settings):
        async with waiting(f"looking at {step.name}"):
            findings += await run(step)
