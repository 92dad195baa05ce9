"""Records of the instance: health, readiness, configuration, caller, and findings of checks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.errors import AgentctlError
from agentctl.records.components import ModelRecord

Verdict = Literal["ok", "note", "wrong"]

WorkerState = Literal["working", "idle", "dead"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. The texts are for people and contain no secret."""

    check: str
    """The subject: `keys`, `database main`."""

    verdict: Verdict
    """`ok`; `note`, which may be intended; or `wrong`, which has to be fixed."""

    what: str

    remedy: str | None = None
    """A command or setting that helps, if there is one."""


def ok(check: str, what: str) -> Finding:
    """Build a finding that needs no action."""
    return Finding(check, "ok", what)


def note(check: str, what: str, remedy: str | None = None) -> Finding:
    """Build a finding that may be intended."""
    return Finding(check, "note", what, remedy)


def wrong(check: str, what: str, remedy: str | None = None) -> Finding:
    """Build a finding that has to be fixed."""
    return Finding(check, "wrong", what, remedy)


def from_failure(check: str, failure: AgentctlError) -> Finding:
    """Build the finding of a check that failed with an error."""
    return Finding(check, "wrong", failure.detail_with_cause, failure.hint)


def from_os_error(check: str, failure: OSError) -> Finding:
    """Build the finding of a file that cannot be used."""
    reason = os.strerror(failure.errno or 0).lower()
    return Finding(check, "wrong", f"{failure.filename}: {reason}")


class ApiRecord(TypedDict):
    """The response of GET `/`."""

    name: str
    id: str
    version: str


class HealthRecord(TypedDict):
    """The response of GET `/health`: the process responds."""

    status: Literal["ok"]


class ReadinessRecord(TypedDict):
    """The response of GET `/ready`: the readiness and the kind of dependency that failed.

    `keys` is `stale` if changed key files are invalid and the last valid keys are in force, and
    `degraded` if entries of a key set are left out because they cannot be used (docs/contract.md
    "Keys"); the instance is ready then. `components` is `degraded` if `serve --skip-broken` has
    left out some.
    """

    status: Literal["ready", "unavailable"]
    checks: dict[str, Literal["ok", "failed", "stale", "degraded"]]


class SignInRecord(TypedDict):
    """The public client for the sign-in of users at a provider, as `agentctl login` needs it.

    `token` is the token of the provider that the server takes.
    """

    issuer: str
    client_id: str
    scopes: list[str]
    token: Literal["access_token", "id_token"]


class InfoRecord(TypedDict):
    """The response of GET `/info`: `version` of the package, `interface_version` of the API.

    `sign_in` is present if the configuration has a provider for the sign-in of users,
    `left_out_count` if `serve --skip-broken` has left out components.
    """

    os_id: str
    name: str
    version: str
    interface_version: str
    agent_count: int
    team_count: int
    workflow_count: int
    auth_mode: Literal["none", "jwt"]
    left_out_count: NotRequired[int]
    sign_in: NotRequired[SignInRecord]


class ScopeOriginRecord(TypedDict):
    """The claim of a JWT that grants a scope, and the role in it; null for a claim of scopes."""

    scope: str
    claim: str
    role: str | None


class MeRecord(TypedDict):
    """The response of GET `/auth/me`: the principal of the caller and its scopes.

    `principal` is `anonymous` for a token without `sub`, and when authorization is off.
    `scope_origins` are the origins of the scopes of a JWT; empty for another credential.
    `operations` are the ids of the operations that the caller may call, for every resource or for
    some, without public ones. `trace_url` is the page about a trace, with `{trace_id}` in place of
    its id; null without one.
    """

    principal: str
    scopes: list[str]
    admin: bool
    auth_mode: Literal["none", "jwt"]
    operations: list[str]
    trace_url: str | None
    scope_origins: list[ScopeOriginRecord]


class ModelEntry(TypedDict):
    """A configured model."""

    id: str
    provider: str


class ComponentEntry(TypedDict):
    """An agent in the configuration summary. `model` is null for an agent in code."""

    id: str
    name: str
    description: str
    db_id: str
    model: ModelRecord | None


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
    """The response of GET `/config`: components and models, without secrets, paths or hosts."""

    os_id: str
    name: str
    databases: list[str]
    os_database: str
    available_models: list[str]
    agents: list[ComponentEntry]
    teams: list[TeamEntry]
    workflows: list[WorkflowEntry]


class WorkerRecord(TypedDict):
    """A process that executes runs, of any server of the deployment.

    `schema_version` is the version that its program expects. `live_runs` are the runs that it
    executes now. A worker is also `working` while the work of an ended run continues. `reason` is
    the evidence that it is dead.
    """

    worker_id: str
    host: str
    pid: int
    schema_version: int | None
    started_at: str
    heartbeat_at: str
    state: WorkerState
    reason: str | None
    live_runs: int


class FindingRecord(TypedDict):
    """A finding of `agentctl doctor`: `note` may be intended, `wrong` has to be fixed."""

    check: str
    verdict: Verdict
    what: str
    remedy: str | None


class DeploymentRecord(TypedDict):
    """The response of GET `/deployment`.

    `version` and `schema_version` belong to the server that answers. `findings` are about the
    workers, and about the databases and free space as this server sees them.
    """

    version: str
    schema_version: int
    workers: list[WorkerRecord]
    findings: list[FindingRecord]
