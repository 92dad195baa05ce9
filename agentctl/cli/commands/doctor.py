"""`agentctl doctor`: check an installation and suggest fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.cli.io import current_io
from agentctl.cli.options import Config, GivenTokenFile, InsecureHttp
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import CommandOutput, write_line
from agentctl.cli.show.table import Column, wrap_with_indent
from agentctl.cli.show.terminal import note
from agentctl.cli.target import TargetOptions, open_target
from agentctl.errors import AgentctlError, InvalidConfiguration, SomethingWrong, UsageError
from agentctl.records.text import escape_controls

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.records.system import Finding, Verdict

EXAMPLE = "agentctl doctor --config agentctl.toml"

HELP = """Check the installation, or a server, and suggest fixes.

Checks configuration, keys, databases and network exposure, and changes nothing. Of large databases
it reads a part and reports which: db check and runs doctor read all. With --url it checks that the
server is ready and, for an administrator, its workers, databases and free space.
Exit code 1 if there is a problem; a note is no problem.
"""

_VERDICTS: dict[tuple[str, str], Verdict] = {
    ("keys", "stale"): "note",
    ("keys", "degraded"): "note",
}
"""The verdicts about the names and states of readiness checks. "ok" is ok; every other state is
wrong."""

_COLUMNS = [
    Column("verdict"),
    Column("check"),
    Column("what", look="whole"),
    Column("remedy", look="whole"),
]


async def doctor(
    out: CommandOutput,
    config: Config = None,
    url: str | None = option("--url", "URL", "Check this server"),
    token_file: GivenTokenFile = None,
    insecure_http: InsecureHttp = False,
    production: bool = flag("--production", "Also check what a production server needs"),
    backups: Path | None = option(
        "--backups",
        "DIR",
        "With --production: folder with database backups (default: /var/lib/agentctl-backups)",
    ),
) -> None:
    """Check the installation, or a server; `HELP` has the rest."""
    if backups is not None and not production:
        raise UsageError("--backups needs --production")

    findings: list[Finding] = []
    if url is None:
        if token_file is not None or insecure_http:
            raise UsageError("--token-file and --insecure-http need --url")
        await _examine(config, findings, production, backups)
    else:
        if production:
            raise UsageError(
                "--url and --production cannot be used together",
                hint="run it on the machine of the server, as its user",
            )
        if config is not None:
            raise UsageError("--url and --config cannot be used together")
        options = TargetOptions(url=url, token_file=token_file, insecure_http=insecure_http)
        await _examine_server(options, findings)

    show_findings(findings, out)
    check_findings(findings)


async def _examine_server(options: TargetOptions, findings: list[Finding]) -> None:
    from agentctl.records.system import Finding, from_failure, ok

    async with open_target(options) as target:
        operations: Any = target.operations
        info: Any = (await operations.system.get_info()).value
        findings.append(ok("server", f"{options.url} is agentctl {info.get('version')}"))

        try:
            components = (await operations.components.list("agent")).value
            findings.append(ok("token", f"the caller can read {len(components)} agents"))
        except AgentctlError as failure:
            findings.append(from_failure("token", failure))

        ready = (await operations.system.get_readiness()).value
        report = await _read_deployment(operations)
        for name, state in ready.get("checks", {}).items():
            verdict = "ok" if state == "ok" else _VERDICTS.get((name, state), "wrong")
            findings.append(Finding(f"ready: {name}", verdict, str(state)))

        if info.get("auth_mode") == "none":
            text = "authorization is off: everyone who reaches the server is an administrator"
            findings.append(Finding("authorization", "note", text))
        findings += [Finding(**finding) for finding in report.get("findings", ())]


async def _read_deployment(operations: Any) -> Any:
    """Return the report of a server for its administrators; empty for other callers."""
    try:
        if "get_deployment" in (await operations.system.get_me()).value["operations"]:
            return (await operations.system.get_deployment()).value
    except AgentctlError:
        pass  # another finding reports the token
    return {}


async def _examine(
    config: Config, findings: list[Finding], production: bool, backups: Path | None
) -> None:
    from agentctl.admin.doctor.checks import list_steps, run_step
    from agentctl.cli.log import discard_log
    from agentctl.cli.show.progress import showing_progress
    from agentctl.config import load_settings

    settings: Settings | InvalidConfiguration
    try:
        settings = load_settings(config)
    except InvalidConfiguration as failure:
        settings = failure
    discard_log()  # the finding describes the failure
    for step in list_steps(settings, production=production, backups=backups):
        async with showing_progress(f"checking {step.name}"):
            findings += await run_step(step)


def show_findings(findings: Sequence[Finding], out: CommandOutput) -> None:
    """Write the findings; the table format has lines, without repeated ones and nothing cut."""
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
    notes = {0: "", 1: ", 1 note"}.get(counts["note"], f", {counts['note']} notes")
    if not counts["wrong"]:
        note(f"no problems{notes}")
        return
    problems = "1 problem" if counts["wrong"] == 1 else f"{counts['wrong']} problems"
    raise SomethingWrong(f"{problems}{notes}")
