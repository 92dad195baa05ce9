"""Bodies of the operations on runs and on the approvals that they wait for."""

from __future__ import annotations

from typing import Annotated, Any, Required

from typing_extensions import TypedDict

from agentctl.interface.requests import BEFORE_FIRST_EVENT, MAXIMUM_EVENT_NUMBER
from agentctl.interface.requests.approvals import MAXIMUM_DECISIONS
from agentctl.records.approvals import MAXIMUM_NOTE_LENGTH, Verb
from agentctl.records.ids import SESSION_ID
from agentctl.runtime.tools.external import MAXIMUM_TOOLS
from agentctl.server.bodies import Field, Object

_AS_TEXT = "in a form a JSON object as text"

Confirm = Annotated[
    str | None,
    Field(description="`confirm` of the plan that a 409 has shown; required to repeat effects"),
]


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
