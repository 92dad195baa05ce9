"""The common part of the runners of libraries: what they open, their deps, and decided calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from agentctl.agents import RunContext
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.input_schema import InputSchema
from agentctl.runtime.pauses import Decided
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.owner import OwnerTask
from agentctl.work.unstopped import install_executor

BuildDeps = Callable[[RunContext], Any]
"""Makes the deps of a run; it may be asynchronous."""

UNSTORABLE = "The run cannot wait: it has a value that cannot be stored"


class LibraryRunner:
    """A `runtime.runners.runner.Runner` of a library, without `run`.

    Args:
        owner: owns what the objects of the library enter; None for nothing.
    """

    input_schema: InputSchema | None = None

    def __init__(self, owner: OwnerTask | None = None) -> None:
        self._owner = owner

    async def open(self) -> None:
        install_executor()
        if self._owner is not None:
            await self._owner.open()

    async def close(self) -> None:
        if self._owner is not None:
            await self._owner.close()


class DecidedCalls:
    """The decided calls of a pause, by the keys of the runner; stores their begin and their end.

    Attributes:
        approved: the calls that are to be made.
        settled: the texts of those that are not to be made, and whether they failed: they were
            rejected, or made before in a leg that was lost.
    """

    def __init__(self, run: HostedRun) -> None:
        self.approved: dict[Any, Decided] = {}
        self.settled: dict[Any, tuple[str, bool]] = {}
        self._run = run

    async def begin(self, key: Any, arguments: Mapping[str, Any] | None = None) -> None:
        """Store that a call begins. The library makes it when this returns.

        Args:
            arguments: its arguments, if the library could make it with others than approved.

        Raises:
            ExecutionError: the arguments are not the approved ones: the call is not made.
        """
        decision = self.approved.get(key)
        if decision is None:
            await self._run.environment.begin_effect()
            return
        if arguments is not None and arguments != decision.arguments:
            raise build_refusal(decision.tool_name)
        await self._run.begin_approved(decision.approval_id)

    async def end(self, key: Any, text: str, *, failed: bool) -> None:
        """Store the end of a call, if it was an approved one."""
        decision = self.approved.pop(key, None)
        if decision is not None:
            await self._run.environment.end_call(decision.approval_id, text, failed=failed)


def build_refusal(tool: str) -> ExecutionError:
    """Build the failure of a call whose arguments are not the approved ones."""
    return ExecutionError(
        "AGENT_FAILED",
        f"The tool {tool} was called with other arguments than the approved ones: it was not"
        " executed",
    )
