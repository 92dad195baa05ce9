"""What the instance says of itself."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.components import ModelRecord

__all__ = [
    "ApiRecord",
    "ComponentEntry",
    "ConfigRecord",
    "HealthRecord",
    "InfoRecord",
    "MeRecord",
    "ModelEntry",
    "ReadinessRecord",
    "TeamEntry",
    "WorkflowEntry",
]


class ApiRecord(TypedDict):
    """GET `/`."""

    name: str
    id: str
    version: str


class HealthRecord(TypedDict):
    """GET `/health`: the process lives."""

    status: Literal["ok"]


class ReadinessRecord(TypedDict):
    """GET `/ready`: whether the instance can serve, and which dependency keeps it from it.

    `checks` has `keys` as `stale` while changed key files are refused and the ones before them are
    in force, with which it can serve.
    """

    status: Literal["ready", "unavailable"]
    checks: dict[str, Literal["ok", "failed", "stale"]]


class InfoRecord(TypedDict):
    """GET `/info`: `version` is the package's, `interface_version` the interface's."""

    os_id: str
    name: str
    version: str
    interface_version: str
    agent_count: int
    team_count: int
    workflow_count: int
    auth_mode: Literal["none", "jwt"]


class MeRecord(TypedDict):
    """GET `/auth/me`: who the caller is to this instance, and what it holds.

    `principal` is `anonymous` for a token without `sub`, and when authorization is off.
    """

    principal: str
    scopes: list[str]
    admin: bool
    auth_mode: Literal["none", "jwt"]


class ModelEntry(TypedDict):
    """A configured model."""

    id: str
    provider: str


class ComponentEntry(TypedDict):
    """An agent in the configuration summary."""

    id: str
    name: str
    description: str
    db_id: str
    model: ModelRecord


class TeamEntry(TypedDict):
    """A team in the configuration summary."""

    id: str
    name: str
    description: str
    db_id: str
    mode: str
    model: ModelRecord


class WorkflowEntry(TypedDict):
    """A workflow in the configuration summary."""

    id: str
    name: str
    description: str
    db_id: str


class ConfigRecord(TypedDict):
    """GET `/config`: what is hosted, without secrets, paths or hosts."""

    os_id: str
    name: str
    databases: list[str]
    os_database: str
    available_models: list[str]
    agents: list[ComponentEntry]
    teams: list[TeamEntry]
    workflows: list[WorkflowEntry]
