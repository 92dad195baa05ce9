"""The gate of agno's tool calls: calls that its library is about to make, and does not.

Its events tell when a call begins, but a member works on while its events wait to be read, and its
hooks belong to the agents. So the methods with which the library calls a model and a tool are
replaced. Only the runs of this server have a gate.
"""

from __future__ import annotations

import functools
import threading
from contextvars import ContextVar
from typing import Any

from agno.models.base import Model
from agno.tools.function import FunctionCall, FunctionExecutionResult

from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import DecidedCalls
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls

_current: ContextVar[CallGate | None] = ContextVar("agno_gate", default=None)
"""The gate of the run to which a task belongs."""


class CallGate:
    """Counts the calls of a run and of its members, and refuses repetitions.

    Synchronous tools are called in threads, so each method may be called in any thread.

    Args:
        run: the run, with the calls of earlier legs.
        decided: the calls that a person has decided about: they are made.
    """

    def __init__(self, run: HostedRun, decided: DecidedCalls) -> None:
        self._run = run
        self._limits = run.repeats.limits
        self._is_active = run.repeats.limits.is_active
        self._decided = decided
        # By the id of the run of agno.
        self._repeats = {run.context.run_id: run.repeats}
        self._lock = threading.Lock()

    def use(self) -> None:
        """Let the calls of the present context, and of the tasks that it starts, pass this gate."""
        _current.set(self)

    def adopt(self, run_id: str, member: HostedRun) -> None:
        """Share the calls of a run of agno with its report, which may begin after its first call.

        Args:
            run_id: its id in agno.
        """
        with self._lock:
            member.repeats = self._repeats.setdefault(run_id, member.repeats)

    def begin_answer(self, run_id: str) -> None:
        """Note that the model of a run of agno is called."""
        if self._is_active:
            with self._lock:
                self._find(run_id).begin_answer()

    def refuse(self, call: FunctionCall) -> str | None:
        """Count a call that is about to be made; return its result if it must not be made."""
        context = call.function._run_context
        if not self._is_active or context is None:
            return None

        call_id = call.call_id or ""
        described = self._run.describe_call(call_id, call.function.name, call.arguments or {})
        with self._lock:
            repeats = self._find(context.run_id)
            repeats.add(call_id, described["name"], described["arguments"])
            refusal = repeats.find_refusal(call_id)

        return None if (context.run_id, call_id) in self._decided.approved else refusal

    def check(self) -> None:
        """Check the calls of the run and of its members; see `RepeatedCalls.check`."""
        if self._is_active:
            with self._lock:
                for repeats in self._repeats.values():
                    repeats.check()

    def _find(self, run_id: str) -> RepeatedCalls:
        if run_id not in self._repeats:
            self._repeats[run_id] = RepeatedCalls(self._limits)
        return self._repeats[run_id]


def _refuse(call: FunctionCall) -> FunctionExecutionResult | None:
    """Return the result of a call that must not be made, as a failure; else None."""
    gate = _current.get()
    refusal = None if gate is None else gate.refuse(call)
    if refusal is None:
        return None

    # The library gives this text to the model.
    call.error = refusal
    return FunctionExecutionResult(status="failure", error=refusal)


def _note_request(run_response: Any) -> None:
    gate = _current.get()
    if gate is not None and run_response is not None:
        gate.begin_answer(run_response.run_id)


def _replace_methods() -> None:
    execute: Any = FunctionCall.execute
    aexecute: Any = FunctionCall.aexecute
    stream: Any = Model.aprocess_response_stream
    respond: Any = Model._aprocess_model_response

    @functools.wraps(execute)
    def refuse_or_execute(self: FunctionCall) -> Any:
        refused = _refuse(self)
        return execute(self) if refused is None else refused

    @functools.wraps(aexecute)
    async def refuse_or_aexecute(self: FunctionCall) -> Any:
        refused = _refuse(self)
        return await aexecute(self) if refused is None else refused

    # No generator around that of the library: each token would pass through it.
    @functools.wraps(stream)
    def noted_stream(self: Model, *args: Any, **options: Any) -> Any:
        _note_request(options.get("run_response"))
        return stream(self, *args, **options)

    @functools.wraps(respond)
    async def noted_response(self: Model, *args: Any, **options: Any) -> Any:
        _note_request(options.get("run_response"))
        return await respond(self, *args, **options)

    setattr(FunctionCall, "execute", refuse_or_execute)  # noqa: B010
    setattr(FunctionCall, "aexecute", refuse_or_aexecute)  # noqa: B010
    setattr(Model, "aprocess_response_stream", noted_stream)  # noqa: B010
    setattr(Model, "_aprocess_model_response", noted_response)  # noqa: B010


_replace_methods()
