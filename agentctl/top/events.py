"""The last events of a run, as lines that grow while it works."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from agentctl.cli.show.event_lines import describe_event
from agentctl.errors import AgentctlError, TooManyRequests, Unavailable
from agentctl.interface.requests import BEFORE_FIRST_EVENT, ResumeRequest
from agentctl.light_dataclass import dataclass
from agentctl.records.events import TEXT_KINDS, parse_event
from agentctl.records.kinds import component_of_run, find_component
from agentctl.top.head import FIRST_PAUSE, LONGEST_PAUSE
from agentctl.transcripts.model import clean_line, parse_time

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations
    from agentctl.interface.requests import StreamEvent

MAXIMUM_LINES = 200
MAXIMUM_LINE = 500

Run = dict[str, Any]


@dataclass(slots=True)
class _Line:
    """One event, or the text of several in a row."""

    run_id: str
    when: str
    name: str
    text: str
    is_text: bool


class EventLog:
    """The last events of one run, from a stream that is resumed after an interruption.

    Args:
        only: returns True for the ids of the runs whose events are kept.
        changed: is called after each event.
    """

    def __init__(
        self,
        operations: Operations,
        run: Run,
        only: Callable[[str], bool],
        changed: Callable[[], None],
    ) -> None:
        self._operations = operations
        self._run = run
        self._only = only
        self._changed = changed
        self._last = BEFORE_FIRST_EVENT
        self._lines: deque[_Line] = deque(maxlen=MAXIMUM_LINES)
        self._state = "waiting for events"

    async def follow(self) -> None:
        """Read events until the run ends or the caller may not read them."""
        pause = FIRST_PAUSE
        while True:
            before = self._last
            try:
                kind, component = component_of_run(self._run)
                request = ResumeRequest(self._run["session_id"], self._last)
                run_id = self._run["run_id"]
                async for event in self._operations.follow_run(kind, component, run_id, request):
                    self._take(event)
            except (Unavailable, TooManyRequests) as failure:
                pause = FIRST_PAUSE if self._last > before else min(2 * pause, LONGEST_PAUSE)
                self._set_state(f"{failure.detail}, trying again in {pause:g} s")
                await asyncio.sleep(pause)
            except AgentctlError as failure:
                self._set_state(failure.detail)
                return
            else:
                ended = "no events are stored for this run"
                self._set_state(ended if self._last == BEFORE_FIRST_EVENT else "")
                return

    def _set_state(self, text: str) -> None:
        self._state = clean_line(text)
        self._changed()

    def _take(self, event: StreamEvent) -> None:
        if event.seq <= self._last:
            return
        self._last, self._state = event.seq, ""
        parsed = parse_event(event.name, event.data, event.seq)
        run_id = parsed.run_id
        if not self._only(run_id):
            return
        is_text = parsed.kind in TEXT_KINDS
        line = parsed.text if is_text else describe_event(parsed)
        last = self._lines[-1] if self._lines else None
        if is_text and last is not None and last.is_text and last.run_id == run_id:
            last.text = (last.text + parsed.text)[-MAXIMUM_LINE:]
        elif line is not None:
            moment = parse_time(parsed.at)
            when = moment.strftime("%H:%M:%S.%f")[:12] if moment else ""
            name = clean_line((find_component(parsed.data) or ("", ""))[1])
            self._lines.append(_Line(run_id, when, name, line[-MAXIMUM_LINE:], is_text))
        self._changed()

    def draw(self) -> Text:
        """Return the lines, the newest last."""
        text = Text()
        for line in self._lines:
            text.append(f"{line.when:12} ", "dim").append(f"{line.name} ", "bold")
            text.append(f"{clean_line(line.text)}\n", "none")
        return text.append(self._state, "dim")
