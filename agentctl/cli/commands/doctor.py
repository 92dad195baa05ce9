"""`agentctl doctor`: is this installation as it should be, and what is to be done if not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.findings import show_findings, sum_up
from agentctl.cli.options import Config, Output
from agentctl.cli.output import chosen_format
from agentctl.errors import AgentctlError, InvalidConfiguration, UsageFailed

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.service.checkup.finding import Finding

__all__ = ["EXAMPLE", "doctor"]

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
    from agentctl.cli.interrupts import run_until_done

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
    from agentctl.cli.progress import waiting
    from agentctl.service.checkup.steps import run, steps

    # What is logged of a failure is in the finding about it.
    say_nothing()
    for step in steps(settings):
        async with waiting(f"looking at {step.name}"):
            findings += await run(step)
