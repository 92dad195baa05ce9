"""The models of the configuration and the results of tools for the code of agents (docs/models.md
"Models in code", docs/agents.md "Context window").

This module imports no client of a provider: most runs of agents in code call no configured model.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from agentctl.agents import tool
from agentctl.runtime.context import build_run_context
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.attempts import Attempts, prepare_models

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.models.providers import ModelConnections

current_access: ContextVar[ModelAccess | None] = ContextVar("agentctl_models", default=None)
"""The models for the code of the current run; None outside of runs."""

_configured: ContextVar[Collection[str] | None] = ContextVar("agentctl_configured", default=None)

_NAMED = 20
"""Maximum number of models in an error."""

is_known_call: ContextVar[bool] = ContextVar("agentctl_known_call", default=False)
"""True while the callbacks of LangGraph report a call of a model in the current context."""


class ModelAccess:
    """The models of the configuration for the code of one run. Belongs to one event loop.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.

    Attributes:
        environment: the run.
        library: the kind of the runner, which reports the calls that its library makes; `""` if a
            function or a configured model executes the run.
        open_calls: the calls that the runner knows, by the ids of the objects that make them.
        finish_reason: that of the last answer to a call which the runner reports, as libraries do
            not pass it on; None for none.
        seen_runs: the ids of the runs of agno that the runner sees; None for all.
    """

    def __init__(
        self,
        models: Mapping[str, config.Model],
        connections: ModelConnections,
        environment: RunEnvironment,
        run_bytes: int,
    ) -> None:
        self.run_bytes = run_bytes
        self.loop = asyncio.get_running_loop()
        self.environment = environment
        self.library = ""
        self.open_calls: Counter[int] = Counter()
        self.finish_reason: str | None = None
        self.seen_runs: Collection[str] | None = None
        self._models = models
        self._connections = connections

    def reports(self, library: str) -> bool:
        """Return True if the runner of the run reports the calls that its library makes."""
        return bool(library) and library == self.library

    def check_thread(self) -> None:
        """Raise RuntimeError in the event loop of the server, which would wait for itself."""
        try:
            is_loop = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_loop = False
        if is_loop:
            raise RuntimeError("call the model with await: this call would block the server")

    def prepare(self, model_id: str, settings: Mapping[str, Any] | None) -> Attempts:
        """Return the attempts of a call.

        Raises:
            ExecutionError: there is no such model, or its API key is not set.
        """
        model = self._models.get(model_id)
        if model is None:
            raise ExecutionError(
                "AGENT_FAILED", f"The agent calls the model {model_id}, which is not configured"
            )
        chosen = {name: value for name, value in (settings or {}).items() if value is not None}
        prepared = prepare_models(self._connections.connect(model), chosen)
        environment = self.environment
        environment.transcript.requests.begin(environment.earlier_runs)
        attempts = Attempts(
            environment.spec.run_id, prepared, self._connections.counters, environment.transcript
        )
        attempts.begin_call()
        return attempts


@contextmanager
def checking_models(configured: Collection[str]) -> Iterator[None]:
    """Check the models that code names while its modules are imported and its objects are made.

    Args:
        configured: the ids of the configured models.
    """
    token = _configured.set(configured)
    try:
        yield
    finally:
        _configured.reset(token)


def check_model(model_id: object) -> None:
    """Check that a model is configured, if code is being loaded.

    Raises:
        ValueError: there is no such model; the text names those that exist.
    """
    configured = _configured.get()
    if configured is not None and model_id not in configured:
        names = ", ".join(sorted(configured)[:_NAMED]) or "none"
        raise ValueError(f"the model {model_id} is not configured; [[models]] has: {names}")


def get_access() -> ModelAccess:
    """Return the models for the current code.

    Raises:
        RuntimeError: the code is not called by a run.
    """
    access = current_access.get()
    if access is None:
        raise RuntimeError(
            "a model of the configuration was called outside of a run: start the agent with"
            " agentctl, for example with `agentctl runs start`"
        )
    return access


@tool(idempotent=True)
async def read_tool_result(id: str, offset: int = 0) -> str:
    """Read a part of an earlier tool result that is left out of the conversation.

    Args:
        id: Id of the result, as the line in its place has it.
        offset: First character to read, from 0.
    """
    access = current_access.get()
    if access is None:
        raise RuntimeError("read_tool_result was called outside of a run")
    try:
        return await build_run_context(access.environment).read_tool_result(id, offset)
    except (LookupError, TypeError, ValueError) as error:
        return str(error)
