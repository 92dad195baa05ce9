"""Deferred tool calls of pydantic-ai: pauses, and the calls that were decided about.

pydantic-ai ends a run with `DeferredToolRequests` if a call needs an approval or a result from
outside. The next leg goes on from its messages, with the results of these calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from typing import Any

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
    ToolFailed,
    ToolFailedError,
    ToolRetryError,
)
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ToolCallPart, ToolReturn
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.usage import RunUsage
from pydantic_core import PydanticSerializationError

from agentctl.records.approvals import ApprovalKind, ApprovalPolicy
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.json_values import NotSerializable, clean_json_value
from agentctl.runtime.models.calls import parse_arguments
from agentctl.runtime.pauses import Ask, Decided, Paused, to_text
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_failures import list_causes
from agentctl.runtime.runners.pydantic_ai_journal import (
    StepJournal,
    dump_result,
    load_result,
    to_jsonable,
    usage_adapter,
)
from agentctl.runtime.tools.call_rules import choose_strictest, find_policy, list_unmatched
from agentctl.runtime.tools.external import read_client_tools
from agentctl.runtime.tools.functions import result_to_text
from agentctl.work.run_scope import CurrentCall, current_call

DEFERRED = "The call was deferred"

_KINDS: dict[str, ApprovalKind] = {
    "approval": "approval",
    "question": "input",
    "external": "external",
}


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
        self.state: Mapping[str, Any] | None = run.leg.state if run.leg is not None else None
        self.usage = RunUsage()
        self._run = run
        self._approve = approve
        self._decisions: dict[str, Decided] = {}
        self._begun: set[str] = set()
        self._failed: tuple[Exception | None, str] = None, ""
        self._client_tools = read_client_tools(run.spec)
        self.journal: StepJournal | None = None
        if run.journal is not None:
            self.journal = StepJournal(run, run.journal, self.state)
        if self.state is None or run.leg is None:
            return
        self.usage = usage_adapter.validate_python(self.state["usage"])
        for call_id, kind in self.state["calls"].items():
            decision = run.leg.find(call_id, kind)
            if decision is None:
                raise ExecutionError("INTERNAL", "A decision of the run is missing")
            self._decisions[call_id] = decision

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

    def load_messages(self) -> list[ModelMessage]:
        """Return the messages at the pause.

        Raises:
            ExecutionError: this version of the library cannot read them.
        """
        assert self.state is not None
        try:
            return ModelMessagesTypeAdapter.validate_python(self.state["messages"])
        except ValidationError as error:
            detail = "The messages of the run cannot be read by this version of pydantic-ai"
            raise ExecutionError("AGENT_FAILED", detail) from error

    def first_message(self, number: int) -> int:
        """Return the number of messages before the run; `number` is that before this leg."""
        return number if self.state is None else int(self.state["first_message"])

    def build_results(self) -> DeferredToolResults | None:
        """Return what the library needs to go on after a pause; None without one."""
        if self.state is None or not self._decisions:
            return None
        results = DeferredToolResults(metadata=dict(self.state["metadata"]))
        for call_id, decision in self._decisions.items():
            if decision.execution in ("done", "failed"):
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
            messages: all messages of the run, with those of earlier runs.
            first: number of the messages of earlier runs.
            steps: the run of the library.

        Raises:
            ExecutionError: the messages have no JSON form.
        """
        asks = [self._build_approval(requests, call, steps) for call in _list_calls(requests)]
        try:
            stored = to_jsonable(messages)
            metadata = TypeAdapter(dict[str, Any]).dump_python(requests.metadata, mode="json")
        except (PydanticSerializationError, UnicodeError) as error:
            detail = "The run cannot wait: its messages have no JSON form"
            raise ExecutionError("STATE_REJECTED", detail) from error
        state = {
            "messages": stored,
            "first_message": first,
            "usage": usage_adapter.dump_python(steps.usage, mode="json"),
            "metadata": metadata,
            "calls": {asked.tool_call_id: asked.kind for asked in asks},
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
        return Hooks(before_tool_execute=self._begin_call, tool_execute=self._execute_call)

    async def _begin_call(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any]
    ) -> dict[str, Any]:
        decision = self._decisions.get(call.tool_call_id)
        if self.journal is not None and self.journal.find_result(call) is not None:
            return args
        if not ctx.tool_call_approved and self._find_policy(call.tool_name, ctx.tool_manager):
            raise ApprovalRequired
        if decision is None or not ctx.tool_call_approved:
            await self._run.begin_effect()
            if self.journal is not None:
                await self.journal.begin_call(call, tool_def)
        else:
            await self._run.begin_approved(decision.approval_id)
            self._begun.add(decision.approval_id)
        return args

    async def _execute_call(
        self, ctx: Any, *, call: ToolCallPart, tool_def: Any, args: dict[str, Any], handler: Any
    ) -> Any:
        if self.journal is not None and (known := self.journal.find_result(call)) is not None:
            return load_result(known)
        end = partial(self._end_call, call, tool_def)
        token = current_call.set(CurrentCall(call.tool_call_id, call.tool_name))
        try:
            result = await handler(args)
        except (ApprovalRequired, CallDeferred):
            await end(DEFERRED, waits=True)
            raise
        except ToolRetryError as error:
            await end(str(error.tool_retry.content), failed=True, more={"retry": True})
            raise
        except ToolFailedError as error:
            await end(error.tool_failed.model_response_str(), failed=True)
            raise
        except Exception as error:
            self._failed = error, call.tool_call_id
            reason = f"The tool {call.tool_name} failed ({type(error).__name__})"
            await end(reason, failed=True)
            raise
        finally:
            current_call.reset(token)
        value = result.return_value if isinstance(result, ToolReturn) else result
        try:
            text = result_to_text(value, self._run.limits.tool_result_bytes)
        except NotSerializable:
            text = "The result has no JSON form"
        more = dump_result(result) if self.journal is not None else None
        await end(text, more=more)
        return result

    async def _end_call(
        self,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        text: str,
        *,
        failed: bool = False,
        waits: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        decision = self._decisions.get(call.tool_call_id)
        if decision is not None and decision.approval_id in self._begun:
            self._begun.discard(decision.approval_id)
            await self._run.end_approved(decision.approval_id, text, failed=failed)
        elif self.journal is not None:
            await self.journal.end_call(call, tool_def, text, failed=failed, waits=waits, more=more)


def _list_calls(requests: DeferredToolRequests) -> list[ToolCallPart]:
    return [*requests.approvals, *requests.calls]


def _to_result(value: Any, *, failed: bool = False) -> ToolReturn[Any] | ToolFailed:
    if failed:
        return ToolFailed(to_text(value))
    return ToolReturn(value)
