"""What was found, for people and programs: a line each, what to do below it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from agentctl.cli.output import Format, show_list, write_line
from agentctl.cli.table import Column
from agentctl.cli.terminal import note, printable
from agentctl.errors import AgentctlError

if TYPE_CHECKING:
    from agentctl.service.checkup.finding import Finding

__all__ = ["SomethingWrong", "show_findings", "sum_up"]

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
