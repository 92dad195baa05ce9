"""The tool calls of pydantic-ai: pauses, decided calls, and the journal of a durable run.

pydantic-ai ends a run with `DeferredToolRequests` if a call needs an approval or a result from
outside. The next leg continues from its messages, with the results of these calls.

In a durable run (decision 99) an answer of the model with calls is a step, with the
messages of the library that are new, and each executed call is another one. The next process goes
on with these messages: the library executes the calls of the last answer again, and those that have
ended get their stored result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_ai import (
    Agent,
    DeferredToolRequests,
    DeferredToolResults,
    ExternalToolset,
    FunctionToolset,
    ToolApproved,
    ToolDefinition,
    ToolDenied,
)
from pydantic_ai.capabilities import Hooks
from pydantic_ai.exceptions import (
    ApprovalRequired,
    CallDeferred,
    ModelRetry,
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    RetryPromptPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
)
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentctl.records.approvals import ApprovalKind
from agentctl.records.kinds import ApprovalPolicy
from agentctl.runtime.context import admit_tool
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.json_values import NO_JSON_FORM, clean_json_value
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.pauses import (
    ENDED,
    IDEMPOTENT,
    Ask,
    CallOutcome,
    CallPause,
    DecidedCall,
    Journal,
    JournaledCall,
    Paused,
    to_text,
)
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import DecidedCalls, list_causes
from agentctl.runtime.runners.pydantic_ai_fitting import RequestFitter
from agentctl.runtime.tools.call_rules import choose_strictest, find_policy, list_unmatched
from agentctl.runtime.tools.external import read_client_tools
from agentctl.runtime.transcript.transcript import TranscriptMark
from agentctl.work.run_scope import CurrentCall, current_call

DEFERRED = "The call was deferred"

_log = logging.getLogger("agentctl.runtime")

_KINDS: dict[str, ApprovalKind] = {
    "approval": "approval",
    "question": "input",
    "external": "external",
}

_KEPT = "kept"
"""The member of the stored end of a call with what its tool has returned."""

_usage_adapter = TypeAdapter(RunUsage)
_return_adapter = TypeAdapter(ToolReturn[Any])


def allow_deferred_calls(steps: Any) -> None:
    """Let a run of an agent end with `DeferredToolRequests`, as if its author had listed them.

    An `output_type` of the run would do the same, but the library refuses it for agents with output
    validators.

    Args:
        steps: the run of the library, which has not begun.
    """
    schema = copy(steps.ctx.deps.output_schema)
    schema.allows_deferred_tools = True
    steps.ctx.deps.output_schema = schema


def check_patterns(agent: Agent[Any, Any], approve: Mapping[str, ApprovalPolicy]) -> None:
    """Check that each pattern of the key `approve` matches a tool, if all tools are known.

    Raises:
        UnusableObject: a pattern matches no tool.
    """
    if not all(isinstance(toolset, FunctionToolset) for toolset in agent.toolsets):
        return
    names = list_function_tools(agent)
    for pattern in list_unmatched(approve, names):
        raise UnusableObject(
            f'the pattern "{pattern}" in approve matches none of its tools',
            f"correct or remove it; its tools are: {', '.join(names) or 'none'}",
        )


def list_function_tools(agent: Agent[Any, Any]) -> list[str]:
    """Return the names of the tools of an agent that are functions."""
    toolsets = [toolset for toolset in agent.toolsets if isinstance(toolset, FunctionToolset)]
    return [name for toolset in toolsets for name in toolset.tools]


class DeferredCalls:
    """The deferred calls of one leg.

    Args:
        approve: who approves the calls of tools, by names and patterns. If a pattern matches no
            tool of a step, all of its calls wait: a server may have renamed the tool.

    Attributes:
        state: the state of the earlier legs; None in the first one.
        usage: the tokens of the earlier legs, to which this leg adds.
        journal: the steps of a durable run; None for every other run.
    """

    def __init__(self, run: HostedRun, approve: Mapping[str, ApprovalPolicy]) -> None:
        leg = run.environment.leg
        journal = run.environment.journal
        self.state: Mapping[str, Any] | None = None if leg is None else leg.state
        self.usage = RunUsage()

        self._run = run
        self._approve = approve
        self._decisions: dict[str, DecidedCall] = {}
        self._decided = DecidedCalls(run)
        self._failed: tuple[Exception | None, str] = None, ""
        self._client_tools = read_client_tools(run.environment.spec)
        # A later leg begins with the calls of an answer of the leg before.
        self._has_counted = self.state is not None

        self.journal = None if journal is None else StepJournal(run, journal, self.state)

        if self.state is None or leg is None:
            return

        self.usage = _usage_adapter.validate_python(self.state["usage"])

        for call_id, kind in self.state["calls"].items():
            self._decisions[call_id] = leg.require(call_id, kind)

    @property
    def client_toolsets(self) -> list[AbstractToolset[Any]]:
        """The tools of the caller, which the library defers."""
        definitions = [
            ToolDefinition(
                name=tool["name"],
                description=tool["description"],
                parameters_json_schema=tool["parameters"],
            )
            for tool in self._client_tools
        ]
        return [ExternalToolset(definitions, id="client_tools")] if definitions else []

    async def load_messages(self) -> list[ModelMessage]:
        """Return the messages at the pause."""
        assert self.state is not None
        try:
            messages = [
                await self._run.restore_files(message) for message in self.state["messages"]
            ]
            return ModelMessagesTypeAdapter.validate_python(messages)
        except ValidationError as error:
            detail = "The messages of the run cannot be read by this version of pydantic-ai"
            raise ExecutionError("AGENT_FAILED", detail) from error

    def first_message(self, number: int) -> int:
        """Return the number of messages before the run; `number` is that before this leg."""
        return number if self.state is None else int(self.state["first_message"])

    def count_calls(self, response: ModelResponse, steps: Any) -> None:
        """Count the calls of an answer, before they are made; see `HostedRun.count_calls`."""
        if self._has_counted:
            self._has_counted = False
            return
        self._run.count_calls(
            (call.tool_call_id, call.tool_name, parse_arguments(call.args))
            for call in _list_tool_calls(response, steps)
        )

    def build_results(self) -> DeferredToolResults | None:
        """Return what the library needs to continue after a pause; None without a pause."""
        if self.state is None or not self._decisions:
            return None

        results = DeferredToolResults(metadata=dict(self.state["metadata"]))

        for call_id, decision in self._decisions.items():
            if decision.execution in ENDED:
                # Also a call that an earlier leg has made, which was lost afterwards.
                failed = decision.execution == "failed"
                results.calls[call_id] = _to_result(decision.result, failed=failed)
            elif decision.kind == "input" and decision.status == "answered":
                results.calls[call_id] = _to_result(decision.answer)
            elif decision.kind != "approval":
                results.calls[call_id] = ToolFailed(decision.refusal)
            elif not decision.is_approved:
                results.approvals[call_id] = ToolDenied(decision.refusal)
            else:
                self._decided.approved[call_id] = decision
                edited = decision.arguments if decision.is_edited else None
                results.approvals[call_id] = ToolApproved(override_args=edited)

        return results

    def build_pause(
        self,
        requests: DeferredToolRequests,
        messages: Sequence[ModelMessage],
        first: int,
        steps: Any,
    ) -> Paused:
        """Return the pause that asks for the calls.

        Args:
            messages: all messages of the run and of earlier runs.
            first: number of the messages of earlier runs.
        """
        calls = [*requests.approvals, *requests.calls]
        asks = [self._build_approval(requests, call, steps) for call in calls]

        try:
            stored_messages = [*map(self._run.hide_files, _to_jsonable(messages))]
            metadata = TypeAdapter(dict[str, Any]).dump_python(requests.metadata, mode="json")
        except (PydanticSerializationError, UnicodeError) as error:
            detail = "The run cannot wait: its messages have no JSON form"
            raise ExecutionError("STATE_REJECTED", detail) from error

        state = {
            "messages": stored_messages,
            "first_message": first,
            "usage": _usage_adapter.dump_python(steps.usage, mode="json"),
            "metadata": metadata,
            "calls": {ask.tool_call_id: ask.kind for ask in asks},
        }

        return Paused(asks, state)

    def _build_approval(
        self, requests: DeferredToolRequests, call: ToolCallPart, steps: Any
    ) -> Ask:
        kind = _KINDS[requests.kind(call.tool_call_id)]
        arguments = clean_json_value(parse_arguments(call.args))

        tools = steps.ctx.deps.tool_manager
        tool = tools.get_tool_def(call.tool_name)

        question = requests.metadata.get(call.tool_call_id, {}).get("question")
        if question is None and kind == "input":
            question = arguments.get("question")

        return Ask(
            kind=kind,
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            arguments=arguments,
            policy=self._find_policy(call.tool_name, tools) or "user",
            question=question if isinstance(question, str) else None,
            schema=tool.parameters_json_schema if tool is not None and kind == "approval" else None,
        )

    def _find_policy(self, name: str, tools: Any) -> ApprovalPolicy | None:
        if any(tool["name"] == name for tool in self._client_tools):
            return "user"
        unmatched = list_unmatched(self._approve, tools.tools or ())
        return choose_strictest([find_policy(self._approve, name), *unmatched.values()])

    def find_failed(self, error: Exception) -> str | None:
        """Return the call whose tool has raised an exception; None if no tool has."""
        raised, call_id = self._failed
        return call_id if any(raised is cause for cause in list_causes(error)) else None

    @cached_property
    def hooks(self) -> Hooks[Any]:
        """The hooks that store the begin and the end of calls."""
        return Hooks(
            before_model_request=RequestFitter(self._run).fit,
            before_tool_execute=self._begin_call,
            tool_execute=self._execute_call,
        )

    async def _begin_call(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any]
    ) -> dict[str, Any]:
        if self.journal is not None and self.journal.find_result(call) is not None:
            return args
        if self._find_refusal(call) is not None:
            return args
        if not ctx.tool_call_approved and self._find_policy(call.tool_name, ctx.tool_manager):
            raise ApprovalRequired
        await self._decided.begin(call.tool_call_id)
        if self.journal is not None and call.tool_call_id not in self._decided.approved:
            await self.journal.begin_call(call, tool_def)
        return args

    async def _execute_call(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        if self.journal is not None:
            stored_result = self.journal.find_result(call)
            if stored_result is not None:
                files = await self._run.restore_files(stored_result.get(_KEPT, {}))
                return _load_result({**stored_result, **files})

        end = partial(self._end_call, call, tool_def)
        refusal = self._find_refusal(call)
        if refusal is not None:
            await end(CallOutcome(refusal, failed=True))
            raise ToolFailed(refusal)

        environment = self._run.environment
        is_approved = call.tool_call_id in self._decided.approved
        halted_text = await admit_tool(environment, call.tool_name, waits=is_approved)
        if halted_text is not None:
            await end(CallOutcome(halted_text, failed=True, counts_as_failure=False))
            raise ToolFailed(halted_text)

        token = current_call.set(CurrentCall(call.tool_call_id, call.tool_name))
        try:
            result = await handler(args)
        except (ApprovalRequired, CallDeferred):
            await end(CallOutcome(DEFERRED, pause=CallPause([], None)))
            raise
        except ToolRetryError as error:
            text = str(error.tool_retry.content)
            await end(CallOutcome(text, failed=True), {"retry": True})
            raise
        except ToolFailedError as error:
            await end(CallOutcome(read_result(error.tool_failed), failed=True))
            raise
        except Exception as error:
            self._failed = error, call.tool_call_id
            reason = f"The tool {call.tool_name} failed ({type(error).__name__})"
            await end(CallOutcome(reason, failed=True))
            raise
        finally:
            current_call.reset(token)

        if isinstance(result, Iterator):
            # It can be read once: the record, and the model in each of its requests, get its text.
            result = self._run.format_result(result)

        value = result.return_value if isinstance(result, ToolReturn) else result

        more = None
        if self.journal is not None:
            more = {_KEPT: self._run.hide_files(_dump_result(result))}

        await end(CallOutcome(self._run.format_result(value)), more)
        return result

    def _find_refusal(self, call: ToolCallPart) -> str | None:
        """Return the result of a call that must not be made; None if a person has approved it."""
        if call.tool_call_id in self._decided.approved:
            return None
        return self._run.repeats.find_refusal(call.tool_call_id)

    async def _end_call(
        self,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        outcome: CallOutcome,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        if call.tool_call_id in self._decided.approved:
            await self._decided.end(call.tool_call_id, outcome.text, failed=outcome.failed)
        elif self.journal is not None:
            await self.journal.end_call(call, tool_def, outcome, more)


def _list_tool_calls(response: ModelResponse, steps: Any) -> list[ToolCallPart]:
    """Return the calls of an answer that are executed: those of output tools are its result."""
    tools = steps.ctx.deps.tool_manager
    tools_by_call = [(call, tools.get_tool_def(call.tool_name)) for call in response.tool_calls]
    return [call for call, tool in tools_by_call if tool is None or tool.kind != "output"]


def read_result(part: ToolReturnPart | RetryPromptPart) -> str:
    """Return the text that a model gets for a call that has ended.

    The tool has had its effect, so this raises nothing: the library serializes the value of a tool
    here, and any value of a user's class can fail to be.
    """
    try:
        if isinstance(part, ToolReturnPart):
            return part.model_response_str()
        return part.model_response()
    except Exception as error:
        _log.warning("tool %s: no JSON form", part.tool_name, exc_info=error)
        return NO_JSON_FORM


def _to_result(value: Any, *, failed: bool = False) -> ToolReturn[Any] | ToolFailed:
    if failed:
        return ToolFailed(to_text(value))
    return ToolReturn(value)


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
        self._mark = TranscriptMark() if state is None else run.transcript.mark()
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
        """
        messages = steps.all_messages()
        if self._has_answer:
            self._has_answer = False
            self._kept = [*messages]
            return

        calls = _list_tool_calls(response, steps)
        if not calls:
            return

        count = len(self._kept)
        is_longer = all(a is b for a, b in zip(self._kept, messages, strict=False))
        if count > len(messages) or not is_longer:
            # The library, or a processor of the history, has changed earlier messages.
            count = 0

        try:
            new_messages = [*map(self._run.hide_files, _to_jsonable(messages[count:]))]
        except (PydanticSerializationError, UnicodeError) as error:
            detail = "The run cannot be durable: its messages have no JSON form"
            raise ExecutionError("STATE_REJECTED", detail) from error

        self._run.request_calls(
            [(call.tool_call_id, call.tool_name, parse_arguments(call.args)) for call in calls]
        )

        native = {
            "messages": new_messages,
            "replaced": count == 0,
            "first_message": first,
            "usage": _usage_adapter.dump_python(steps.usage, mode="json"),
        }

        transcript = self._run.transcript
        changes = transcript.since(self._mark, results=True)
        self._mark = transcript.mark()
        await self._journal.add_answer({"native": native, "transcript": changes})

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
        outcome: CallOutcome,
        more: Mapping[str, Any] | None,
    ) -> None:
        """Store the end of a call, or that it waits; `more` has the value for the model."""
        await self._journal.end_call(_describe(call, tool_def), outcome, more or {})


def _to_jsonable(messages: Sequence[ModelMessage]) -> list[Any]:
    """Return messages as JSON values."""
    dumped: list[Any] = ModelMessagesTypeAdapter.dump_python([*messages], mode="json")
    return dumped


def _dump_result(result: Any) -> dict[str, Any]:
    """Return the JSON form of what a tool has returned, see `_load_result`; empty if it has none.

    The tool has had its effect, so this raises nothing: its end has to be stored.
    """
    try:
        if isinstance(result, ToolReturn):
            dumped = {"returned": _return_adapter.dump_python(result, mode="json")}
        else:
            dumped = {"value": to_jsonable_python(result, serialize_unknown=True)}

        # The library makes values that the database refuses: integers of any size, and surrogates.
        orjson.dumps(dumped)
    except Exception as error:
        # Any value of a user's class can fail here, and one that contains itself.
        _log.warning("the result of a tool has no JSON form", exc_info=error)
        return {}

    return dumped


def _load_result(dumped: Mapping[str, Any]) -> Any:
    """Return what a tool has returned in an earlier process."""
    if dumped.get("retry"):
        raise ModelRetry(dumped["text"])

    if dumped["failed"]:
        raise ToolFailed(dumped["text"])

    if "returned" in dumped:
        return _return_adapter.validate_python(dumped["returned"])

    return dumped.get("value", dumped["text"])


def _describe(call: ToolCallPart, tool_def: Any) -> JournaledCall:
    arguments = clean_json_value(parse_arguments(call.args))
    idempotent = (tool_def.metadata or {}).get(IDEMPOTENT) is True
    return JournaledCall(call.tool_call_id, call.tool_name, arguments, idempotent)
