"""The interface of a runner, which executes an agent in code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentctl.runtime.runners.hosted_run import HostedRun


class Runner(Protocol):
    """The executor of one agent in code, shared by all of its runs.

    Attributes:
        kind: the kind of the object, such as `function`. Native messages are kept for it.
    """

    @property
    def kind(self) -> str: ...

    async def open(self) -> None:
        """Open what all runs share. Called once in a process, before its first run.

        An exception fails the run; the next run tries again.
        """
        ...

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run. Everything that it produces is reported through `run`, as it arrives.

        A cancel raises asyncio.CancelledError at an `await`: release everything and raise it again.
        The engine waits for 0.1 seconds, then ends the run without this call and reports it as work
        that has not stopped. Work in other tasks or threads is added with `run.add_unstopped`
        before the method returns or raises.

        Raises:
            ExecutionError: the run ends as ERROR with this code. Any other exception ends it with
                AGENT_FAILED; its text goes to the log only.
        """
        ...

    async def close(self) -> None:
        """Close what `open` has opened. Called once, also if `open` was not called."""
        ...
