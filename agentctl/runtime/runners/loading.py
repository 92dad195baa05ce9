"""The runner of an object: the kind of the object decides (docs/agents.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.agents import RunContext
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.imports import UnusableObject, load_object
from agentctl.runtime.runners.factory import NoAgentKind, is_factory
from agentctl.runtime.runners.hosted_run import Runner

BuildDeps = Callable[[RunContext], Any]
"""Makes the deps of a run; it may be asynchronous."""


class RunnerKind(NamedTuple):
    """A kind of object that can be an agent.

    Attributes:
        description: the kind in the error for objects of no kind, such as `an async function`.
        matches: returns True for an object of this kind. It must not import a library: the object
            exists, so its library is in `sys.modules`; `has_base` looks at the names of its types.
        build: builds the runner of an object with the function of `deps`, which is None unless
            `takes_deps`; raises UnusableObject.
        takes_deps: True if the key `deps` has an effect.
    """

    description: str
    matches: Callable[[object], bool]
    build: Callable[[Any, BuildDeps | None], Runner]
    takes_deps: bool = False


def has_base(target: object, module: str, *names: str) -> bool:
    """Return True if the type of an object, or a base of it, comes from a library.

    Args:
        module: the top-level package of the library.
        names: names of the classes.
    """
    return any(
        base.__name__ in names and base.__module__.partition(".")[0] == module
        for base in type(target).__mro__
    )


def _build_pydantic_ai_runner(target: Any, build_deps: BuildDeps | None) -> Runner:
    from agentctl.runtime.runners.pydantic_ai import PydanticAIRunner

    return PydanticAIRunner(target, build_deps)


def _build_langgraph_runner(target: Any, build_deps: BuildDeps | None) -> Runner:
    from agentctl.runtime.runners.langgraph import LangGraphRunner

    return LangGraphRunner(target, build_deps)


def _build_agno_runner(target: Any, _: BuildDeps | None) -> Runner:
    from agentctl.runtime.runners.agno import AgnoRunner

    return AgnoRunner(target)


def _build_factory_runner(target: Any, build_deps: BuildDeps | None) -> Runner:
    from agentctl.runtime.runners.factory import build_factory_runner

    return build_factory_runner(target, lambda built: build_runner(built, build_deps))


def _build_function_runner(target: Any, _: BuildDeps | None) -> Runner:
    from agentctl.runtime.runners.functions import build_function_runner

    return build_function_runner(target)


KINDS: tuple[RunnerKind, ...] = (
    RunnerKind(
        "an Agent of pydantic-ai",
        lambda target: has_base(target, "pydantic_ai", "AbstractAgent"),
        _build_pydantic_ai_runner,
        takes_deps=True,
    ),
    RunnerKind(
        "a graph of LangGraph",
        lambda target: has_base(target, "langgraph", "Pregel", "StateGraph"),
        _build_langgraph_runner,
        takes_deps=True,
    ),
    RunnerKind(
        "an Agent or Team of agno",
        lambda target: has_base(target, "agno", "Agent", "Team"),
        _build_agno_runner,
    ),
    RunnerKind(
        "a function without parameters that returns one of these",
        is_factory,
        _build_factory_runner,
        takes_deps=True,
    ),
    RunnerKind(
        "a function or an async generator with the parameters (message, context)",
        inspect.isroutine,
        _build_function_runner,
    ),
)
"""The kinds, in the order in which they are tried."""


def load_runner(owner: str, reference: str, folder: Path | None, deps: str = "") -> Runner:
    """Load the object of an agent and build its runner.

    Args:
        owner: name of the component in errors (`agent support`).
        reference: a name of the form `package.module:name`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.
        deps: name of the function that makes the deps of a run; empty for none.

    Raises:
        InvalidConfiguration: the object is not usable; one line with the owner and the reference.
    """
    build_deps = _load_deps(owner, deps, folder) if deps else None
    try:
        target = load_object(reference, folder)
        return build_runner(target, build_deps)
    except UnusableObject as error:
        raise InvalidConfiguration(
            f"The {owner} cannot use the object {reference!r}: {error.what}",
            hint=error.hint or f"an object is {describe_kinds()}",
        ) from error.__cause__


def _load_deps(owner: str, reference: str, folder: Path | None) -> BuildDeps:
    """Load the function that makes the deps of a run.

    Raises:
        InvalidConfiguration: there is no such function.
    """
    try:
        function = load_object(reference, folder)
        if not callable(function):
            raise UnusableObject(f"it is {_describe(function)}, not a function")
    except UnusableObject as error:
        raise InvalidConfiguration(
            f"The {owner} cannot use the deps {reference!r}: {error.what}",
            hint=error.hint or "deps is a function that is called with the RunContext",
        ) from error.__cause__
    return function


def build_runner(target: object, build_deps: BuildDeps | None = None) -> Runner:
    """Build the runner of an object.

    Args:
        build_deps: function that makes the deps of a run.

    Raises:
        NoAgentKind: the object is of no known kind.
        UnusableObject: the object cannot be used.
    """
    for kind in KINDS:
        if kind.matches(target):
            if build_deps is not None and not kind.takes_deps:
                raise UnusableObject(
                    f"deps has no effect for {kind.description}", "remove the key deps"
                )
            return kind.build(target, build_deps)
    raise NoAgentKind(f"it is {_describe(target)}, which is no kind of agent")


def describe_kinds() -> str:
    return "; or ".join(kind.description for kind in KINDS)


def _describe(target: object) -> str:
    if inspect.isclass(target):
        return f"the class {target.__name__}"
    if inspect.ismodule(target):
        return "a module"
    return f"an object of the type {type(target).__name__}"
