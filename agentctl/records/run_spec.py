"""The specification of a run: its work and its limits; and the plan of a run that repeats another
one (docs/contract.md "Retry and fork").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.kinds import ComponentKind

Purpose = Literal["summary", "memory"]
"""The purpose of background work after a run."""

REQUIRED = "required"
"""The tool choice of a request whose model has to call any tool."""


OriginKind = Literal["retry", "fork"]
"""The way in which a run repeats another run: from its last good step, or from a message."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that a root run repeats, and what it begins with."""

    run_id: str
    kind: OriginKind

    at: int = 0
    """Number of messages of the origin, or of steps of a workflow, that the run begins with.

    0 if it works from the beginning.
    """

    before: int | None = None
    """Only runs of the session with lower numbers are its history; None for all runs."""

    messages: tuple[Mapping[str, Any], ...] = ()
    """The neutral messages that it begins with, each with `origin_run_id`.

    With `has_prompt` its own message follows. Without, it continues after the last of them.
    """

    has_prompt: bool = True

    step_input: str | None = None
    """The output of the last finished step of a workflow; None if no step has finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The work and the limits of a run. They never change, and each of them has a JSON form.

    The row of the run is written from it, and models and tools read it. A child has the values of
    its parent, except for its own work, and no `output_schema` and tools of the caller.
    """

    run_id: str
    session_id: str

    parent_run_id: str | None = None
    """The run that requested this run of a member, or that this background work follows.

    None for a root run.
    """

    component_type: ComponentKind
    component_id: str

    user_id: str | None
    """The owner of the session; before the admission, the user of the request."""

    input: str
    """The message for the component.

    If the request has no message, this is the JSON text of its object `input`.
    """

    input_object: str | None = None
    """JSON text of the object `input` of the request; None if it has none.

    Of the runs below this run, only the first step of a workflow has it.
    """

    background: bool = False
    """True if the row is PENDING until a worker claims the run."""

    recorded: bool = False
    """True if the events of a root run are stored.

    The events of a member are stored with the events of its root run.
    """

    survives_disconnect: bool = False
    """True if the run is executed even if its client does not receive its id."""

    time_limit: float
    """Maximum duration of the run in seconds."""

    tool_timeout: float
    """Maximum duration of one tool call in seconds."""

    metadata: str | None = None
    """JSON object of the request, stored in the row of the root run."""

    session_state: str | None = None
    """JSON object of the request, stored in the row of the root run."""

    output_schema: str | None = None
    """JSON Schema of the request for its result."""

    client_tools: str | None = None
    """JSON array of the tools of the caller; None if it has none."""

    tool_choice: str | None = None
    """`required` if the first answer of the model has to call a tool, or the name of that tool.

    The tool is one of the caller. None leaves the choice to the model.
    """

    stop: tuple[str, ...] = ()
    """Texts that end the answer, and with it the run."""

    session_history: bool = True
    """False if the component gets no earlier runs of the session."""

    dependencies: str | None = None
    """JSON object of the request; it is not stored."""

    claims: str | None = field(default=None, repr=False)
    """Verified claims of the caller's token as JSON; None without a JWT."""

    earlier_messages: tuple[Mapping[str, Any], ...] = ()
    """Neutral messages of the request, which follow the messages of the session."""

    purpose: Purpose | None = None
    """The purpose of background work; None for other runs."""

    covered: int = 0
    """The number of the last run that a summary covers."""

    request_id: str | None = None
    """The id of the request that started the root run."""

    actor: str | None = None
    """The principal that started the root run, as rows name it."""

    durable: bool = False
    """True if its steps are stored, so that another process can continue it."""

    origin: Origin | None = None
    """The run that a root run repeats; None if it repeats none."""

    trace: str | None = None
    """Its place in a trace (`records.logs.RunTrace.text`); None if it is not traced."""

    version: str | None = None
    """The version of its component (docs/versions.md); None if it is not known.

    A member that an agent in code runs has the version of that agent.
    """

    files: str | None = None
    """JSON array of the references of the files of the message; None if it has no files.

    Members get the files of their team. In a workflow, only the first step gets them.
    """

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that a checkpoint keeps: without `dependencies`."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        origin = None if self.origin is None else asdict(self.origin)
        return {**values, "dependencies": None, "origin": origin}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunSpec:
        """Return the specification of a checkpoint."""
        names = {item.name for item in fields(cls)}
        members = {name: value for name, value in values.items() if name in names}

        for name in ("earlier_messages", "stop"):
            members[name] = tuple(values.get(name) or ())
        origin = members.get("origin")
        if origin is not None:
            members["origin"] = Origin(**{**origin, "messages": tuple(origin["messages"])})
        return cls(**members)

    def build_member_spec(
        self,
        run_id: str,
        kind: ComponentKind,
        component_id: str,
        task: str,
        *,
        time_limit: float,
        keeps_input: bool = False,
        version: str | None,
    ) -> RunSpec:
        """Return the specification of the run of a member or a step below this run.

        The output schema of the request is for the answer to the user, not for a report.

        Args:
            keeps_input: True to give the run the `input_object` of this run.
            version: the version of the member or the step.
        """
        return replace(
            self,
            run_id=run_id,
            parent_run_id=self.run_id,
            component_type=kind,
            component_id=component_id,
            input=task,
            input_object=self.input_object if keeps_input else None,
            files=self.files if keeps_input or self.component_type != "workflow" else None,
            background=False,
            recorded=False,
            survives_disconnect=False,
            output_schema=None,
            client_tools=None,
            tool_choice=None,
            stop=(),
            earlier_messages=(),
            origin=None,
            time_limit=time_limit,
            version=version,
        )

    @property
    def is_member(self) -> bool:
        """True for the run of a member or of a step."""
        return self.parent_run_id is not None and self.purpose is None


MAXIMUM_SHOWN_CALLS = 100
"""Calls of a plan that are shown; `calls_total` counts all of them."""

MAXIMUM_SHOWN_ARGUMENTS = 1_000
"""Characters after which the arguments of a call are cut."""

CallState = Literal["done", "failed", "unknown"]


class RepeatedCallRecord(TypedDict):
    """A tool call of the origin that the new run may make again.

    `run_id` is the origin or a run below it. `arguments` is JSON text, cut after 1,000 characters.
    `state` is `unknown` if the call had begun and its result is not known.
    """

    run_id: str
    tool_call_id: str
    tool_name: str
    arguments: str
    state: CallState


class RepeatPlan(TypedDict):
    """The beginning of a new run, and the effects that it may repeat.

    `at` is the number of messages of the origin (steps of a workflow) that the run begins with, 0
    if it works from the beginning. `runs_code` is set if the code of an agent in code runs again,
    `calls_unknown` if the server of the origin died: its last calls may not be known. `retries` are
    earlier retries of the origin. `confirm` is the hash of all of it.
    """

    run_id: str
    kind: OriginKind
    at: int
    calls: list[RepeatedCallRecord]
    calls_total: int
    runs_code: bool
    calls_unknown: bool
    retries: list[str]
    confirm: str


class ConfirmationBody(TypedDict):
    """The body of a 409 to a retry or a fork: `plan` if the request needs a confirmation."""

    detail: str
    error_code: NotRequired[str | None]
    plan: NotRequired[RepeatPlan]
