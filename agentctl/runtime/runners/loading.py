"""The runner of an object: the kind of the object decides (docs/python.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from agentctl.errors import InvalidConfiguration
from agentctl.runtime.imports import UnusableObject, load_object
from agentctl.runtime.runners.base import Runner

__all__ = ["load_runner"]


class RunnerKind(NamedTuple):
    """A kind of object that can be an agent.

    Attributes:
        description: the kind in the error for objects of no kind, such as `an async function`.
        matches: returns True for an object of this kind. It must not import a library: the object
            exists, so its library is in `sys.modules`; `has_base` looks at the names of its types.
        build: builds the runner of an object; raises UnusableObject.
    """

    description: str
    matches: Callable[[object], bool]
    build: Callable[[Any], Runner]


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


def _build_function_runner(target: Any) -> Runner:
    from agentctl.runtime.runners.functions import build_function_runner

    return build_function_runner(target)


KINDS: tuple[RunnerKind, ...] = (
    RunnerKind(
        "a function or an async generator with the parameters (message, context)",
        inspect.isroutine,
        _build_function_runner,
    ),
)
"""The kinds, in the order in which they are tried."""


def load_runner(owner: str, reference: str, folder: Path | None) -> Runner:
    """Load the object of an agent and build its runner.

    Args:
        owner: name of the component in errors (`agent support`).
        reference: a name of the form `package.module:name`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.

    Raises:
        InvalidConfiguration: the object is not usable; one line with the owner and the reference.
    """
    try:
        target = load_object(reference, folder)
        return build_runner(target)
    except UnusableObject as error:
        raise InvalidConfiguration(
            f"The {owner} cannot use the object {reference!r}: {error.what}",
            hint=error.hint or f"an object is {describe_kinds()}",
        ) from error.__cause__


def build_runner(target: object) -> Runner:
    """Build the runner of an object.

    Raises:
        UnusableObject: the object is of no known kind, or cannot be used.
    """
    for kind in KINDS:
        if kind.matches(target):
            return kind.build(target)
    raise UnusableObject(f"it is {_describe(target)}, which is no kind of agent")


def describe_kinds() -> str:
    """Return the kinds for an error."""
    return "; or ".join(kind.description for kind in KINDS)


def _describe(target: object) -> str:
    if inspect.isclass(target):
        return f"the class {target.__name__}"
    if inspect.ismodule(target):
        return "a module"
    return f"an object of the type {type(target).__name__}"
