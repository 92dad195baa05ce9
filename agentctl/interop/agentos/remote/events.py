"""Events of AgentOS streams in the form of this interface."""

from __future__ import annotations

from typing import Any

import orjson

from agentctl.errors import InvalidResponse, RunFailed
from agentctl.interface.requests import StreamEvent
from agentctl.interop.agentos.mapping import read_error
from agentctl.interop.agentos.values import format_content, read_counters
from agentctl.interop.agentos.waiting import find_waiting
from agentctl.records.events import END_STATUSES, EVENT_NAMES, EventKind, find_event_kind
from agentctl.records.kinds import ComponentKind, Record
from agentctl.remote.events import ServerEvent

CONTROL_EVENTS = frozenset({"replay", "catch_up", "subscribed", "error"})
"""Events about the stream itself, which a resumed stream mixes with those of the run."""


class EventReader:
    """Converts the events of one stream.

    AgentOS ends the stream of a cancelled run with `RunCancelled` and then `RunCompleted`. A cancel
    that was seen is the end of its run, so the later event is dropped.

    Args:
        run_id: the run; empty until its first event.
        after: the number before that of the first event.

    Attributes:
        ended: True after the last event of the run, and while it is paused.
        pause: the data of the event of the run's last pause.
        refusal: the text of an `error` event about the stream; None without one.
    """

    def __init__(self, kind: ComponentKind, run_id: str, after: int) -> None:
        self._names = EVENT_NAMES[kind].values()
        self._run_id = run_id
        self._after = after
        self._cancelled: set[str] = set()
        self.ended = False
        self.pause: Record | None = None
        self.refusal: str | None = None

    def read(self, received: ServerEvent) -> StreamEvent | None:
        """Return the event of the run, None for one that is dropped.

        Raises:
            RunFailed: the run did not start.
        """
        data = _parse(received)
        name = str(data.get("event") or received.name)
        if name in CONTROL_EVENTS:
            if name == "error":
                self.refusal = str(data.get("error") or "")
            return None
        run_id = str(data.get("run_id") or "")
        kind = find_event_kind(name)
        ends = kind in END_STATUSES
        if not run_id and kind is EventKind.FAILED:
            error = read_error(data, _error_text(data))
            raise RunFailed("the run did not start", cause=f"{error['code']}: {error['detail']}")
        self._run_id = self._run_id or run_id
        if kind is EventKind.CANCELLED:
            self._cancelled.add(run_id)
        elif ends and run_id in self._cancelled:
            return None

        is_own = run_id == self._run_id and name in self._names
        if is_own and (ends or kind in (EventKind.PAUSED, EventKind.CONTINUED)):
            self.ended = kind is not EventKind.CONTINUED
        if is_own and kind is EventKind.PAUSED:
            self.pause = data
        index = data.get("event_index")
        number = index if type(index) is int else self._after + 1
        self._after = max(number, self._after)
        return StreamEvent(number, name, orjson.dumps(_build_data(kind, data, is_own=is_own)))


def _build_data(kind: EventKind | None, data: dict[str, Any], *, is_own: bool) -> dict[str, Any]:
    """Return the data of an event, of the run itself or of a member, as this server sends it."""
    built = dict(data)
    if "content" in data:
        built["content"] = format_content(data["content"])
    if kind is EventKind.PAUSED:
        # The pause of a run names the calls of its members as well.
        waiting = find_waiting(data) if is_own else ()
        built |= {"approvals": [approval for approval, _ in waiting], "content": None}
    elif kind is EventKind.CONTINUED:
        built.pop("content", None)
    if kind is EventKind.FAILED:
        built |= {"error": read_error(data, _error_text(data)), "content": None}
    elif not isinstance(data.get("error"), dict | None):
        built["error"] = {"code": "FAILED", "detail": str(data["error"])}
    if "metrics" in data:
        built["metrics"] = read_counters(data["metrics"])
    return built


def _parse(received: ServerEvent) -> dict[str, Any]:
    try:
        data = orjson.loads(received.data)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        raise InvalidResponse(
            "the server sent an event that is not what agentctl expects",
            cause="the data of an event is not a JSON object",
        )
    return data


def _error_text(data: dict[str, Any]) -> str | None:
    found = data.get("error")
    return found if isinstance(found, str) and found else format_content(data.get("content"))
