"""The answer of a run, put together from its stream."""

from __future__ import annotations

from collections.abc import Mapping
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

    Args:
        kind: of the run's component.
        to_stdout: whether the text is written.
        run_id: the run, when it is known before its first event.
        whole: whether the stream is taken from its first event on.

    Attributes:
        run_id: of the run that the stream is of; empty before its first event.
        session_id: the session of that run; empty before its first event.
        end: how it ended, with the fields of a run record; empty before that.
    """

    def __init__(
        self, kind: Kind, *, to_stdout: bool, run_id: str = "", whole: bool = True
    ) -> None:
        self.run_id = run_id
        self.session_id = ""
        self.end: Mapping[str, Any] = {}
        self._to_stdout = to_stdout
        self._text = ""
        self._prefix = KINDS[kind].event_prefix
        # What a workflow says is in its end only.
        self._whole = whole or kind == "workflow"

    @property
    def in_line(self) -> bool:
        """Whether the text that was written so far has not ended its line."""
        return bool(self._text) and not self._text.endswith("\n")

    def take(self, event: StreamEvent) -> bool:
        """Take one event. True for the first, which says what run this is."""
        import orjson

        data = orjson.loads(event.data)
        first = not self.run_id
        if first:
            self.run_id = str(data.get("run_id") or "")
            self.session_id = str(data.get("session_id") or "")
        self.hear(event.name, data)
        return first

    def hear(self, name: str, data: Mapping[str, Any]) -> None:
        """Take an event that was read, of a run that is known."""
        if data.get("run_id") != self.run_id:
            return
        name = name.removeprefix(self._prefix)
        if name == "Content":
            self._write(str(data.get("content") or ""))
        elif name in _ENDS:
            reason = data.get("reason")
            self.conclude({**data, "status": _ENDS[name], "cancel_reason": reason})

    def conclude(self, end: Mapping[str, Any]) -> None:
        """The run has ended so: a run record, or what has its fields."""
        self.end = end
        self._write_rest(str(end.get("content") or ""))

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
        if self.in_line:
            self._write("\n")

    def _write_rest(self, content: str) -> None:
        """What the whole answer has beyond what was streamed: all of it for workflows."""
        if self._whole and content.startswith(self._text):
            self._write(content[len(self._text) :])

    def _write(self, text: str) -> None:
        self._text += text
        if self._to_stdout and text:
            write_text(text)
