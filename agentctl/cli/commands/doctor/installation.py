"""The checks of an installation, and of a server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.cli.commands.doctor.findings import check_findings, show_findings
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.target import TargetOptions, open_target, resolve_server
from agentctl.errors import AgentctlError, InvalidConfiguration
from agentctl.records.text import format_count

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.records.system import Finding, Verdict

_VERDICTS: dict[tuple[str, str], Verdict] = {
    ("keys", "stale"): "note",
    ("keys", "degraded"): "note",
}
"""The verdicts about the names and states of readiness checks. "ok" is ok; every other state is
wrong."""


async def examine_server(out: CommandOutput, options: TargetOptions) -> None:
    """Check the server that the options select, and show the findings.

    Raises:
        SomethingWrong: there is a problem.
    """
    from agentctl.records.system import Finding, from_failure, ok

    findings: list[Finding] = []
    url, _ = resolve_server(options)
    async with open_target(options) as target:
        operations: Any = target.operations
        info: Any = (await operations.system.get_info()).value
        findings.append(ok("server", f"{url} is agentctl {info.get('version')}"))

        try:
            components = (await operations.components.list("agent")).value
            findings.append(
                ok("token", f"the caller can read {format_count(len(components), 'agent')}")
            )
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

    show_findings(findings, out)
    check_findings(findings)


async def _read_deployment(operations: Any) -> Any:
    """Return the report of a server for its administrators; empty for other callers."""
    try:
        if "get_deployment" in (await operations.system.get_me()).value["operations"]:
            return (await operations.system.get_deployment()).value
    except AgentctlError:
        pass  # another finding reports the token
    return {}


async def examine_installation(
    out: CommandOutput, config: Path | None, *, production: bool, backups: Path | None
) -> None:
    """Check the installation on this machine, and show the findings.

    Raises:
        SomethingWrong: there is a problem.
    """
    from agentctl.admin.doctor.checks import list_steps, run_step
    from agentctl.cli.log import discard_log
    from agentctl.cli.show.progress import showing_progress
    from agentctl.config import load_settings

    settings: Settings | InvalidConfiguration
    try:
        settings = load_settings(config)
    except InvalidConfiguration as failure:
        settings = failure

    # The finding describes the failure.
    discard_log()
    findings: list[Finding] = []
    for step in list_steps(settings, production=production, backups=backups):
        async with showing_progress(f"checking {step.name}"):
            findings += await run_step(step)

    show_findings(findings, out)
    check_findings(findings)
