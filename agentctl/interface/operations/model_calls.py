"""The records of the model calls of runs (docs/contract.md "Model calls")."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.records.times import Timestamp


class ReferenceRecord(TypedDict):
    """A range of stored messages: `end` is the number after the last one."""

    source: Literal["history", "run", "added"]
    first: int
    end: int


class ModelCallRecord(TypedDict):
    """One attempt at a call of a model.

    `id` is that of its span. `model` is the id of the model in the configuration, or the name that
    a library reports. `response_model` and `response_id` are what the provider has reported about
    its answer. `attempt` counts the attempts at this call with this model from 1. `message_count`
    and `characters` are the size of the request. `tools` is a hash of the tools with their schemas.
    `cost` is in US dollars, and null if the price or the use of a cache is not known.
    `omissions` are the parts of the conversation that are left out. `references` are the messages
    of the request in their order, as ranges of the numbers of stored messages: those of the earlier
    runs together (`history`), of the run, and of texts that nothing else stores (`added`). Unknown
    members are null.
    """

    id: str
    model: str | None
    provider: str | None
    requested_model: str | None
    response_model: str | None
    response_id: str | None
    attempt: int
    is_fallback: bool
    status: Literal["completed", "failed", "cancelled"] | None
    error_code: str | None
    finish_reason: str | None
    started_at: Timestamp | None
    first_token_at: Timestamp | None
    finished_at: Timestamp | None
    input_tokens: int | None
    output_tokens: int | None
    cost: float | None
    message_count: int | None
    characters: int | None
    tools: str | None
    omissions: list[dict[str, Any]]
    references: list[ReferenceRecord]


class RunModelCalls(TypedDict):
    """The model calls of a run in their order; `total` counts all of them."""

    run_id: str
    model_calls: list[ModelCallRecord]
    total: int


class SentMessage(TypedDict):
    """A message that a model was sent.

    `source` is `history` for a message of an earlier run of the session, `run` for one of the run,
    and `added` for any other text. `missing` is `deleted` if the run that has the message does not
    exist any more, and `too_large` if the text was not kept; then `content` is null. A message with
    `native` was sent in the form of its provider, with its thinking if it has any.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    tool_name: NotRequired[str]
    source: Literal["history", "run", "added"]
    native: NotRequired[Literal[True]]
    missing: NotRequired[Literal["deleted", "too_large"]]
    truncated: NotRequired[dict[str, int]]


class ModelCallDetail(ModelCallRecord):
    """A model call with the messages that it was sent, in their order.

    `state` is `unknown` if the request was not recorded, `incomplete` if some texts are missing.
    """

    run_id: str
    state: Literal["complete", "incomplete", "unknown"]
    messages: list[SentMessage]
