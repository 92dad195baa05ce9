"""Reports what an agent of Google ADK does: its answers, tool calls, tokens, members and result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import orjson
from google.adk.flows.llm_flows import functions
from google.adk.plugins.base_plugin import BasePlugin

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_members import LibraryMembers
from agentctl.runtime.runners.library_runner import DecidedCalls, list_causes, to_public_failure
from agentctl.runtime.tracing import Span

CONFIRMATION = functions.REQUEST_CONFIRMATION_FUNCTION_CALL_NAME
CREDENTIAL = functions.REQUEST_EUC_FUNCTION_CALL_NAME
"""Names of the calls with which the library asks its client; no model has requested them."""


class AgentPart:
    """The run, or one execution of another agent: a member.

    Attributes:
        key: the key of the member; None for the run itself.
        is_branch: True if the agent works next to others: its text reaches `shown` as a whole.
        shown: the run that shows the text of this member, too, if any.
        waiting: the ids of calls whose answers come in another leg.
    """

    def __init__(
        self, run: HostedRun, key: str | None = None, shown_run: HostedRun | None = None
    ) -> None:
        self.run = run
        self.key = key
        self.shown = shown_run
        self.is_branch = key is not None and bool(_split_key(key)[1])
        self.waiting: set[str] = set()

        self._span: Span | None = None
        self._is_answering = False
        self._has_text = False

    def start_model_call(self, model: str | None) -> None:
        self._begin_answer()
        self._span = self.run.start_model_call(model)

    def end_model_call(self, usage: Mapping[str, int]) -> None:
        span = self._span
        self._span = None
        if span is not None:
            self.run.end_model_call(span, usage)
        for run in self._list_streamed():
            run.complete_answer()

    def fail_model_call(self) -> None:
        span = self._span
        self._span = None
        if span is not None:
            self.run.fail_model_call(span)

    def add_piece(self, content: Any) -> None:
        """Report the text and the thinking of a piece of an answer."""
        text = read_text(content)
        thinking = read_text(content, is_thought=True)

        if (text or thinking) and self._span is not None:
            self._span.mark_first_token()

        if thinking:
            self.run.add_thinking(thinking)

        if text:
            self._has_text = True
            for run in self._list_streamed():
                run.add_text(text)

    def end_answer(self, content: Any) -> None:
        """Report the end of an answer, and its text unless there were pieces of it."""
        text = read_text(content)
        if (text or read_text(content, is_thought=True)) and not self._has_text:
            if not self._is_answering:
                self._begin_answer()
            self.add_piece(content)
        if text and self.is_branch and self.shown is not None:
            self.shown.begin_answer()
            self.shown.add_text(text)
            self.shown.complete_answer()
        self._is_answering = self._has_text = False

    def _begin_answer(self) -> None:
        self._is_answering = True
        self._has_text = False
        for run in self._list_streamed():
            run.begin_answer()

    def _list_streamed(self) -> Iterator[HostedRun]:
        yield self.run
        if self.shown is not None and not self.is_branch:
            yield self.shown


_BROKEN_ANSWERS = frozenset({"MALFORMED_FUNCTION_CALL", "MAX_TOKENS", "OTHER"})
"""Error codes of answers that the model could not complete; with others it refused the request."""

_current_call: ContextVar[tuple[AgentPart, str, dict[str, Any]] | None]
_current_call = ContextVar("adk_call", default=None)
"""The part that makes the tool call in which a task works, its id and its arguments."""


class AdkReport(BasePlugin):  # type: ignore[misc]
    """Reports one run: a plugin, because agents that are called as tools report to plugins only.

    The library calls it in the order in which things happen: an event that is no piece of text is
    read before the agent continues.

    Args:
        root: the name of the agent that is the run itself.
    """

    def __init__(self, run: HostedRun, root: str, decided: DecidedCalls) -> None:
        super().__init__(name="agentctl")

        self._root = AgentPart(run)
        self._root_name = root
        self._decided = decided
        self._members = LibraryMembers(run)

        self._parts: dict[str, AgentPart] = {}
        self._invocation: str | None = None

        self._model_errors: list[tuple[Exception, AgentPart]] = []
        self._tool_errors: list[tuple[Exception, AgentPart, str]] = []
        self._failures: list[tuple[Exception, Exception]] = []

        self._answer = ""
        self._output: Any = None
        self._error_code: str | None = None
        self._call_ids: set[str] = set()

    def know_calls(self, events: Iterable[Any]) -> None:
        """Take note of the calls of earlier events of the session."""
        for event in events:
            self._call_ids |= {call.id for call in event.get_function_calls() if call.id}

    def to_json(self) -> dict[str, Any]:
        """Return the members for the next leg."""
        shown_keys = [key for key, part in self._parts.items() if part.shown is not None]
        waiting_calls = {key: sorted(part.waiting) for key, part in self._parts.items()}

        return {"members": self._members.to_json(), "shown": shown_keys, "waiting": waiting_calls}

    async def restore(self, checkpoint: Mapping[str, Any]) -> None:
        """Continue with the members of a pause."""
        await self._members.restore(checkpoint["members"])

        for member in self._members.list_open():
            shown_run = self._root.run if member.key in checkpoint["shown"] else None
            part = self._parts[member.key] = AgentPart(member.run, member.key, shown_run)
            part.waiting |= {*checkpoint.get("waiting", {}).get(member.key, ())}

    def take_answers(self, message: Any) -> None:
        """Take note of a message with the answers to calls: these wait no longer."""
        for answer in message.parts or ():
            if answer.function_response is not None:
                for part in self._parts.values():
                    part.waiting.discard(answer.function_response.id)

    async def before_run_callback(self, *, invocation_context: Any) -> None:
        self._invocation = self._invocation or invocation_context.invocation_id

    async def before_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        invocation = callback_context.invocation_id
        if self._is_root(invocation, agent.name):
            return

        key = _join_key(invocation, callback_context.branch, agent.name)
        member = self._members.find(key)
        if member is not None and member.is_open:
            return

        parent = self._find_above(agent, invocation)
        call = _current_call.get()

        if call is not None and parent in (self._root, call[0]):
            parent, call_id, arguments = call
            shown_run = None
            task = _read_task(arguments)
        else:
            call_id = None
            task = read_text(callback_context.user_content)
            is_shown = parent is self._root or parent.shown is not None
            shown_run = self._root.run if is_shown else None

        member_part = self._members.start(key, agent.name, task, parent=parent.key, call_id=call_id)
        self._parts[key] = AgentPart(member_part.run, key, shown_run)

    async def after_agent_callback(self, *, agent: Any, callback_context: Any) -> None:
        task = asyncio.current_task()
        part = self._find(callback_context, agent.name)
        # The library calls it for an agent that is cancelled or waits, too.
        if not self._is_waiting(part) and (task is None or not task.cancelling()):
            self._end_member(part)

    async def on_agent_error_callback(
        self, *, agent: Any, callback_context: Any, error: Exception
    ) -> None:
        part = self._find(callback_context, agent.name)
        failure = self.classify(error)
        if not isinstance(failure, ExecutionError):
            failure = ExecutionError("AGENT_FAILED")
        self._end_member(part, failure)

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        self._find(callback_context).start_model_call(llm_request.model)

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        if not llm_response.partial:
            self._separate_calls(llm_response)
            usage = read_usage(llm_response.usage_metadata)
            self._find(callback_context).end_model_call(usage)

    def _separate_calls(self, llm_response: Any) -> None:
        """Give a call another id if the session has a call with its id.

        Some models repeat their ids. The library finds the confirmation and the result of a call by
        its id: the decision about one call would count for another call.
        """
        for part in (llm_response.content and llm_response.content.parts) or ():
            call = part.function_call
            if call is None or not call.id:
                continue

            given_id = call.id
            number = 1
            while call.id in self._call_ids:
                number += 1
                call.id = f"{given_id}-{number}"

            self._call_ids.add(call.id)

    async def on_model_error_callback(
        self, *, callback_context: Any, llm_request: Any, error: Exception
    ) -> None:
        part = self._find(callback_context)
        part.fail_model_call()
        self._model_errors.append((error, part))

    async def before_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any
    ) -> dict[str, Any] | None:
        """Store that a call begins; return the result of one that is not to be made."""
        call_id = tool_context.function_call_id
        _current_call.set((self._find(tool_context), call_id, tool_args))
        if (settled := self._decided.settled.get(call_id)) is not None:
            text, failed = settled
            return {"error" if failed else "result": text}
        refusal = self._find(tool_context).run.repeats.find_refusal(call_id)
        if refusal is not None and call_id not in self._decided.approved:
            return {"error": refusal}
        await self._decided.begin(call_id, tool_args)
        return None

    async def after_tool_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, result: Any
    ) -> None:
        call_id = tool_context.function_call_id
        is_waiting = call_id in tool_context.actions.requested_tool_confirmations
        # An array or a table of a user has no truth value.
        if not is_waiting and (not tool.is_long_running or result):
            await self._end_call(self._find(tool_context), call_id, result)

    async def on_tool_error_callback(
        self, *, tool: Any, tool_args: dict[str, Any], tool_context: Any, error: BaseException
    ) -> None:
        # The library calls it for a call that is cancelled, too.
        if isinstance(error, Exception):
            call_id = tool_context.function_call_id
            self._tool_errors.append((error, self._find(tool_context), call_id))

    async def on_event_callback(self, *, invocation_context: Any, event: Any) -> None:
        part = self._find(event, event.author)
        if event.partial:
            part.add_piece(event.content)
            return

        if event.invocation_id == self._invocation:
            self._keep_result(event)

        part.end_answer(event.content)
        part.waiting |= event.long_running_tool_ids or set()

        calls = [
            (call.id, call.name, call.args or {})
            for call in event.get_function_calls()
            if call.name not in (CONFIRMATION, CREDENTIAL)
        ]
        part.run.count_calls(calls)
        for call in calls:
            part.run.start_call(*call)

        for response in event.get_function_responses():
            part.waiting.discard(response.id)
            if response.id not in event.actions.requested_tool_confirmations:
                await self._end_call(part, response.id, response.response)

        if event.actions.transfer_to_agent:
            self._end_member(part)

    async def end_open_call(self, call_id: str, result: Any) -> None:
        """Report the result of a call that has waited for it."""
        for part in (self._root, *self._parts.values()):
            await self._end_call(part, call_id, result)

    async def end(self, schema: Any) -> None:
        """Report the result of a run that has ended.

        Args:
            schema: the type of the answer of the agent, or a schema; None for text.
        """
        run = self._root.run
        if self._error_code is not None:
            is_broken = self._error_code in _BROKEN_ANSWERS
            raise ExecutionError("MODEL_ANSWER_INVALID" if is_broken else "MODEL_REJECTED")

        if schema is not None:
            await run.set_output(_read_output(schema, self._answer))
            return

        text = await run.set_result(self._output)
        if text and not run.transcript.content:
            run.begin_answer()
            run.add_text(text)

    def classify(self, error: Exception) -> Exception:
        """Return the public failure for an exception of a tool or model, else the exception."""
        causes = [*list_causes(error)]
        for cause, failure in self._failures:
            if cause in causes:
                # The failure of a member is also the failure of the run.
                return failure

        failed_models = [part for model_error, part in self._model_errors if model_error in causes]
        in_model = bool(failed_models)
        failed = error
        part = self._root
        call_id = None
        for tool_error in self._tool_errors:
            if tool_error[0] in causes and not in_model:
                failed, part, call_id = tool_error

        failure = to_public_failure(failed, part.run, call_id, in_model=in_model)
        if isinstance(failure, ExecutionError):
            for model_part in failed_models:
                model_part.run.explain_failed_call(failure.code)
        self._failures.append((failed, failure))
        return failure

    def _keep_result(self, event: Any) -> None:
        """Keep the result and the state of the session that an event has."""
        actions = event.actions.model_dump(mode="json", include={"state_delta"})
        values = {key: value for key, value in actions["state_delta"].items() if key[:5] != "temp:"}
        self._root.run.context.state.update(values)

        text = read_text(event.content)
        if text or event.output is not None:
            self._answer = text
            self._output = event.output

        self._error_code = event.error_code

    async def _end_call(self, part: AgentPart, call_id: str, result: Any) -> None:
        """Report the end of a call, unless it was reported."""
        if not part.run.transcript.is_open(call_id):
            return

        failed = False
        if isinstance(result, Mapping):
            # The form of the library for a failure, and for a result that is no object.
            failed = bool(result.get("error"))
            result = next(iter(result.values())) if [*result] in (["error"], ["result"]) else result

        text = part.run.format_result(result)

        try:
            part.run.end_call(call_id, text, failed=failed)
        finally:
            # The call was made, also if its result makes the run too large.
            await self._decided.end(call_id, text, failed=failed)

    def _end_member(self, part: AgentPart, failure: ExecutionError | None = None) -> None:
        if part.key is not None:
            self._members.end(part.key, failure)

    def _is_waiting(self, part: AgentPart) -> bool:
        """Return True if a part, or one that it has started, waits for another leg."""
        for waiting_part in self._parts.values():
            key = waiting_part.key if waiting_part.waiting else None
            while key is not None:
                if key == part.key:
                    return True
                member = self._members.find(key)
                key = member.parent if member is not None else None

        return False

    def _is_root(self, invocation: str, agent: str) -> bool:
        return invocation == self._invocation and agent == self._root_name

    def _find(self, context: Any, agent: str | None = None) -> AgentPart:
        """Return the part of an event or of a context."""
        agent = agent or context.agent_name
        if self._is_root(context.invocation_id, agent):
            return self._root
        key = _join_key(context.invocation_id, context.branch, agent)
        return self._parts.get(key) or self._find_agent(context.invocation_id, agent)

    def _find_above(self, agent: Any, invocation: str) -> AgentPart:
        """Return the part of the agent whose list of agents has another agent."""
        above = agent.parent_agent
        return self._root if above is None else self._find_agent(invocation, above.name)

    def _find_agent(self, invocation: str, agent: str) -> AgentPart:
        for member in reversed(self._members.list_open()):
            started, _, name = _split_key(member.key)
            if (started, name) == (invocation, agent):
                return self._parts[member.key]
        return self._root


def _join_key(invocation: str, branch: str | None, agent: str) -> str:
    return "/".join((invocation, branch or "", agent))


def _split_key(key: str) -> tuple[str, str, str]:
    invocation, _, rest = key.partition("/")
    branch, _, agent = rest.rpartition("/")
    return invocation, branch, agent


def _read_task(arguments: Mapping[str, Any]) -> str:
    """Return the task of an agent that is called as a tool."""
    if [*arguments] == ["request"]:
        return str(arguments["request"])
    return orjson.dumps(arguments).decode()


def _read_output(schema: Any, text: str) -> Any:
    """Return the structured output in the text of an answer."""
    from google.genai.types import Schema
    from pydantic import TypeAdapter

    try:
        if isinstance(schema, Mapping | Schema):
            return orjson.loads(text)
        return TypeAdapter(schema).validate_json(text)
    except ValueError as error:
        detail = "The answer of the agent does not match its output_schema"
        raise ExecutionError("OUTPUT_INVALID", detail) from error


def read_text(content: Any, *, is_thought: bool = False) -> str:
    """Return the text of a content, or its thinking."""
    parts: Sequence[Any] = (content and content.parts) or ()
    return "".join(part.text for part in parts if part.text and bool(part.thought) is is_thought)


def read_usage(usage: Any) -> dict[str, int]:
    """Return the counters of a model call; empty if the model has reported none."""
    if usage is None:
        return {}

    input_tokens = (usage.prompt_token_count or 0) + (usage.tool_use_prompt_token_count or 0)
    output_tokens = (usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0)
    # Some models count their thoughts in both.
    if usage.total_token_count is not None:
        output_tokens = usage.total_token_count - input_tokens

    return {
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "total_tokens": input_tokens + output_tokens,
        "cache_read_tokens": usage.cached_content_token_count or 0,
        "reasoning_tokens": usage.thoughts_token_count or 0,
    }
