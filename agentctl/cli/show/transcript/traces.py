"""Links from transcripts to the traces of runs."""

from __future__ import annotations

from agentctl.errors import AgentctlError
from agentctl.operations import Operations
from agentctl.records.kinds import Record
from agentctl.transcripts.texts import TRACE_URL


class TraceLinks:
    """Adds the pages about traces to runs. The server names their address once."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._url: str | None = None

    async def add_to(self, run: Record) -> Record:
        """Return a run with the page about its trace, if there is one."""
        if not run.get("trace_id"):
            return run
        if self._url is None:
            try:
                self._url = (await self._operations.get_me()).value["trace_url"] or ""
            except (AgentctlError, KeyError):
                self._url = ""
        if not self._url:
            return run
        return {**run, TRACE_URL: self._url.replace("{trace_id}", str(run["trace_id"]))}
