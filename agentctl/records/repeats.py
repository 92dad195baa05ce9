"""The plan of a run that repeats another one (docs/contract.md "Retry and fork")."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.run_spec import OriginKind

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
