"""The runner of an object: the kind of the object decides (docs/agents.md)."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.errors import InvalidConfiguration
from agentctl.records.kinds import ApprovalPolicy
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.imports import UnusableObject, build_failure, load_object
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_runner import LibraryRunner, OwnerTask, RunnerOptions
from agentctl.runtime.runners.runner import FACTORY, Runner

_log = logging.getLogger("agentctl.runtime")


class NoAgentKind(UnusableObject):
    """An object of no known kind. It may still be a context manager of an agent."""


class RunnerKind(NamedTuple):
    """A kind of object that can be an agent."""

    description: str
    """The kind in the error for objects of no kind, such as `an async function`."""

    matches: Callable[[object], bool]
    """Returns True for an object of this kind. It must not import a library: the object exists, so
    its library is in `sys.modules`; `has_base` looks at the names of its types."""

    build: Callable[[Any, RunnerOptions], Runner]
    """Builds the runner of an object; raises UnusableObject."""

    takes: tuple[str, ...] = ()
    """The other keys of an agent in code that have an effect."""


def has_base(target: object, module: str, *names: str) -> bool:
    """Return True if the type of an object, or a base of it, comes from a library.

    Args:
        module: the package of the library.
        names: names of the classes.
    """
    return any(
        base.__name__ in names and f"{base.__module__}.".startswith(f"{module}.")
        for base in type(target).__mro__
    )


def _is_openai_agent(target: object) -> bool:
    """Return True for an agent of openai-agents; a user may have a module `agents`, too."""
    library = sys.modules.get("agents")
    return has_base(target, "agents", "Agent") and hasattr(library, "RunConfig")


def _import_runner(place: str) -> Callable[[Any, RunnerOptions], Runner]:
    """Return the builder of the runners of a library, which is imported when an object needs it.

    Args:
        place: the module in this folder, and the class.
    """

    def build(target: Any, options: RunnerOptions) -> Runner:
        module, _, name = place.partition(":")
        kind = getattr(import_module(f"agentctl.runtime.runners.{module}"), name)
        runner: Runner = kind(target, options)
        return runner

    return build


def _is_factory(target: object) -> bool:
    """Return True for a function without parameters."""
    if not inspect.isroutine(target):
        return False
    try:
        return not inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False


def _build_factory_runner(factory: Any, options: RunnerOptions) -> Runner:
    """Call a factory and build the runner of its result.

    A factory that returns an awaitable or an async context manager is called when the server opens
    the agent, because that needs the event loop.
    """
    if inspect.iscoroutinefunction(factory):
        return _FactoryRunner(factory, options)

    try:
        target = factory()
    except (Exception, SystemExit) as error:
        problem = "the function failed"
        module = factory.__module__ or ""
        raise build_failure(problem, module, error, options.folder) from error

    if inspect.isawaitable(target) or hasattr(target, "__aenter__"):
        try:
            return build_runner(target, options)
        except NoAgentKind:
            if inspect.iscoroutine(target):
                target.close()
            return _FactoryRunner(factory, options)

    return build_runner(target, options)


class _FactoryRunner(LibraryRunner):
    """The runner of an object that an asynchronous factory makes, once in a process: of `made`."""

    kind = FACTORY

    def __init__(self, factory: Callable[[], Any], options: RunnerOptions) -> None:
        self._factory = factory
        self._options = options
        self.made: Runner | None = None
        super().__init__(OwnerTask(self._enter))

    @property
    def native_kinds(self) -> Sequence[str]:
        return (self.kind, FACTORY)

    async def open(self) -> None:
        """Call the factory.

        Raises:
            ExecutionError: the factory failed, or its object is of no kind.
        """
        try:
            await super().open()
        except Exception as error:
            _log.warning("the factory of an agent failed", exc_info=error)
            what = f"made no agent: {error}" if isinstance(error, UnusableObject) else "failed"
            raise ExecutionError("AGENT_FAILED", f"The factory of the agent {what}") from error

    async def run(self, message: str, run: HostedRun) -> None:
        assert self.made is not None
        await self.made.run(message, run)

    @asynccontextmanager
    async def _enter(self) -> AsyncIterator[None]:
        target = self._factory()
        if inspect.isawaitable(target):
            target = await target

        try:
            runner = build_runner(target, self._options)
        except NoAgentKind:
            if not hasattr(target, "__aenter__"):
                raise
            async with target as entered, self._open(build_runner(entered, self._options)):
                yield
            return

        async with self._open(runner):
            yield

    @asynccontextmanager
    async def _open(self, runner: Runner) -> AsyncIterator[None]:
        await runner.open()
        self.made = runner
        self.kind = runner.kind
        self.input_schema = runner.input_schema
        self.message_obstacle = runner.message_obstacle
        try:
            yield
        finally:
            await runner.close()


def _build_function_runner(target: Any, options: RunnerOptions) -> Runner:
    from agentctl.runtime.runners.functions import build_function_runner

    if options.durable and not (
        inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target)
    ):
        problem = "durable has no effect for a function that is not asynchronous"
        raise UnusableObject(problem, "write async def, or remove the key durable")
    return build_function_runner(target)


_OTHER_LIBRARIES = "for agents of other libraries see docs/other-libraries.md"

KINDS: tuple[RunnerKind, ...] = (
    RunnerKind(
        "an Agent of pydantic-ai",
        lambda target: has_base(target, "pydantic_ai", "AbstractAgent"),
        _import_runner("pydantic_ai:PydanticAIRunner"),
        takes=("deps", "approve", "durable", "repeat_calls"),
    ),
    RunnerKind(
        "a graph of LangGraph",
        lambda target: has_base(target, "langgraph", "Pregel", "StateGraph"),
        _import_runner("langgraph:LangGraphRunner"),
        takes=("deps", "durable", "store", "configurable", "repeat_calls"),
    ),
    RunnerKind(
        "an Agent or Team of agno",
        lambda target: has_base(target, "agno", "Agent", "Team"),
        _import_runner("agno:AgnoRunner"),
        takes=("repeat_calls",),
    ),
    RunnerKind(
        "a Workflow of agno",
        lambda target: has_base(target, "agno", "Workflow"),
        _import_runner("agno_workflow:AgnoWorkflowRunner"),
        takes=("repeat_calls",),
    ),
    RunnerKind(
        "an Agent of openai-agents",
        _is_openai_agent,
        _import_runner("openai_agents:OpenAIAgentsRunner"),
        takes=("deps", "repeat_calls"),
    ),
    RunnerKind(
        "an agent, a Workflow or an App of Google ADK",
        lambda target: has_base(target, "google.adk", "BaseNode", "App"),
        _import_runner("adk:AdkRunner"),
        takes=("repeat_calls",),
    ),
    RunnerKind(
        "a function without parameters that returns one of these",
        _is_factory,
        _build_factory_runner,
        takes=("deps", "approve", "durable", "store", "configurable", "repeat_calls"),
    ),
    RunnerKind(
        "a function or an async generator with the parameters (message, context)",
        inspect.isroutine,
        _build_function_runner,
        takes=("durable",),
    ),
)
"""The kinds, in the order in which they are tried."""


def load_runner(
    owner: str,
    reference: str,
    folder: Path | None,
    *,
    deps: str = "",
    approve: Mapping[str, ApprovalPolicy] | None = None,
    durable: bool = False,
    store: str = "user",
    configurable: tuple[str, ...] = (),
    limits_repeats: bool = False,
) -> Runner:
    """Load the object of an agent and build its runner.

    Args:
        owner: name of the component in errors (`agent support`).
        reference: a name of the form `package.module:name`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.
        deps: name of the function that makes the deps of a run; empty for none.
        approve: who approves the calls of tools, by names and patterns.
        durable: True if another process continues with a run whose process has ended.
        store: the items that the store of a run reaches: `user`, `shared` or `off`.
        configurable: the fields of the context of a graph that a request may set.
        limits_repeats: True if calls of tools are refused after a number of repetitions.

    Raises:
        InvalidConfiguration: the object is not usable; one line with the owner and the reference.
    """
    key = f"deps {deps!r}"
    hint = "deps is a function that is called with the RunContext"

    try:
        build_deps: Any = load_object(deps, folder) if deps else None
        if deps and not callable(build_deps):
            raise UnusableObject(f"it is {_describe(build_deps)}, not a function")

        *kinds, last_kind = (kind.description for kind in KINDS)
        key = f"object {reference!r}"
        hint = f"an agent is {'; '.join(kinds)}; or {last_kind}; {_OTHER_LIBRARIES}"

        target = load_object(reference, folder)
        options = RunnerOptions(
            build_deps, approve or {}, durable, folder, store, configurable, limits_repeats
        )
        return build_runner(target, options)
    except UnusableObject as error:
        raise InvalidConfiguration(
            f"The {owner} cannot use the {key}: {error.what}", hint=error.hint or hint
        ) from error.__cause__


def build_runner(target: object, options: RunnerOptions) -> Runner:
    """Build the runner of an object.

    Raises:
        NoAgentKind: the object is of no known kind.
        UnusableObject: the object cannot be used.
    """
    for kind in KINDS:
        if kind.matches(target):
            given_keys = {
                "deps": options.build_deps is not None,
                "approve": bool(options.approve),
                "durable": options.durable,
                "store": options.store != "user",
                "configurable": bool(options.configurable),
                "repeat_calls": options.limits_repeats,
            }

            for key, is_set in given_keys.items():
                if is_set and key not in kind.takes:
                    problem = f"{key} has no effect for {kind.description}"
                    raise UnusableObject(problem, f"remove the key {key}")

            return kind.build(target, options)
    raise NoAgentKind(f"it is {_describe(target)}, which is not an agent", _find_remedy(target))


def _find_remedy(target: object) -> str | None:
    """Return what to do about an object that a function can call or enter, or None."""
    if inspect.isasyncgen(target):
        return "put @contextlib.asynccontextmanager above the function"

    if hasattr(target, "__aenter__"):
        return "name a function without parameters that returns it"

    if has_base(target, "langchain_core", "Runnable"):
        call = "await NAME.ainvoke(message)"
    elif callable(target) and not inspect.isclass(target):
        called_function = (
            target.func if isinstance(target, functools.partial) else type(target).__call__
        )
        call = f"{'await ' * inspect.iscoroutinefunction(called_function)}NAME(message)"
    else:
        return None

    function = f"async def agent(message, context): return {call}"
    return f"call it in a function: {function}; {_OTHER_LIBRARIES}"


def _describe(target: object) -> str:
    if inspect.isclass(target):
        return f"the class {target.__name__}"
    if inspect.ismodule(target):
        return "a module"
    return f"an object of the type {type(target).__name__}"
