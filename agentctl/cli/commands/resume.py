"""`agentctl resume`: end a halt."""

from __future__ import annotations

from agentctl.cli.commands.halts import HaltId
from agentctl.cli.target import Target, with_target
from agentctl.errors import NotFound

EXAMPLE = "agentctl resume 019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d21"


@with_target()
async def resume(target: Target, halt_id: HaltId) -> None:
    """End a halt; its work continues unless another halt stops it."""
    try:
        await target.operations.halts.end(halt_id)
    except NotFound as failure:
        failure.hint = f"list the halts with: {target.command('halts list --state active')}"
        raise
    target.report_done(f"ended halt {halt_id}")
