"""The interface of the runners of agents in code, and the execution of a run by one of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Collection, Sequence
from typing import Protocol, runtime_checkable

from agentctl.errors import InvalidConfiguration, is_store_failure
from agentctl.runtime.context import ContextMisuse, RunEnvironment
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.access import current_access
from agentctl.runtime.pauses import InputSchema, Parked, Paused
from agentctl.runtime.runners.hosted_run import HostedRun, LateReport
from agentctl.runtime.runners.library_members import complete_members, fail_members, pause_members
from agentctl.runtime.transcript.repeated_calls import RepeatLimits

FACTORY = "factory"
"""The kind of an asynchronous factory before it has made its object.

Earlier releases kept the native messages of all agents of such factories for this kind.
"""

_INCOMPLETE = ("length", "content_filter")
"""Finish reasons of an answer that its provider has cut."""

_log = logging.getLogger("agentctl.runtime")


class Runner(Protocol):
    """The executor of one agent in code, shared by all of its runs.

    Attributes:
        kind: the kind of the object, such as `function`. Native messages are kept for it. A runner
            of another kind cannot continue with its runs. It is `FACTORY` until an asynchronous
            factory has made its object, and the kind of this object from then on.
        native_kinds: the kinds whose native messages this runner reads.
        input_schema: the object `input` that the agent takes; None for any object.
        message_obstacle: a sentence about why its runs take no messages while they work; None if
            they take them (`RunEnvironment.take_messages`).
    """

    @property
    def kind(self) -> str: ...
    @property
    def native_kinds(self) -> Sequence[str]: ...
    @property
    def input_schema(self) -> InputSchema | None: ...
    @property
    def message_obstacle(self) -> str | None: ...

    async def open(self) -> None:
        """Open what all runs share. Called once in a process, before its first run.

        An exception fails the run; the next run tries again.
        """

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run. Everything that it produces is reported through `run`, as it arrives.

        A cancel raises asyncio.CancelledError at an `await`: release everything and raise it again.
        The engine waits for 0.1 seconds, then ends the run without this call and reports it as work
        that has not stopped. Work in other tasks or threads is added with `run.add_unstopped`
        before the method returns or raises.

        Raises:
            ExecutionError: the run ends as ERROR with this code. Any other exception ends it with
                AGENT_FAILED; its text goes to the log and to the causes of the run only.
        """

    async def close(self) -> None:
        """Close what `open` has opened. Called once, also if `open` was not called."""


@runtime_checkable
class TakesClientTools(Protocol):
    """A runner whose runs take tools of their caller (`RunSpec.client_tools`).

    Attributes:
        tool_names: the names of the tools of the agent that are known before a run.
    """

    @property
    def tool_names(self) -> Collection[str]: ...


async def run_hosted_agent(
    opening: Awaitable[Runner], environment: RunEnvironment, repeats: RepeatLimits | None = None
) -> None:
    """Run an agent in code to its end. The result is in the transcript.

    Tokens are unknown unless the runner or a function of the run reports them.

    Args:
        opening: returns the opened runner of the agent.
        repeats: how often its model may make one call in a row; None for no limit.

    Raises:
        ExecutionError: the agent failed, or could not be opened.
        InvalidConfiguration: its object is not usable.
        asyncio.CancelledError: the run has to stop, even if the agent returned a result.
        Paused: the agent waits for decisions.
        Parked: another process continues.
    """
    try:
        await _execute(opening, environment, repeats)
    except Paused:
        await pause_members(environment)
        raise
    except ExecutionError as failure:
        await fail_members(environment, failure)
        raise


async def _execute(
    opening: Awaitable[Runner], environment: RunEnvironment, repeats: RepeatLimits | None
) -> None:
    transcript = environment.transcript
    access = current_access.get()

    is_first_leg = environment.leg is None
    if is_first_leg:
        transcript.forget_usage()

    try:
        runner = await opening
        if is_first_leg:
            environment.recorder.begin()
        # Nothing awaits between this and the first step of the agent.
        await environment.wait_while_halted()

        transcript.keep_runner_kind(runner.kind)
        if access is not None:
            access.library = runner.kind

        hosted = HostedRun(environment, runner.kind, repeats)
        await runner.run(environment.spec.input, hosted)
        hosted.end_text()
        await complete_members(environment)
    except LateReport:
        if not environment.has_ended:
            # The report came from a member that has ended first: the run stops, too.
            raise
        # The agent ignored its cancellation. Without an exception its task ends with a late result.
        return
    except asyncio.CancelledError:
        if environment.is_stopping:
            raise
        # The agent cancelled itself, for example in a task group.
        _log.warning("run %s: the agent ended with CancelledError", environment.spec.run_id)
        raise ExecutionError("AGENT_FAILED") from None
    except (ExecutionError, InvalidConfiguration, Parked, Paused):
        raise
    except ContextMisuse as error:
        environment.keep_cause(error)
        raise ExecutionError("AGENT_FAILED", f"The code of the agent failed: {error}") from None
    except BaseException as error:
        if is_store_failure(error):
            raise

        # Also SystemExit, which would end the process. The text may contain secrets: it goes to
        # the log, and to those who may read causes.
        if not environment.is_stopping:
            _log.warning("run %s: the agent failed", environment.spec.run_id, exc_info=error)
            environment.keep_cause(error)
        raise ExecutionError("AGENT_FAILED") from None

    environment.checkpoint()

    cut_reason = None
    if access is not None and access.finish_reason in _INCOMPLETE:
        cut_reason = access.finish_reason
    environment.recorder.complete(cut_reason)
