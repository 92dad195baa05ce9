"""The events of a run with the members and the additional events of AgentOS."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.interop.agentos.mapping import write_tool
from agentctl.interop.agentos.server import runs
from agentctl.interop.agentos.server.directory import Directory, get_kind
from agentctl.interop.agentos.server.pauses import write_pause, write_workflow_pause
from agentctl.interop.agentos.values import write_counters
from agentctl.records.events import EVENT_NAMES, TEXT_KINDS, EventKind, find_event_kind
from agentctl.records.kinds import KINDS, ComponentKind

Event = dict[str, Any]

_CONTENT = EVENT_NAMES["agent"][EventKind.CONTENT], EVENT_NAMES["team"][EventKind.CONTENT]

_IDENTITY = frozenset(
    {"created_at", "run_id", "session_id", "parent_run_id"}
    | {field for names in KINDS.values() for field in (names.id_field, f"{names.kind}_name")}
)
"""Members of every event of a run."""

_WITH_METADATA = (EventKind.STARTED, EventKind.CONTINUED, EventKind.COMPLETED)

_STEP_MEMBERS = ("step_id", "step_name", "step_index")


@dataclass(slots=True)
class _Run:
    """The part of a run that was seen."""

    kind: ComponentKind
    component_id: str
    name: str

    has_model: bool
    """True if the text of the run is the text of its model."""

    requesting: bool = False
    """True between the start and the end of a model request."""

    started_at: str | None = None
    """Time of its start; None if the start was not seen."""

    place: Event = field(default_factory=dict)
    """Members that its events have inside of a workflow."""

    metrics: Event = field(default_factory=dict)
    """Metrics of the end of the run."""

    content: Any = None
    """Content of the end of the run."""

    version: str | None = None
    """Version of the component; None if it is not known."""


class EventTranslator:
    """Translates the events of one stream, portion by portion.

    A model request is not an event of the contract. `ModelRequestStarted` and
    `ModelRequestCompleted` follow from the start of a run, its text and its tool calls. Additional
    events have the number of the event before them, so that a resumed stream repeats none that
    the contract has.

    Args:
        numbered: True if the data of each event has its number, `event_index`.
        after: the number of the event before the first one.
        content_only: True for a stream of content and failures, without other events.
    """

    def __init__(
        self,
        directory: Directory,
        kind: ComponentKind,
        *,
        numbered: bool = False,
        after: int = -1,
        content_only: bool = False,
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._numbered = numbered
        self._content_only = content_only
        self._plain = kind == "agent" and not numbered and not content_only

        self._runs: dict[str, _Run] = {}
        self._root: _Run | None = None
        self._root_id = ""

        self._step: Event = {}
        self._step_run: tuple[str, _Run] | None = None
        self._steps: dict[str, Event] = {}
        self._results = list[Event]()
        self._asked = list[Event]()

        self._last_seq = max(after, 0)

    def translate(self, portion: list[StreamEvent]) -> list[StreamEvent]:
        """Return the events that clients of AgentOS receive for a portion."""
        translated = list[StreamEvent]()

        for event in portion:
            root = self._root
            if self._plain and event.name == _CONTENT[0] and root is not None and root.requesting:
                # Most events of a stream: nothing is missing in them.
                translated.append(event)
                self._last_seq = event.seq
                continue

            for name, body in self._expand(event.name, orjson.loads(event.data)):
                failed = find_event_kind(name) is EventKind.FAILED
                if self._content_only and name not in _CONTENT and not failed:
                    continue

                if name == event.name:
                    self._last_seq = event.seq
                if self._numbered:
                    body["event_index"] = self._last_seq
                translated.append(StreamEvent(self._last_seq, body["event"], orjson.dumps(body)))

        return translated

    def _expand(self, name: str, body: Event) -> list[tuple[str, Event]]:
        kind = find_event_kind(name)
        run_id = body["run_id"]

        if kind is EventKind.QUEUED:
            # AgentOS has no such event; it shows a client that its run is accepted.
            return [(name, body | {"event": "CustomEvent", "nested_depth": 0})]

        run = self._runs.get(run_id)
        if run is None:
            run = self._add_run(run_id, body, started=kind is EventKind.STARTED)

        body["nested_depth"] = 0
        body |= run.place

        # A run that continues may have another version of its component.
        run.version = body.pop("version", run.version)
        if run.version and kind in _WITH_METADATA:
            body["metadata"] = runs.build_version(run.version)

        before = list[str]()
        after = list[str]()
        if run.kind == "workflow":
            self._translate_workflow_event(kind, body)
        else:
            before, after = _list_additional(kind, run)
            self._translate_event(kind, run, body)

        if kind is EventKind.PAUSED:
            self._translate_pause(run, body)
        elif kind is EventKind.CONTINUED:
            for name_of_contract in ("approvals", "attempt", "content"):
                body.pop(name_of_contract, None)
            if run is self._root:
                self._asked = []

        base = {key: value for key, value in body.items() if key in _IDENTITY} | run.place
        return [
            *((event_name, self._build_additional(event_name, base, run)) for event_name in before),
            (name, body),
            *((event_name, self._build_additional(event_name, base, run)) for event_name in after),
        ]

    def _add_run(self, run_id: str, body: Event, *, started: bool) -> _Run:
        kind = get_kind(body)
        component_id = body[KINDS[kind].id_field]
        # In a stream that is resumed in the middle of a run, its model requests are not known.
        has_model = started and self._directory.answers_by_model(kind, component_id)
        run = _Run(kind, component_id, body[f"{kind}_name"], has_model)
        run.started_at = body["at"] if started else None

        parent_id = body.get("parent_run_id")
        parent = self._runs.get(parent_id or "")

        if self._root is None and parent_id is None:
            self._root = run
            self._root_id = run_id
        elif parent is not None and parent is self._root and self._kind == "workflow":
            run.place = {
                "workflow_id": self._step.get("workflow_id"),
                "workflow_run_id": self._root_id,
                **{key: self._step[key] for key in _STEP_MEMBERS if key in self._step},
            }
            self._step_run = run_id, run
        elif parent is not None:
            run.place = parent.place

        self._runs[run_id] = run
        return run

    def _set_model(self, run: _Run, body: Event) -> None:
        model = self._directory.get_model(run.kind, body[KINDS[run.kind].id_field])
        if model is not None:
            body["model"], body["model_provider"] = model

    def _build_additional(self, name: str, base: Event, run: _Run) -> Event:
        body = {**base, "event": name, "nested_depth": 0}
        if "ModelRequest" in name:
            self._set_model(run, body)
        return body

    def _translate_pause(self, run: _Run, body: Event) -> None:
        """Write what a run waits for; that of the root includes the pauses of its members."""
        run_id = body["run_id"]
        id_field = KINDS[run.kind].id_field
        place = {
            "run_id": run_id,
            "component_type": run.kind,
            "component_id": body[id_field],
            "created_at": body["at"],
        }

        approvals = [approval | place for approval in body.pop("approvals")]
        self._asked += approvals

        if run.kind != "workflow":
            pending = self._asked if run is self._root else approvals
            body |= write_pause(run_id, pending, self._directory)
            return

        executor = None
        if self._step_run is not None:
            executor_id, step = self._step_run
            executor = step.kind, step.component_id, executor_id

        step_place = self._step.get("step_name", ""), self._step.get("step_index", 0)
        body["status"] = "PAUSED"
        body |= write_workflow_pause(
            run_id, body["session_id"], step_place, executor, self._asked, self._directory
        )

    def _translate_event(self, kind: EventKind | None, run: _Run, body: Event) -> None:
        """Change the members of an event of an agent or a team."""
        match kind:
            case EventKind.STARTED:
                self._set_model(run, body)

            case _ if kind in TEXT_KINDS:
                for name_of_contract in ("node", "message_id", "member_run_id"):
                    body.pop(name_of_contract, None)

            case EventKind.TOOL_CALL_STARTED | EventKind.TOOL_CALL_COMPLETED:
                body["tool"] = write_tool(body["tool"], body["created_at"])

            case EventKind.COMPLETED:
                body["content_type"] = "str"
                duration = runs.measure_duration(run.started_at, body["at"])
                body["metrics"] = write_counters(body.get("metrics")) | duration
                run.metrics = body["metrics"]
                run.content = body["content"]

            case EventKind.FAILED:
                error = body.pop("error")
                body["error_type"] = error["code"]
                body["content"] = error["detail"]

            case (
                EventKind.PROGRESS
                | EventKind.COMPACTED
                | EventKind.FILE_SAVED
                | EventKind.MESSAGE_DELIVERED
            ):
                body["event"] = "CustomEvent"

    def _translate_workflow_event(self, kind: EventKind | None, body: Event) -> None:
        """Change the members of an event of a workflow."""
        match kind:
            case EventKind.STEP_STARTED:
                body["step_id"] = f"{body['run_id']}-{body['step_index']}"
                self._step = body
                self._step_run = None

            case EventKind.STEP_COMPLETED:
                body["step_id"] = f"{body['run_id']}-{body['step_index']}"
                body["content_type"] = "str"
                if self._step_run is not None:
                    body["step_response"] = self._end_step(*self._step_run, body)

            case EventKind.COMPLETED:
                body["content_type"] = "str"
                body["metrics"] = {"steps": self._steps}
                body["step_results"] = self._results

            case EventKind.FAILED:
                body["error_type"] = body["error"]["code"]
                body["error"] = body["error"]["detail"]

    def _end_step(self, run_id: str, run: _Run, body: Event) -> Event:
        """Return the result of a step, and keep it for the end of its workflow."""
        step = body["step_name"]
        result = runs.build_step_result(step, run.kind, run.name, run_id, body["content"])
        result["metrics"] = run.metrics

        self._results.append(result)
        self._steps[step] = {key: result[key] for key in runs.STEP_SUMMARY}
        return result


def _list_additional(kind: EventKind | None, run: _Run) -> tuple[list[str], list[str]]:
    """Return the names of events that AgentOS has before and after an event of a run.

    They are about the requests to the model, of which this interface has no events.
    """
    prefix = KINDS[run.kind].part_prefix

    if kind is EventKind.STARTED and run.has_model:
        run.requesting = True
        return [], [f"{prefix}ModelRequestStarted"]

    if kind in TEXT_KINDS and run.has_model and not run.requesting:
        run.requesting = True
        return [f"{prefix}ModelRequestStarted"], []

    before = list[str]()
    if run.requesting and kind in (EventKind.TOOL_CALL_STARTED, EventKind.COMPLETED):
        before.append(f"{prefix}ModelRequestCompleted")
        run.requesting = False

    if kind is EventKind.COMPLETED:
        before.append(f"{prefix}RunContentCompleted")

    return before, []
