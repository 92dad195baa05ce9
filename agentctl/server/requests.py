"""Request bodies as types, for the checks of their fields and for the OpenAPI document.

The bounds in the fields are the constants that `agentctl.service` enforces. `BODIES` has the body
of each operation, and `BodyFields` turns its fields into those of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter
from typing import Annotated, Any, Literal, Required, TypeVar

from typing_extensions import TypedDict

from agentctl.errors import ValidationFailed
from agentctl.records.accounts import ACCOUNT_NAME
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, Verb
from agentctl.records.ids import SESSION_ID
from agentctl.records.kinds import KINDS
from agentctl.records.memories import MAXIMUM_MEMORY_LENGTH, MAXIMUM_TOPIC_LENGTH, MAXIMUM_TOPICS
from agentctl.records.value_types import compile_type
from agentctl.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_DELETED_SESSIONS,
    MAXIMUM_EVENT_NUMBER,
    RunRequest,
)
from agentctl.requests.accounts import (
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    MAXIMUM_SCOPES,
    Grant,
)
from agentctl.requests.approvals import MAXIMUM_DECISIONS, ContinueRequest, RunDecision
from agentctl.requests.memories import MAXIMUM_MEMORIES_DELETED
from agentctl.requests.repeats import ForkRequest, RetryRequest
from agentctl.runtime.tools.client_tools import MAXIMUM_TOOLS
from agentctl.server.bodies import Field, RequestBody
from agentctl.server.personal_data_bodies import EraseBody
from agentctl.server.retention_bodies import HoldSessionBody, PruneBody

Object = dict[str, Any] | None
_AS_TEXT = "in a form a JSON object as text"


class ClientToolBody(TypedDict, total=False):
    """A tool that the caller of a run executes."""

    name: Required[Annotated[str, Field(description="Name: letters, digits, `_` and `-`")]]
    description: Annotated[str | None, Field(description="Description for the model")]
    parameters: Annotated[
        Object, Field(description="JSON Schema of the arguments, an object; none without it")
    ]


class RunBody(TypedDict, total=False):
    """A run to start."""

    __pydantic_config__ = {  # type: ignore[misc]  # noqa: RUF012  # declared so for pydantic
        "json_schema_extra": {"anyOf": [{"required": ["message"]}, {"required": ["input"]}]}
    }

    message: Annotated[
        str, Field(min_length=1, description="Message to send; required without `input`")
    ]
    input: Annotated[
        Object, Field(description=f"Input of an agent in code, stored with the run; {_AS_TEXT}")
    ]
    stream: Annotated[bool, Field(description="Respond with server-sent events", default=True)]
    background: Annotated[
        bool, Field(description="Continue when the client disconnects", default=False)
    ]
    session_id: Annotated[
        str | None,
        Field(pattern=SESSION_ID, description="Session of the run; by default a new one"),
    ]
    user_id: Annotated[
        str | None, Field(min_length=1, description="Owner of the run; administrators only")
    ]
    metadata: Annotated[
        Object,
        Field(
            description=f"Stored with the run and given to the code of tools and agents; {_AS_TEXT}"
        ),
    ]
    session_state: Annotated[
        Object, Field(description=f"Replaces these keys of the state of the session; {_AS_TEXT}")
    ]
    dependencies: Annotated[
        Object,
        Field(description=f"Given to the code of tools and agents, and not stored; {_AS_TEXT}"),
    ]
    output_schema: Annotated[
        Object, Field(description=f"JSON Schema of an object: the answer must match it; {_AS_TEXT}")
    ]
    client_tools: Annotated[
        list[ClientToolBody] | None,
        Field(
            max_length=MAXIMUM_TOOLS,
            description="Tools that the caller executes: a call of one pauses the run. For JSON"
            " bodies",
        ),
    ]
    tool_choice: Annotated[
        str | None,
        Field(
            description="`required` if the first answer must call a tool, or the name of one of"
            " `client_tools`"
        ),
    ]


class ResumeBody(TypedDict, total=False):
    """The position in the stream of a run; each field can also be a query parameter."""

    last_event_index: Annotated[
        int | None,
        Field(
            ge=BEFORE_FIRST_EVENT,
            le=MAXIMUM_EVENT_NUMBER,
            description="Number of the last received event; without it the whole stream",
        ),
    ]
    session_id: Annotated[str | None, Field(description="Session of the run")]


class DecisionBody(TypedDict, total=False):
    """A decision about an approval."""

    decision: Required[Annotated[Verb, Field(description="The decision")]]
    arguments_hash: Annotated[
        str | None,
        Field(
            description="`arguments_hash` of the approval as it was shown; required to approve and"
            " to retry"
        ),
    ]
    arguments: Annotated[
        Object, Field(description="Other arguments for an approved call; they match its schema")
    ]
    note: Annotated[
        str | None,
        Field(
            max_length=MAXIMUM_NOTE_LENGTH,
            description="Note; the model reads the one of a rejection",
        ),
    ]
    answer: Annotated[
        Any, Field(description="Answer to a question, a JSON value that matches its schema")
    ]
    result: Annotated[
        Any, Field(description="Result of a call that was made outside the server, a JSON value")
    ]


class RunDecisionBody(DecisionBody, total=False):
    """A decision about an approval of the run; `approval_id` or `tool_call_id` names it."""

    approval_id: Annotated[str | None, Field(description="Id of the approval")]
    tool_call_id: Annotated[str | None, Field(description="Id of its tool call")]


class ContinueBody(TypedDict, total=False):
    """The continuation of a paused run."""

    decisions: Annotated[
        list[RunDecisionBody] | None,
        Field(
            max_length=MAXIMUM_DECISIONS,
            description="Decisions about approvals with the policy `user`, all or none",
        ),
    ]
    stream: Annotated[bool, Field(description="Respond with server-sent events", default=True)]
    background: Annotated[bool, Field(description="Respond when the run continues", default=False)]
    dependencies: Annotated[
        Object, Field(description="Given to the code of tools and agents, and not stored")
    ]


Confirm = Annotated[
    str | None,
    Field(description="`confirm` of the plan that a 409 has shown; required to repeat effects"),
]


class RetryBody(TypedDict, total=False):
    """The retry of a run that has ended."""

    confirm: Confirm
    stream: Annotated[bool, Field(description="Respond with server-sent events", default=True)]
    background: Annotated[
        bool, Field(description="Continue when the client disconnects", default=False)
    ]
    output_schema: Annotated[
        Object, Field(description="JSON Schema of an object: the answer must match it")
    ]
    dependencies: Annotated[
        Object, Field(description="Given to the code of tools and agents, and not stored")
    ]


class ForkBody(RetryBody, total=False):
    """The fork of a run that has ended."""

    at: Required[
        Annotated[
            int,
            Field(ge=0, description="Number of messages of the run that the new one begins with"),
        ]
    ]
    message: Annotated[
        str | None, Field(min_length=1, description="The next message; by default that of the run")
    ]
    agent_id: Annotated[
        str | None, Field(min_length=1, description="Another agent, which gets the conversation")
    ]
    team_id: Annotated[
        str | None, Field(min_length=1, description="Another team, which gets the conversation")
    ]
    session_id: Annotated[
        str | None,
        Field(
            pattern=SESSION_ID, description="Session of the run, or a new one, by default a new one"
        ),
    ]


class NewSessionBody(TypedDict, total=False):
    """A session to create. The id of its component is in the field of its type."""

    session_id: Annotated[
        str | None, Field(pattern=SESSION_ID, description="Id of the session; by default a new one")
    ]
    session_name: Annotated[str | None, Field(description="Name of the session")]
    session_state: Annotated[Object, Field(description="State of the session")]
    metadata: Annotated[Object, Field(description="Metadata")]
    user_id: Annotated[
        str | None, Field(min_length=1, description="Owner of the session; administrators only")
    ]
    agent_id: Annotated[str | None, Field(description="Id of the agent, for type=agent")]
    team_id: Annotated[str | None, Field(description="Id of the team, for type=team")]
    workflow_id: Annotated[str | None, Field(description="Id of the workflow, for type=workflow")]


class UpdateSessionBody(TypedDict, total=False):
    """New values for a session. Each given value replaces the whole stored value."""

    session_name: Annotated[str, Field(description="Name of the session")]
    session_state: Annotated[Object, Field(description="State of the session")]
    metadata: Annotated[Object, Field(description="Metadata")]


class RenameSessionBody(TypedDict):
    """A new name for a session."""

    session_name: Annotated[str, Field(description="Name of the session")]


class DeleteSessionsBody(TypedDict, total=False):
    """Sessions to delete in one transaction: all or none."""

    session_ids: Required[
        Annotated[
            list[str],
            Field(
                min_length=1, max_length=MAXIMUM_DELETED_SESSIONS, description="Ids of the sessions"
            ),
        ]
    ]


Topic = Annotated[str, Field(min_length=1, max_length=MAXIMUM_TOPIC_LENGTH, pattern="^[^,]+$")]
MemoryText = Annotated[
    str, Field(min_length=1, max_length=MAXIMUM_MEMORY_LENGTH, description="Text of the memory")
]


class NewMemoryBody(TypedDict, total=False):
    """A memory to store."""

    memory: Required[MemoryText]
    topics: Annotated[
        list[Topic] | None, Field(max_length=MAXIMUM_TOPICS, description="Topics of the memory")
    ]
    user_id: Annotated[
        str | None, Field(min_length=1, description="Owner of the memory; administrators only")
    ]
    agent_id: Annotated[str | None, Field(description="Id of the agent that it is from")]
    team_id: Annotated[str | None, Field(description="Id of the team that it is from")]


class UpdateMemoryBody(TypedDict, total=False):
    """New values for a memory. Each given value replaces the whole stored value."""

    memory: MemoryText
    topics: Annotated[
        list[Topic], Field(max_length=MAXIMUM_TOPICS, description="Topics of the memory")
    ]


class DeleteMemoriesBody(TypedDict, total=False):
    """Memories to delete: those with the ids, all or none; or every memory of a user."""

    memory_ids: Annotated[
        list[str] | None,
        Field(
            min_length=1,
            max_length=MAXIMUM_MEMORIES_DELETED,
            description="Ids of the memories; not with `all`",
        ),
    ]
    user_id: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Only memories of this user; required with `all` for administrators",
        ),
    ]
    all: Annotated[bool, Field(description="Delete every memory of the user", default=False)]


class ExplainBody(TypedDict, total=False):
    """A request to explain."""

    method: Required[Annotated[str, Field(description="HTTP method")]]
    path: Required[
        Annotated[str, Field(description="Path of the request, with or without a query")]
    ]
    token: Annotated[
        str | None,
        Field(
            description="Token of the request; by default that of the caller, empty for none. "
            "It is not stored."
        ),
    ]


class GrantBody(TypedDict, total=False):
    """A scope for a service account."""

    scope: Required[Annotated[str, Field(description="Scope")]]
    effect: Annotated[Literal["allow"], Field(description="Effect of the grant", default="allow")]


class NewAccountBody(TypedDict, total=False):
    """A service account to create."""

    name: Required[
        Annotated[
            str, Field(pattern=ACCOUNT_NAME, description="Name, unique among the active accounts")
        ]
    ]
    scopes: Required[
        Annotated[
            list[GrantBody],
            Field(
                min_length=1,
                max_length=MAXIMUM_SCOPES,
                description="Scopes; the caller must have each of them",
            ),
        ]
    ]
    expires_in_days: Annotated[
        int | None,
        Field(
            ge=1,
            le=MAXIMUM_ACCOUNT_DAYS,
            description=f"Days until it expires; {DEFAULT_ACCOUNT_DAYS} by default",
        ),
    ]
    never_expires: Annotated[
        bool, Field(description="Never expire; not with `expires_in_days`", default=False)
    ]
    allow_privileged_scopes: Annotated[
        bool,
        Field(
            description="Required for scopes that write, delete, administer or manage service "
            "accounts",
            default=False,
        ),
    ]


def _read_component_id(body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    component_id: str | None = None
    for kind, names in KINDS.items():
        value = body.get(names.id_field)
        if kind == values["type"]:
            component_id = value
        elif value is not None:
            raise ValidationFailed(f"{names.id_field} cannot be used with type {values['type']}")
    return {**body, "component_id": component_id}


BODIES: dict[str, RequestBody] = {
    "explain_auth": RequestBody(ExplainBody),
    "create_run": RequestBody(RunBody, form=True),
    "resume_run": RequestBody(ResumeBody, form=True, optional=True),
    "continue_run": RequestBody(ContinueBody, optional=True),
    "retry_run": RequestBody(RetryBody, optional=True),
    "fork_run": RequestBody(ForkBody),
    "decide_approval": RequestBody(DecisionBody),
    "create_session": RequestBody(NewSessionBody, optional=True),
    "delete_sessions": RequestBody(DeleteSessionsBody),
    "update_session": RequestBody(UpdateSessionBody),
    "rename_session": RequestBody(RenameSessionBody),
    "hold_session": RequestBody(HoldSessionBody),
    "prune_sessions": RequestBody(PruneBody),
    "create_memory": RequestBody(NewMemoryBody),
    "update_memory": RequestBody(UpdateMemoryBody),
    "delete_memories": RequestBody(DeleteMemoriesBody),
    "erase_user_data": RequestBody(EraseBody),
    "create_service_account": RequestBody(NewAccountBody),
}
"""The bodies by the name of the method of `operations.Operations`."""

Adapt = Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]]
"""Returns the fields of a request from the body and the other parameters."""

ADAPTERS: dict[str, Adapt] = {
    "create_session": _read_component_id,
    "update_session": lambda body, _: {"changes": body},
}
"""The bodies whose fields are not named like those of the request."""


class BodyFields:
    """The parameters of an operation that are fields of its body.

    Args:
        parameters: these parameters.
        adapt: changes the fields first.
    """

    def __init__(self, parameters: Iterable[Parameter], adapt: Adapt | None = None) -> None:
        self._parameters = [
            (parameter.name, parameter.default, _choose_converter(parameter.annotation))
            for parameter in parameters
        ]
        self._adapt = adapt

    def read(self, body: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters; a field that is absent or null has its default.

        Args:
            body: a checked body.
            values: the other parameters of the request.

        Raises:
            ValidationFailed: a field cannot be used with the other parameters.
        """
        if self._adapt is not None:
            body = self._adapt(body, values)
        return {
            name: default if (value := body.get(name)) is None else convert(value)
            for name, default, convert in self._parameters
        }


def _choose_converter(annotation: Any) -> Callable[[Any], Any]:
    value_type = compile_type(annotation)
    if value_type.kind is not tuple:
        return lambda value: value
    if value_type.item.kind is Grant:
        return lambda value: tuple(Grant(**grant) for grant in value)
    return tuple


def build_run_request(body: Mapping[str, Any], idempotency_key: str | None) -> RunRequest:
    """Build the request of a run from its body, a checked `RunBody`."""
    names = RunRequest.__dataclass_fields__.keys() & body.keys()
    return RunRequest(**{name: body[name] for name in names}, idempotency_key=idempotency_key)


R = TypeVar("R", RetryRequest, ForkRequest)


def build_repeat_request(kind: type[R], body: Mapping[str, Any], key: str | None) -> R:
    """Build the request that repeats a run from its body, a checked `RetryBody` or `ForkBody`."""
    names = kind.__dataclass_fields__.keys() & body.keys()
    return kind(**{name: body[name] for name in names}, idempotency_key=key)


def build_continue_request(body: Mapping[str, Any], idempotency_key: str | None) -> ContinueRequest:
    """Build the request that continues a run from its body, a checked `ContinueBody`."""
    return ContinueRequest(
        decisions=tuple(RunDecision(**decision) for decision in body.get("decisions") or ()),
        background=body.get("background", False),
        dependencies=body.get("dependencies"),
        idempotency_key=idempotency_key,
    )
