"""The calls of models and tools of agno, as they pass the gate of the run (`RepeatGate`).

Its events tell when a call begins, but a member works on while its events wait to be read, and its
hooks belong to the agents. So the methods with which the library calls a model and a tool are
replaced. Only the runs of this server have a gate.
"""

from __future__ import annotations

import functools
from contextvars import ContextVar
from typing import Any

from agno.models.base import Model
from agno.tools.function import FunctionCall, FunctionExecutionResult

from agentctl.runtime.runners.repeat_gate import RepeatGate

_current: ContextVar[RepeatGate | None] = ContextVar("agno_gate", default=None)
"""The gate of the run to which a task belongs."""


def use(gate: RepeatGate) -> None:
    """Let the calls of the present context, and of the tasks that it starts, pass a gate.

    Its keys are the ids of the runs of agno.
    """
    _current.set(gate)


def _refuse(call: FunctionCall) -> FunctionExecutionResult | None:
    """Return the result of a call that must not be made, as a failure; else None."""
    gate = _current.get()
    context = call.function._run_context
    if gate is None or context is None:
        return None

    refusal = gate.refuse_next(
        context.run_id, call.call_id or "", call.function.name, call.arguments or {}
    )
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
