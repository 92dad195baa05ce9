"""The answer of a run, put together from its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentctl.cli.output import write_text
from agentctl.errors import Unavailable
from agentctl.records.kinds import KINDS, Kind

if TYPE_CHECKING:
    from agentctl.operations import StreamEvent

__all__ = ["Answer"]

_ENDS = {"Completed": "COMPLETED", "Cancelled": "CANCELLED", "Error": "ERROR"}


class Answer:
    """Takes the events of one stream, and writes the text of its own run as it arrives.

    Members and steps of the run speak in the same stream; what they say is not the answer.

    Attributes:
        run_id: of the run that the stream is of; empty before its first event.
        session_id: the session of that run.
        end: how it ended, with the fields of a run record; empty before that.
    """

    def __init__(self, kind: Kind, *, to_stdout: bool) -> None:
        self.run_id = ""
        self.session_id = ""
        self.end: dict[str, Any] = {}
        self._to_stdout = to_stdout
        self._text = ""
        self._prefix = KINDS[kind].event_prefix

    def take(self, event: StreamEvent) -> bool:
        """Take one event. True for the first, which says what run this is."""
        import orjson

        data = orjson.loads(event.data)
        first = not self.run_id
        if first:
            self.run_id = str(data.get("run_id") or "")
            self.session_id = str(data.get("session_id") or "")
        if data.get("run_id") == self.run_id:
            self._take_own(event.name.removeprefix(self._prefix), data)
        return first

    def finish(self, hint: str) -> None:
        """Close the last line.

        Args:
            hint: what to do when the end is missing.

        Raises:
            Unavailable: the stream ended before the run did.
        """
        self.end_line()
        if not self.end:
            raise Unavailable("the stream ended before the run did", hint=hint)

    def end_line(self) -> None:
        """What is said next begins on a line of its own."""
        if self._text and not self._text.endswith("\n"):
            self._write("\n")

    def _take_own(self, name: str, data: dict[str, Any]) -> None:
        if name == "Content":
            self._write(str(data.get("content") or ""))
        elif name in _ENDS:
            self._write_rest(str(data.get("content") or ""))
            reason = data.get("reason")
            self.end = {**data, "status": _ENDS[name], "cancel_reason": reason}

    def _write_rest(self, content: str) -> None:
        """What the whole answer has beyond what was streamed: all of it for workflows."""
        if content.startswith(self._text):
            self._write(content[len(self._text) :])

    def _write(self, text: str) -> None:
        self._text += text
        if self._to_stdout and text:
            write_text(text)
