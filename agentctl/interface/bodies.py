"""Request bodies as types of pydantic, for the checks of their fields and for the OpenAPI document.

pydantic checks the types. The bounds in the fields are shown in the document only: they are the
constants that `agentctl.service` enforces, so that local commands have the same messages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Required

from typing_extensions import TypedDict

from agentctl.interface.requests import (
    BEFORE_FIRST_EVENT,
    MAXIMUM_CLIENT_TOOLS,
    MAXIMUM_DELETED_SESSIONS,
    MAXIMUM_EVENT_NUMBER,
    MAXIMUM_REASON_LENGTH,
    MAXIMUM_RUN_FILES,
    MAXIMUM_USER_ID_LENGTH,
)
from agentctl.interface.requests.administration import (
    DEFAULT_ACCOUNT_DAYS,
    MAXIMUM_ACCOUNT_DAYS,
    MAXIMUM_IDLE_DAYS,
    MAXIMUM_PRUNED,
    Vacuum,
)
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.interface.requests.halts import MAXIMUM_SCOPE_ID_LENGTH
from agentctl.interface.requests.memories import MAXIMUM_MEMORIES_DELETED
from agentctl.records.accounts import ACCOUNT_NAME
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, Verb
from agentctl.records.authorization import MAXIMUM_SCOPES
from agentctl.records.halts import HaltScope
from agentctl.records.memories import MAXIMUM_MEMORY_LENGTH, MAXIMUM_TOPIC_LENGTH, MAXIMUM_TOPICS
from agentctl.records.run_messages import LateMessage
from agentctl.records.text import SESSION_ID

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

Object = dict[str, Any] | None
"""A field that is a JSON object, or null."""


BODY_CONFIG: dict[str, Any] = {"strict": True, "extra": "forbid", "hide_input_in_errors": True}
"""The rules of all bodies: no conversion, no unknown field, and no value in an error."""


class BodyRecord(TypedDict):
    """The base of bodies, and of the objects in them."""

    __pydantic_config__ = BODY_CONFIG  # type: ignore[misc]  # declared so for pydantic


_KEYWORDS = {"ge": "minimum", "le": "maximum", "pattern": "pattern"}
_LENGTHS = {
    "string": {"min_length": "minLength", "max_length": "maxLength"},
    "array": {"min_length": "minItems", "max_length": "maxItems"},
}


@dataclass(frozen=True, slots=True)
class Field:
    """The description and the bounds of a field in the OpenAPI document; named as by pydantic."""

    description: str | None = None
    ge: int | None = None
    le: int | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema of the annotated type; the check of a list ends at its first error.

        pydantic would collect an error for each of 65,000 wrong elements, for a third of a second.
        """
        schema = handler(source)
        value: Any = schema["schema"] if schema["type"] == "nullable" else schema
        if value["type"] in ("list", "tuple"):
            value["fail_fast"] = True
        return schema

    def __get_pydantic_json_schema__(
        self, core_schema: Any, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Return the JSON Schema of the annotated type, with the description and the bounds."""
        schema = handler(core_schema)
        # The bounds are those of the value, if it may also be null.
        value = next(iter(schema.get("anyOf", ())), schema)
        keywords = _KEYWORDS | _LENGTHS.get(value.get("type", ""), {})
        for name, keyword in keywords.items():
            bound = getattr(self, name)
            if bound is not None:
                value[keyword] = bound
        if self.description is not None:
            schema["description"] = self.description
        return schema


class Lenient:
    """The mark of a field whose value pydantic may convert."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the schema of the annotated type without the strict check of bodies."""
        return {**handler(source), "strict": False}


_AS_TEXT = "in a form a JSON object as text"

# Not the keyword `default`: generators of clients would require a field that has one.
_STREAM = "Respond with server-sent events, the default"
_BACKGROUND = "Continue when the client disconnects; false by default"

Confirm = Annotated[
    str | None, Field("`confirm` of the plan that a 409 has shown; required to repeat effects")
]

Topic = Annotated[str, Field(min_length=1, max_length=MAXIMUM_TOPIC_LENGTH, pattern="^[^,]+$")]
MemoryText = Annotated[
    str, Field("Text of the memory", min_length=1, max_length=MAXIMUM_MEMORY_LENGTH)
]


class ClientToolBody(BodyRecord, total=False):
    """A tool that the caller of a run executes."""

    name: Required[Annotated[str, Field("Name: letters, digits, `_` and `-`")]]
    description: Annotated[str | None, Field("Description for the model")]
    parameters: Annotated[Object, Field("JSON Schema of the arguments, an object; none without it")]


_RUN_CONFIG: dict[str, Any] = {
    **BODY_CONFIG,
    # Not `anyOf` itself: generators of clients would take it for several types of body.
    "json_schema_extra": {
        "if": {"not": {"anyOf": [{"required": ["message"]}, {"required": ["files"]}]}},
        "then": {"required": ["input"]},
    },
}


class RunBody(BodyRecord, total=False):
    """A run to start."""

    __pydantic_config__ = _RUN_CONFIG  # type: ignore[misc]  # declared so for pydantic

    message: Annotated[
        str, Field("Message to send; required without `input` and `files`", min_length=1)
    ]
    input: Annotated[Object, Field(f"Input of an agent in code, stored with the run; {_AS_TEXT}")]
    stream: Annotated[bool, Field(_STREAM)]
    background: Annotated[bool, Field(_BACKGROUND)]
    session_id: Annotated[
        str | None, Field("Session of the run; by default a new one", pattern=SESSION_ID)
    ]
    user_id: Annotated[str | None, Field("Owner of the run; administrators only", min_length=1)]
    metadata: Annotated[
        Object, Field(f"Stored with the run and given to the code of tools and agents; {_AS_TEXT}")
    ]
    session_state: Annotated[
        Object, Field(f"Replaces these keys of the state of the session; {_AS_TEXT}")
    ]
    dependencies: Annotated[
        Object, Field(f"Given to the code of tools and agents, and not stored; {_AS_TEXT}")
    ]
    output_schema: Annotated[
        Object, Field(f"JSON Schema of an object: the answer must match it; {_AS_TEXT}")
    ]
    client_tools: Annotated[
        list[ClientToolBody] | None,
        Field(
            "Tools that the caller executes: a call of one pauses the run. For JSON bodies",
            max_length=MAXIMUM_CLIENT_TOOLS,
        ),
    ]
    tool_choice: Annotated[
        str | None,
        Field(
            "`required` if the first answer must call a tool, or the name of one of `client_tools`"
        ),
    ]
    files: Annotated[
        # A JSON body has a list, which only a lenient check takes as a tuple.
        Annotated[tuple[str, ...], Lenient()] | None,
        Field("Files of the message; in a form ids with commas", max_length=MAXIMUM_RUN_FILES),
    ]


class ResumeBody(BodyRecord, total=False):
    """The position in the stream of a run; each field can also be a query parameter."""

    last_event_index: Annotated[
        int | None,
        Field(
            "Number of the last received event; without it the whole stream",
            ge=BEFORE_FIRST_EVENT,
            le=MAXIMUM_EVENT_NUMBER,
        ),
    ]
    session_id: Annotated[str | None, Field("Session of the run")]


class DecisionBody(BodyRecord, total=False):
    """A decision about an approval."""

    decision: Required[Annotated[Verb, Field("The decision")]]
    arguments_hash: Annotated[
        str | None,
        Field("`arguments_hash` of the approval as it was shown; required to approve and to retry"),
    ]
    arguments: Annotated[
        Object, Field("Other arguments for an approved call; they match its schema")
    ]
    note: Annotated[
        str | None,
        Field("Note; the model reads the one of a rejection", max_length=MAXIMUM_NOTE_LENGTH),
    ]
    answer: Annotated[Any, Field("Answer to a question, a JSON value that matches its schema")]
    result: Annotated[Any, Field("Result of a call that was made outside the server, a JSON value")]


class RunDecisionBody(DecisionBody, total=False):
    """A decision about an approval of the run; `approval_id` or `tool_call_id` names it."""

    approval_id: Annotated[str | None, Field("Id of the approval")]
    tool_call_id: Annotated[str | None, Field("Id of its tool call")]


class ContinueBody(BodyRecord, total=False):
    """The continuation of a paused run."""

    decisions: Annotated[
        list[RunDecisionBody] | None,
        Field(
            "Decisions about approvals with the policy `user`, all or none",
            max_length=MAXIMUM_DECISIONS,
        ),
    ]
    stream: Annotated[bool, Field(_STREAM)]
    background: Annotated[bool, Field("Respond when the run continues; false by default")]
    dependencies: Annotated[Object, Field("Given to the code of tools and agents, and not stored")]


class MessageBody(BodyRecord, total=False):
    """A message to a run that works."""

    message: Required[Annotated[str, Field("Message of the user", min_length=1)]]
    late: Annotated[
        LateMessage | None,
        Field(
            "If no model call of the run gets the message: `next_run`, the default, makes it the"
            " next run of the session, `refuse` refuses it"
        ),
    ]


class RetryBody(BodyRecord, total=False):
    """The retry of a run that has ended."""

    confirm: Confirm
    stream: Annotated[bool, Field(_STREAM)]
    background: Annotated[bool, Field(_BACKGROUND)]
    output_schema: Annotated[Object, Field("JSON Schema of an object: the answer must match it")]
    dependencies: Annotated[Object, Field("Given to the code of tools and agents, and not stored")]


class ForkBody(RetryBody, total=False):
    """The fork of a run that has ended."""

    at: Required[
        Annotated[int, Field("Number of messages of the run that the new one begins with", ge=0)]
    ]
    message: Annotated[
        str | None, Field("The next message; by default that of the run", min_length=1)
    ]
    agent_id: Annotated[
        str | None, Field("Another agent, which gets the conversation", min_length=1)
    ]
    team_id: Annotated[str | None, Field("Another team, which gets the conversation", min_length=1)]
    session_id: Annotated[
        str | None,
        Field("Session of the run, or a new one, by default a new one", pattern=SESSION_ID),
    ]


class ExplainBody(BodyRecord, total=False):
    """A request to explain."""

    method: Required[Annotated[str, Field("HTTP method")]]
    path: Required[Annotated[str, Field("Path of the request, with or without a query")]]
    token: Annotated[
        str | None,
        Field(
            "Token of the request; by default that of the caller, empty for none. It is not stored."
        ),
    ]


class GrantBody(BodyRecord, total=False):
    """A scope for a service account."""

    scope: Required[Annotated[str, Field("Scope")]]
    effect: Annotated[Literal["allow"], Field("Effect of the grant, `allow` by default")]


class NewAccountBody(BodyRecord, total=False):
    """A service account to create."""

    name: Required[
        Annotated[str, Field("Name, unique among the active accounts", pattern=ACCOUNT_NAME)]
    ]
    scopes: Required[
        Annotated[
            list[GrantBody],
            Field(
                "Scopes; the caller must have each of them", min_length=1, max_length=MAXIMUM_SCOPES
            ),
        ]
    ]
    expires_in_days: Annotated[
        int | None,
        Field(
            f"Days until it expires; {DEFAULT_ACCOUNT_DAYS} by default",
            ge=1,
            le=MAXIMUM_ACCOUNT_DAYS,
        ),
    ]
    never_expires: Annotated[bool, Field("Never expire; not with `expires_in_days`")]
    allow_privileged_scopes: Annotated[
        bool, Field("Required for scopes that write, delete, administer or manage service accounts")
    ]


class NewHaltBody(BodyRecord, total=False):
    """A halt to create."""

    scope: Required[Annotated[HaltScope, Field("Kind of the work to stop")]]
    scope_id: Annotated[
        str | None,
        Field(
            "Id of the agent, team, workflow, model or user, or name of the tool; none for `all`",
            min_length=1,
            max_length=MAXIMUM_SCOPE_ID_LENGTH,
        ),
    ]
    reason: Required[
        Annotated[
            str,
            Field(
                "Reason, shown to everyone whose work it stops",
                min_length=1,
                max_length=MAXIMUM_REASON_LENGTH,
            ),
        ]
    ]
    until: Annotated[
        str | None, Field("Time at which it ends by itself, RFC 3339; by default it does not")
    ]
    stop_running: Annotated[bool, Field("Cancel the runs in its scope")]


class NewMemoryBody(BodyRecord, total=False):
    """A memory to store."""

    memory: Required[MemoryText]
    topics: Annotated[list[Topic] | None, Field("Topics of the memory", max_length=MAXIMUM_TOPICS)]
    user_id: Annotated[str | None, Field("Owner of the memory; administrators only", min_length=1)]
    agent_id: Annotated[str | None, Field("Id of the agent that it is from")]
    team_id: Annotated[str | None, Field("Id of the team that it is from")]


class UpdateMemoryBody(BodyRecord, total=False):
    """New values for a memory. Each given value replaces the whole stored value."""

    memory: MemoryText
    topics: Annotated[list[Topic], Field("Topics of the memory", max_length=MAXIMUM_TOPICS)]


class DeleteMemoriesBody(BodyRecord, total=False):
    """Memories to delete: those with the ids, all or none; or every memory of a user."""

    memory_ids: Annotated[
        list[str] | None,
        Field(
            "Ids of the memories; not with `all`", min_length=1, max_length=MAXIMUM_MEMORIES_DELETED
        ),
    ]
    user_id: Annotated[
        str | None,
        Field("Only memories of this user; required with `all` for administrators", min_length=1),
    ]
    all: Annotated[bool, Field("Delete every memory of the user")]


class EraseBody(BodyRecord, total=False):
    """One part of an erasure."""

    user_id: Required[
        Annotated[str, Field("The user", min_length=1, max_length=MAXIMUM_USER_ID_LENGTH)]
    ]
    cancel: Annotated[bool, Field("Cancel live and paused runs; otherwise they are a conflict")]
    vacuum: Annotated[
        Vacuum, Field("Rewrite a SQLite file at the end; `auto`, the default, unless it is large")
    ]
    cursor: Annotated[str | None, Field("`next_cursor` of the previous part")]


class NewSessionBody(BodyRecord, total=False):
    """A session to create. The id of its component is in the field of its type."""

    session_id: Annotated[
        str | None, Field("Id of the session; by default a new one", pattern=SESSION_ID)
    ]
    session_name: Annotated[str | None, Field("Name of the session")]
    session_state: Annotated[Object, Field("State of the session")]
    metadata: Annotated[Object, Field("Metadata")]
    user_id: Annotated[str | None, Field("Owner of the session; administrators only", min_length=1)]
    agent_id: Annotated[str | None, Field("Id of the agent, for type=agent")]
    team_id: Annotated[str | None, Field("Id of the team, for type=team")]
    workflow_id: Annotated[str | None, Field("Id of the workflow, for type=workflow")]


class UpdateSessionBody(BodyRecord, total=False):
    """New values for a session. Each given value replaces the whole stored value."""

    session_name: Annotated[str, Field("Name of the session")]
    session_state: Annotated[Object, Field("State of the session")]
    metadata: Annotated[Object, Field("Metadata")]


class RenameSessionBody(BodyRecord):
    """A new name for a session."""

    session_name: Annotated[str, Field("Name of the session")]


class DeleteSessionsBody(BodyRecord, total=False):
    """Sessions to delete in one transaction: all or none."""

    session_ids: Required[
        Annotated[
            list[str],
            Field("Ids of the sessions", min_length=1, max_length=MAXIMUM_DELETED_SESSIONS),
        ]
    ]


class HoldSessionBody(BodyRecord):
    """A hold of a session."""

    reason: Annotated[
        str,
        Field("Reason, shown to administrators", min_length=1, max_length=MAXIMUM_REASON_LENGTH),
    ]


class PruneBody(BodyRecord):
    """Sessions to remove if they are still idle."""

    idle_days: Annotated[
        int,
        Field(
            "Only sessions that have not been used for this number of days are removed",
            ge=1,
            le=MAXIMUM_IDLE_DAYS,
        ),
    ]
    session_ids: Annotated[
        list[str], Field("Ids of the sessions", min_length=1, max_length=MAXIMUM_PRUNED)
    ]
