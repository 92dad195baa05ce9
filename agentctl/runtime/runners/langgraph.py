"""Compiled graphs of LangGraph (docs/agents.md "LangGraph")."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    ToolMessage,
)
from langgraph.errors import GraphRecursionError
from langgraph.runtime import RunControl

from agentctl.agents import RunContext
from agentctl.event_loop import retrieve_exception, wait_until_done
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.runners.hosted_run import HostedRun, ModelSpan
from agentctl.runtime.runners.library_failures import ToolCalls
from agentctl.runtime.transcript import CANCELLED_RESULT, complete_history
from agentctl.runtime.unstopped import install_executor

_GRACE_SECONDS = 0.03
"""Time that the tasks of a cancelled graph have to end; the engine waits for longer."""


class LangGraphRunner:
    """The runner of a compiled graph whose state has the key `messages`.

    A graph with its own checkpointer gets the new message only; another one gets the messages of
    earlier runs as well. A member's run has neither. The context of a run is the result of the
    configured function `deps`; without one, the `RunContext`.

    Args:
        build_context: function of `deps`, called with the `RunContext`; it may be asynchronous.

    Raises:
        UnusableObject: the state of the graph has no key `messages`, or its context is of a type
            that the server cannot make.
    """

    kind = "langgraph"

    def __init__(self, graph: Any, build_context: Callable[[RunContext], Any] | None) -> None:
        if "messages" not in graph.channels:
            raise UnusableObject(
                "the state of the graph has no key messages",
                "use MessagesState, or call the graph in an async function of your own",
            )
        schema = graph.context_schema
        if build_context is None and schema not in (None, RunContext):
            raise UnusableObject(
                f"the graph needs a context of the type {getattr(schema, '__name__', schema)}",
                'set deps = "module:function": a function that makes it of the RunContext',
            )
        self._build_context = build_context
        self._graph = graph
        self._has_checkpointer = bool(graph.checkpointer)
        self._member_graph = graph.copy({"checkpointer": None})

    async def open(self) -> None:
        install_executor()

    async def close(self) -> None:
        """Do nothing: a graph has nothing to close."""

    async def run(self, message: str, run: HostedRun) -> None:
        """Execute a run in a separate task.

        On a cancel the graph is asked to take no further step, its model calls end at their next
        part, and the task is cancelled. Its tasks that ignore this are reported as unstopped work.
        """
        control, model_calls = RunControl(), _ModelCalls(run)
        work = asyncio.create_task(self._drive(message, run, control, model_calls))
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError:
            control.request_drain("the run was cancelled")
            model_calls.is_cancelled = True
            work.cancel()
            if not await wait_until_done({work}, _GRACE_SECONDS):
                run.add_unstopped(work)
            else:
                retrieve_exception(work)
            raise
        await work

    async def _drive(
        self, message: str, run: HostedRun, control: RunControl, model_calls: _ModelCalls
    ) -> None:
        context = run.context
        # Two agents or two users never share a thread.
        thread_id = f"{context.component_id}:{context.user_id or ''}:{context.session_id}"
        config: dict[str, Any] = {
            "configurable": {"thread_id": thread_id, "run_context": context},
            "callbacks": [model_calls],
        }
        # A member has no earlier runs: its graph stores nothing, so that two members at the same
        # time do not share a thread.
        graph = self._member_graph if run.spec.is_member else self._graph
        if self._has_checkpointer and not run.spec.is_member:
            earlier = await self._prepare_thread(config, run)
        else:
            earlier = to_langchain_messages(run.history)
        runtime_context: Any = context
        if self._build_context is not None:
            runtime_context = self._build_context(context)
            if inspect.isawaitable(runtime_context):
                runtime_context = await runtime_context
        report = _GraphReport(run)
        events = graph.astream(
            {"messages": [*earlier, HumanMessage(message)]},
            config,
            context=runtime_context,
            stream_mode=["messages", "updates", "values"],
            subgraphs=True,
            control=control,
            version="v2",
        )
        try:
            async with aclosing(events):
                async for event in events:
                    report.add(event)
                    await run.take_turn()
        except GraphRecursionError as error:
            raise ExecutionError(
                "AGENT_FAILED", "The graph did not finish within its maximum number of steps"
            ) from error
        except (ExecutionError, asyncio.CancelledError):
            raise
        except Exception as error:
            raise report.calls.classify(error) from error
        await report.end()

    async def _prepare_thread(self, config: dict[str, Any], run: HostedRun) -> list[Any]:
        """Make the stored state of the thread ready for a new message.

        The thread of a session without earlier runs is new. What a deleted session with the same id
        has left there is deleted. The calls that an earlier run left open get a result, because
        models reject a history with an open call.
        """
        state = await self._graph.aget_state(config)
        if state.values and await run.is_first_of_session():
            await self._graph.checkpointer.adelete_thread(config["configurable"]["thread_id"])
            return to_langchain_messages(run.request_history)
        messages = state.values.get("messages", []) if state.values else []
        results = [
            ToolMessage(CANCELLED_RESULT, tool_call_id=call_id, name=name)
            for call_id, name in _find_open_calls(messages).items()
        ]
        return [*results, *to_langchain_messages(run.request_history)]


class _ModelCalls(BaseCallbackHandler):  # type: ignore[misc]
    """Reports the calls of models that the nodes of a graph make, also at the same time.

    Attributes:
        is_cancelled: a call that starts, or receives a part of its answer, is cancelled. A
            cancellation of the task alone can get lost: LangChain waits for each part with
            `asyncio.wait_for`, which drops it in Python 3.11 if the part arrives at that moment
            (https://github.com/python/cpython/issues/81839).
    """

    run_inline = True
    """Call the methods in place, not in a thread."""

    def __init__(self, run: HostedRun) -> None:
        self.is_cancelled = False
        self._run = run
        self._calls: dict[UUID, ModelSpan] = {}

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._check_cancelled()
        name = (more.get("metadata") or {}).get("ls_model_name")
        self._calls[run_id] = self._run.start_model_call(name)

    def on_llm_new_token(self, token: str, *, run_id: UUID, **more: Any) -> None:
        self._check_cancelled()
        if run_id in self._calls:
            self._calls[run_id].mark_first_token()

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            messages = [choice.message for choices in response.generations for choice in choices]
            usages = (message.usage_metadata for message in messages)
            usage = next((usage for usage in usages if usage), None)
            call.end(None if usage is None else extract_usage(usage))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.end(failed=True)

    def _check_cancelled(self) -> None:
        if self.is_cancelled:
            raise asyncio.CancelledError


class _GraphReport:
    """Reports the parts of the stream of a graph.

    Attributes:
        calls: the tool calls so far.
    """

    def __init__(self, run: HostedRun) -> None:
        self.calls = ToolCalls(run)
        self._run = run
        self._answer_id: str | None = None
        self._streamed: set[str] = set()
        self._complete: set[str] = set()
        self._usage: Counter[str] = Counter()
        self._interrupted = False
        self._state: Any = None

    def add(self, event: Mapping[str, Any]) -> None:
        """Report one part: a message or a piece of one, the updates of a node, or the state."""
        kind, data = event["type"], event["data"]
        if kind == "messages":
            self._add_message(data[0])
        elif kind == "updates":
            self._interrupted = self._interrupted or "__interrupt__" in data
            for update in data.values():
                for message in _find_messages(update):
                    self._end_message(message)
        elif not event["ns"]:
            self._state = data

    async def end(self) -> None:
        """Report the end of the graph.

        Raises:
            ExecutionError: the graph waits for input.
        """
        if self._interrupted:
            raise ExecutionError("INTERRUPTED")
        result = self._state.get("structured_response") if isinstance(self._state, dict) else None
        if result is not None:
            await self._run.set_output(result)
            if not self._run.content:
                self._run.add_text(self._run.output_text)

    def _add_message(self, message: Any) -> None:
        if isinstance(message, AIMessage):
            if message.id in self._complete:
                return
            self._run.add_thinking(read_thinking(message))
            if text := read_text(message):
                self._begin(message.id)
                self._run.add_text(text)
        else:
            self._end_message(message)

    def _begin(self, answer_id: str | None) -> None:
        if answer_id is None or answer_id != self._answer_id:
            self._run.begin_answer()
            self._answer_id = answer_id
            self._streamed.add(answer_id or "")

    def _end_message(self, message: Any) -> None:
        if isinstance(message, ToolMessage):
            failed = message.status == "error"
            text = f"The tool {message.name} failed" if failed else read_text(message)
            self.calls.end(message.tool_call_id, text, failed=failed)
        elif isinstance(message, AIMessage) and not isinstance(message, AIMessageChunk):
            if message.id in self._complete:
                return
            if message.id is not None:
                self._complete.add(message.id)
            if message.id not in self._streamed and (text := read_text(message)):
                self._begin(message.id)
                self._run.add_text(text)
            if message.usage_metadata is not None:
                self._usage.update(extract_usage(message.usage_metadata))
                self._run.set_usage(self._usage)
            for call in message.tool_calls:
                self.calls.start(call["id"] or "", call["name"], call["args"])


def to_langchain_messages(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """Convert neutral messages of earlier runs."""
    converted: list[Any] = []
    for message in complete_history(messages):
        content = message["content"]
        if message["role"] == "user":
            converted.append(HumanMessage(content))
        elif message["role"] == "tool":
            converted.append(
                ToolMessage(
                    content, tool_call_id=message["tool_call_id"], name=message["tool_name"]
                )
            )
        else:
            calls = [
                {"id": call["id"], "name": call["name"], "args": call["arguments"]}
                for call in message.get("tool_calls", ())
            ]
            converted.append(AIMessage(content, tool_calls=calls))
    return converted


def read_text(message: Any) -> str:
    """Return the text of a message, whose content is a string or a list of blocks."""
    if isinstance(message.content, str):
        return message.content
    return "".join(
        block if isinstance(block, str) else str(block.get("text", ""))
        for block in message.content
        if isinstance(block, str) or block.get("type") == "text"
    )


def read_thinking(message: Any) -> str:
    """Return the thinking in a message, in the forms of the providers."""
    reasoning = message.additional_kwargs.get("reasoning_content")
    pieces = [reasoning] if isinstance(reasoning, str) else []
    for block in message.content if isinstance(message.content, list) else ():
        if isinstance(block, dict) and block.get("type") in ("thinking", "reasoning"):
            piece = block.get("thinking") or block.get("reasoning")
            pieces += [piece] if isinstance(piece, str) else []
    return "".join(pieces)


def extract_usage(usage: Mapping[str, Any]) -> dict[str, int]:
    """Return the nine counters of the `usage_metadata` of a message."""
    prompt, answer = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    audio_in, audio_out = prompt.get("audio") or 0, answer.get("audio") or 0
    return {
        "input_tokens": usage["input_tokens"],
        "output_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "audio_input_tokens": audio_in,
        "audio_output_tokens": audio_out,
        "audio_total_tokens": audio_in + audio_out,
        "cache_read_tokens": prompt.get("cache_read") or 0,
        "cache_write_tokens": prompt.get("cache_creation") or 0,
        "reasoning_tokens": answer.get("reasoning") or 0,
    }


def _find_messages(update: object) -> Iterator[Any]:
    values = update.values() if isinstance(update, Mapping) else (update,)
    for value in values:
        if isinstance(value, BaseMessage):
            yield value
        elif isinstance(value, list | tuple):
            yield from (item for item in value if isinstance(item, BaseMessage))


def _find_open_calls(messages: Iterable[Any]) -> dict[str, str]:
    calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, AIMessage):
            calls |= {call["id"] or "": call["name"] for call in message.tool_calls}
        elif isinstance(message, ToolMessage):
            calls.pop(message.tool_call_id, None)
    return calls
