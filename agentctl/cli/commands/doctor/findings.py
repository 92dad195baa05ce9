"""Findings of checks: their output, and the exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from agentctl.cli.io import current_io
from agentctl.cli.show.output import CommandOutput, write_line
from agentctl.cli.show.table import Column, wrap_with_indent
from agentctl.cli.show.terminal import note
from agentctl.errors import SomethingWrong
from agentctl.records.text import escape_controls, format_count

if TYPE_CHECKING:
    from agentctl.records.system import Finding

_COLUMNS = [
    Column("verdict"),
    Column("check"),
    Column("what", look="whole"),
    Column("remedy", look="whole"),
]


def show_findings(findings: Sequence[Finding], out: CommandOutput) -> None:
    """Write the findings; the table format has whole lines, each finding once."""
    if not out.is_table:
        records = [asdict(finding) for finding in findings]
        out.show_list(records, _COLUMNS, "check")
        return

    io = current_io()
    width = io.width(io.out) if io.out_is_terminal else None
    folded = fold_findings(findings)
    widest = max((len(finding.check) for finding, _ in folded), default=0)

    for finding, others in folded:
        head = f"{finding.verdict:5}  {finding.check:{widest}}  "
        more = f" (also: {', '.join(others)})" if others else ""
        lines = wrap_with_indent(head, escape_controls(finding.what + more), width)
        if finding.remedy is not None:
            arrow = " " * len(head) + "-> "
            lines += wrap_with_indent(arrow, escape_controls(finding.remedy), width)
        for line in lines:
            write_line(line)


def fold_findings(findings: Sequence[Finding]) -> list[tuple[Finding, list[str]]]:
    """Return each problem and note once, with the other checks that have the same one."""
    groups: dict[Finding, list[str]] = {}
    for finding in findings:
        same = finding if finding.verdict == "ok" else replace(finding, check="")
        groups.setdefault(same, []).append(finding.check)
    folded = []
    for finding, checks in groups.items():
        first, *others = dict.fromkeys(checks)
        folded.append((replace(finding, check=first), others))
    return folded


def check_findings(findings: Sequence[Finding]) -> None:
    """Note that there is no problem; SomethingWrong if there is one."""
    counts = Counter(finding.verdict for finding, _ in fold_findings(findings))
    notes = f", {format_count(counts['note'], 'note')}" if counts["note"] else ""
    if not counts["wrong"]:
        note(f"no problems{notes}")
        return
    raise SomethingWrong(f"{format_count(counts['wrong'], 'problem')}{notes}")
