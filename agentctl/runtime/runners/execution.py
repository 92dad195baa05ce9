"""The execution of a run of an agent in code, from its first report to its last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from agentctl.errors import InvalidConfiguration, Unavailable
from agentctl.records.times import now
from agentctl.runtime.context import ContextMisuse
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.pauses import Paused
from agentctl.runtime.runners.hosted_run import HostedRun, LateReport, Runner
from agentctl.runtime.runners.library_members import complete_members, fail_members, pause_members

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment

_log = logging.getLogger("agentctl.runtime")


async def run_hosted_agent(opening: Awaitable[Runner], environment: RunEnvironment) -> None:
    """Run an agent in code to its end. The result is in the transcript.

    Tokens are unknown unless the runner or a function of the run reports them.

    Args:
        opening: returns the opened runner of the agent.

    Raises:
        ExecutionError: the agent failed, or could not be opened.
        InvalidConfiguration: its object is not usable.
        asyncio.CancelledError: the run has to stop, even if the agent returned a result.
        Paused: the agent waits for decisions.
    """
    try:
        await _execute(opening, environment)
    except Paused:
        await pause_members(environment)
        raise
    except ExecutionError as failure:
        await fail_members(environment, failure)
        raise


async def _execute(opening: Awaitable[Runner], environment: RunEnvironment) -> None:
    transcript, message = environment.transcript, environment.spec.input
    if environment.leg is None:
        transcript.forget_usage()
        transcript.add_user(message)
    try:
        runner = await opening
        await runner.run(message, HostedRun(environment, runner.kind))
        await complete_members(environment)
    except LateReport:
        # The agent ignored its cancellation. Without an exception its task ends with a late result.
        return
    except asyncio.CancelledError:
        if environment.is_stopping:
            raise
        # The agent cancelled itself, for example in a task group.
        _log.warning("run %s: the agent ended with CancelledError", environment.spec.run_id)
        raise ExecutionError("AGENT_FAILED") from None
    except (ExecutionError, InvalidConfiguration, Paused, Unavailable):
        raise
    except ContextMisuse as error:
        raise ExecutionError("AGENT_FAILED", f"The code of the agent failed: {error}") from None
    except BaseException as error:
        # Also SystemExit, which would end the process. The text may contain secrets: it goes to
        # the log only.
        if not environment.is_stopping:
            _log.warning("run %s: the agent failed", environment.spec.run_id, exc_info=error)
        raise ExecutionError("AGENT_FAILED") from None
    environment.checkpoint()
    transcript.end_answer([], "stop")
    transcript.close_open_calls(now())
