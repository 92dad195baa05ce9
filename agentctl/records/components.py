"""Agent, team and workflow records (docs/contract.md "Component records")."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict

from agentctl.records.audit import CursorMeta
from agentctl.records.kinds import ComponentKind, OnBusy
from agentctl.records.times import Timestamp


class ModelRecord(TypedDict):
    """A model: `name` is its id in the configuration, `model` the name of the provider."""

    name: str
    model: str
    provider: str


class ToolRecord(TypedDict):
    """A tool: `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: dict[str, Any]


class ComponentMemory(TypedDict):
    """The memory of a team or of a member, with the model that remembers.

    `app_name` is the name of the server and `app_url` its URL; a member has no `app_url`.
    """

    app_name: str
    app_url: NotRequired[str]
    model: ModelRecord


class AgentRecord(TypedDict):
    """A configured agent. `model` is null for an agent in code.

    `input_schema`, of a single agent and not of a list, is the JSON Schema of the object `input`
    of its runs; null if it takes none, or any object. A single agent also has `on_busy`: what
    becomes of a request for a run of a busy session.
    """

    agent_id: str
    id: str
    name: str
    description: str
    model: ModelRecord | None
    tools: list[ToolRecord]
    session_table: str
    db_id: str
    input_schema: NotRequired[dict[str, Any] | None]
    on_busy: NotRequired[OnBusy]


class MemberRecord(TypedDict):
    """An agent as a member of a team. `model` is null for an agent in code."""

    agent_id: str
    name: str
    model: ModelRecord | None
    memory: ComponentMemory | None
    session_table: str
    memory_table: str | None


class TeamRecord(TypedDict):
    """A configured team: metadata, the leader's model and tools, and the member roster.

    `knowledge` is null, because this server has no knowledge bases; other servers may send one.
    `on_busy`, of a single team and not of a list, is what becomes of a request for a run of a busy
    session.
    """

    team_id: str
    id: str
    name: str
    description: str
    mode: str
    model: ModelRecord
    tools: list[ToolRecord]
    members: list[MemberRecord | TeamRecord]
    enable_agentic_context: bool
    knowledge: dict[str, Any] | None
    memory: ComponentMemory | None
    async_mode: bool
    session_table: str
    memory_table: str | None
    db_id: str
    on_busy: NotRequired[OnBusy]


class StepRecord(TypedDict):
    """One step of a workflow: exactly one of `agent_id` and `team_id` is present."""

    name: str
    agent_id: NotRequired[str]
    team_id: NotRequired[str]


class WorkflowRecord(TypedDict):
    """A configured workflow.

    `input_schema` and `on_busy` are the same as for an agent; the schema is the input of its first
    step.
    """

    workflow_id: str
    id: str
    name: str
    description: str
    steps: list[StepRecord]
    db_id: str
    input_schema: NotRequired[dict[str, Any] | None]
    on_busy: NotRequired[OnBusy]


class VersionRecord(TypedDict):
    """A version of a component: the hash of its resolved configuration.

    `configuration` has no secrets. `is_current` is true for the version that this server runs.
    """

    version: str
    first_seen_at: Timestamp
    is_current: bool
    configuration: dict[str, Any]


class VersionPage(TypedDict):
    """A page of the versions of a component, newest first."""

    data: list[VersionRecord]
    meta: CursorMeta


class ChangeRecord(TypedDict):
    """A difference of two configurations: `before` and `after` are null for a missing value."""

    path: str
    before: Any
    after: Any


class VersionDiff(TypedDict):
    """The differences of two versions of a component, by path."""

    before: VersionRecord
    after: VersionRecord
    changes: list[ChangeRecord]


COMPONENT_RECORDS: dict[ComponentKind, Any] = {
    "agent": AgentRecord,
    "team": TeamRecord,
    "workflow": WorkflowRecord,
}
COMPONENT_LISTS: dict[ComponentKind, Any] = {
    "agent": list[AgentRecord],
    "team": list[TeamRecord],
    "workflow": list[WorkflowRecord],
}
"""The types of the documents of components by kind."""
