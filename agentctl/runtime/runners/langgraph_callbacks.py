"""Callbacks of LangChain: the calls of models in a graph, and the start of its tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun, ModelSpan
from agentctl.runtime.runners.langgraph_messages import extract_usage, read_text

_HIDDEN_TAG = "nostream"

_PREFIX = "lc_run--"
"""LangChain gives an answer without an id the id of its call with this prefix."""


class ModelCalls(BaseCallbackHandler):  # type: ignore[misc]
    """Reports the calls of models that the nodes of a graph make, also at the same time.

    Args:
        is_public: returns True for the path of a node (`checkpoint_ns`) whose messages are part of
            the state of the root graph.

    Attributes:
        is_cancelled: a call that starts, or receives a part of its answer, is cancelled. A
            cancellation of the task alone can get lost: LangChain waits for each part with
            `asyncio.wait_for`, which drops it in Python 3.11 if the part arrives at that moment
            (https://github.com/python/cpython/issues/81839).
        inner: ids of the answers that are not for the user: of structured output, and of graphs
            that a node calls. Their text is progress.
        ended: ids of the answers that are complete.
        has_usage: True if a call has reported its tokens.
    """

    run_inline = True
    """Call the methods in place, not in a thread."""

    def __init__(self, run: HostedRun, is_public: Callable[[str], bool]) -> None:
        self.is_cancelled = False
        self.inner: set[str] = set()
        self.ended: set[str] = set()
        self.has_usage = False
        self._is_public = is_public
        self._run = run
        self._calls: dict[UUID, ModelSpan] = {}
        self._silent: set[UUID] = set()

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._check_cancelled()
        metadata = more.get("metadata") or {}
        self._calls[run_id] = self._run.start_model_call(metadata.get("ls_model_name"))
        options = (more.get("options"), more.get("invocation_params"))
        structured = any(
            isinstance(option, Mapping) and option.get("ls_structured_output_format")
            for option in options
        )
        if structured or not self._is_public(metadata.get("langgraph_checkpoint_ns") or ""):
            self.inner.add(f"{_PREFIX}{run_id}")
        if _HIDDEN_TAG in (more.get("tags") or ()):
            self._silent.add(run_id)

    def on_llm_new_token(self, token: str, *, run_id: UUID, **more: Any) -> None:
        self._check_cancelled()
        if run_id in self._calls:
            self._calls[run_id].mark_first_token()

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is None:
            return
        messages = [choice.message for choices in response.generations for choice in choices]
        self.ended |= {f"{_PREFIX}{run_id}", *(message.id for message in messages)}
        found = (message.usage_metadata for message in messages)
        usage = next((extract_usage(usage) for usage in found if usage), None)
        call.end(usage)
        if usage is not None:
            self.has_usage = True
            self._run.add_usage(usage)
        if f"{_PREFIX}{run_id}" in self.inner and run_id not in self._silent:
            for text in filter(None, map(read_text, messages)):
                self._run.context.progress(text)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        call = self._calls.pop(run_id, None)
        if call is not None:
            call.end(failed=True)

    def _check_cancelled(self) -> None:
        if self.is_cancelled:
            raise asyncio.CancelledError


class ApprovedCalls(BaseCallbackHandler):  # type: ignore[misc]
    """Stops a tool whose arguments are not those that were approved, before it is executed.

    Args:
        arguments: the approved arguments by the ids of the calls.
    """

    run_inline = True
    raise_error = True

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        self._arguments = arguments

    def on_tool_start(self, serialized: Any, input_str: str, **more: Any) -> None:
        approved = self._arguments.get(more.get("tool_call_id") or "")
        inputs = more.get("inputs")
        if approved is None or not isinstance(inputs, Mapping):
            return
        # Arguments that the graph injects are not part of the inputs.
        if any(name not in approved or approved[name] != inputs[name] for name in inputs):
            raise ExecutionError(
                "AGENT_FAILED",
                f"The tool {serialized['name']} was called with other arguments than the approved"
                " ones: it was not executed",
            )


class Effects(AsyncCallbackHandler):  # type: ignore[misc]
    """Stores that a tool without an approval begins, before it is executed.

    Args:
        approved: ids of the approved calls.
    """

    ignore_chain = ignore_chat_model = ignore_llm = ignore_retriever = True
    raise_error = True

    def __init__(self, run: HostedRun, approved: Mapping[str, Any]) -> None:
        self._run = run
        self._approved = approved
        self._loop = asyncio.get_running_loop()

    async def on_tool_start(self, serialized: Any, input_str: str, **more: Any) -> None:
        if more.get("tool_call_id") in self._approved:
            return
        if asyncio.get_running_loop() is self._loop:
            await self._run.begin_effect()
        else:
            # A synchronous tool in a node that may block the loop of the run: do not wait for it.
            asyncio.run_coroutine_threadsafe(self._run.begin_effect(), self._loop)
