"""The journal of a durable run of pydantic-ai (docs/decisions/0099).

An answer of the model with calls is a step, with the messages of the library that are new, and each
executed call is another one. The next process goes on with these messages: the library executes the
calls of the last answer again, and those that have ended get their stored result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai import ToolFailed, ToolReturn
from pydantic_ai.exceptions import ModelRetry
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse, ToolCallPart
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.journal import IDEMPOTENT, Journal, JournaledCall
from agentctl.runtime.json_values import clean_json_value
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.pauses import CallOutcome, CallPause
from agentctl.runtime.runners.hosted_run import HostedRun

usage_adapter = TypeAdapter(RunUsage)

_return_adapter = TypeAdapter(ToolReturn[Any])


class StepJournal:
    """The steps of one leg of a durable run.

    Args:
        state: the state of the earlier legs; None in the first one.
    """

    def __init__(self, run: HostedRun, journal: Journal, state: Mapping[str, Any] | None) -> None:
        self._run = run
        self._journal = journal
        self._known: Mapping[str, Mapping[str, Any]] = (state or {}).get("known", {})
        self._kept: list[ModelMessage] = []
        # A later leg begins with the calls of an answer that is stored.
        self._has_answer = state is not None
        if state is not None and not state.get("announces", True):
            run.silent_calls = frozenset(self._known)

    @property
    def is_parking(self) -> bool:
        """True once the run is to be handed over before its next step."""
        return self._journal.is_parking

    async def add_answer(self, response: ModelResponse, first: int, steps: Any) -> None:
        """Store an answer of the model, unless it has no calls that are executed or is stored.

        Args:
            first: number of the messages of earlier runs.
            steps: the run of the library.

        Raises:
            ExecutionError: the messages have no JSON form.
        """
        tools, messages = steps.ctx.deps.tool_manager, steps.all_messages()
        if self._has_answer:
            self._has_answer, self._kept = False, [*messages]
            return

        calls = [call for call in response.tool_calls if not _is_output(tools, call)]
        if not calls:
            return
        count = len(self._kept)
        is_longer = all(a is b for a, b in zip(self._kept, messages, strict=False))
        if count > len(messages) or not is_longer:
            # The library, or a processor of the history, has changed earlier messages.
            count = 0

        try:
            added = to_jsonable(messages[count:])
        except (PydanticSerializationError, UnicodeError) as error:
            detail = "The run cannot be durable: its messages have no JSON form"
            raise ExecutionError("STATE_REJECTED", detail) from error

        self._run.request_calls(
            [(call.tool_call_id, call.tool_name, parse_arguments(call.args)) for call in calls]
        )
        native = {
            "messages": added,
            "replaced": count == 0,
            "first_message": first,
            "usage": usage_adapter.dump_python(steps.usage, mode="json"),
        }
        await self._journal.add_answer({"native": native, "transcript": self._run.take_added()})
        self._kept = [*messages]

    def find_result(self, call: ToolCallPart) -> Mapping[str, Any] | None:
        """Return what an earlier process has stored for a call; None if it has to be made."""
        return self._known.get(call.tool_call_id)

    async def begin_call(self, call: ToolCallPart, tool_def: Any) -> None:
        """Store that a call begins."""
        await self._journal.begin_call(_describe(call, tool_def), {})

    async def end_call(
        self,
        call: ToolCallPart,
        tool_def: Any,
        text: str,
        *,
        failed: bool = False,
        waits: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Store the end of a call.

        Args:
            waits: True if it waits for a person instead.
            more: the value for the model.
        """
        outcome = CallOutcome(text, failed=failed, pause=CallPause([], None) if waits else None)
        await self._journal.end_call(_describe(call, tool_def), outcome, more or {})


def to_jsonable(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages as JSON values.

    Raises:
        PydanticSerializationError: a value has no JSON form.
    """
    stored: list[Any] = ModelMessagesTypeAdapter.dump_python([*messages], mode="json")
    return stored


def dump_result(result: Any) -> dict[str, Any]:
    """Return the JSON form of what a tool has returned, see `load_result`."""
    try:
        if isinstance(result, ToolReturn):
            return {"returned": _return_adapter.dump_python(result, mode="json")}
        return {"value": to_jsonable_python(result, serialize_unknown=True)}
    except (PydanticSerializationError, UnicodeError):
        return {}


def load_result(stored: Mapping[str, Any]) -> Any:
    """Return what a tool has returned in an earlier process.

    Raises:
        ToolFailed, ModelRetry: it has failed.
    """
    if stored.get("retry"):
        raise ModelRetry(stored["text"])
    if stored["failed"]:
        raise ToolFailed(stored["text"])
    if "returned" in stored:
        return _return_adapter.validate_python(stored["returned"])
    return stored.get("value", stored["text"])


def _describe(call: ToolCallPart, tool_def: Any) -> JournaledCall:
    arguments = clean_json_value(parse_arguments(call.args))
    idempotent = (tool_def.metadata or {}).get(IDEMPOTENT) is True
    return JournaledCall(call.tool_call_id, call.tool_name, arguments, idempotent)


def _is_output(tools: Any, call: ToolCallPart) -> bool:
    definition = tools.get_tool_def(call.tool_name)
    return definition is not None and definition.kind == "output"
