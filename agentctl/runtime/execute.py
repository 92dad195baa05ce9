"""One run of any component: the door to the runtime."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from agentctl.runtime.failures import ExecutionError

if TYPE_CHECKING:
    from agentctl.runtime.catalog import Catalog, Component
    from agentctl.runtime.context import RunContext

__all__ = ["execute_component"]

_log = logging.getLogger("agentctl.runtime")


async def execute_component(
    component: Component,
    message: str,
    history: list[dict[str, Any]],
    context: RunContext,
    catalog: Catalog,
) -> None:
    """Run a component to its end; what it says and does is in `context.transcript`.

    Args:
        message: what the user asks.
        history: neutral messages of earlier runs of the session, oldest first.

    Raises:
        RunFailure: the run ends as ERROR.
        asyncio.CancelledError: the task was cancelled, or a checkpoint found a cancel request.
    """
    try:
        await _dispatch(component, message, history, context, catalog)
    except ExecutionError as failure:
        _log.warning("run %s failed: %s: %s", context.run_id, failure.code, failure.detail)
        raise
    except Exception as error:
        _log.exception("run %s failed inside", context.run_id)
        raise ExecutionError("INTERNAL") from error
    finally:
        if component.kind != "workflow" and not context.transcript.messages:
            # It failed before its model was asked: what it was to answer is part of the session.
            context.transcript.add_user(message)


async def _dispatch(
    component: Component,
    message: str,
    history: list[dict[str, Any]],
    context: RunContext,
    catalog: Catalog,
) -> None:
    if component.kind == "agent":
        from agentctl.runtime.agent import run_agent

        await run_agent(component, message, history, context, catalog)
    elif component.kind == "team":
        from agentctl.runtime.team import run_team

        await run_team(component, message, history, context, catalog)
    else:
        from agentctl.runtime.workflow import run_workflow

        await run_workflow(component, message, context, catalog)
