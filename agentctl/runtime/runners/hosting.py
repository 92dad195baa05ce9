"""Execution of a run of an agent in code by its runner."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentctl.records.times import now
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun, LateReport

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.runners.base import Runner

_log = logging.getLogger("agentctl.runtime")


async def run_hosted_agent(runner: Runner, message: str, environment: RunEnvironment) -> None:
    """Run an agent in code to its end. The result is in the transcript.

    Tokens are unknown unless the runner or a function of the run reports them.

    Raises:
        ExecutionError: the agent failed.
        asyncio.CancelledError: the run has to stop, even if the agent returned a result.
    """
    transcript = environment.transcript
    transcript.forget_usage()
    transcript.add_user(message)
    try:
        await runner.run(message, HostedRun(environment, runner.kind))
    except LateReport:
        # The agent ignored its cancellation. Without an exception its task ends with a late result.
        return
    except asyncio.CancelledError:
        if environment.is_stopping:
            raise
        # The agent cancelled itself, for example in a task group.
        _log.warning("run %s: the agent ended with CancelledError", environment.run_id)
        raise ExecutionError("AGENT_FAILED") from None
    except ExecutionError:
        raise
    except BaseException as error:
        # Also SystemExit, which would end the process. The text may contain secrets: it goes to
        # the log only.
        if not environment.is_stopping:
            _log.warning("run %s: the agent failed", environment.run_id, exc_info=error)
        raise ExecutionError("AGENT_FAILED") from None
    environment.checkpoint()
    transcript.end_answer([], "stop")
    transcript.close_open_calls(now())
