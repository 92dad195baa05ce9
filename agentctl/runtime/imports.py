"""Objects of users' modules, named `package.module:name` (docs/contract.md "Configuration")."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentctl.config.extras import build_extra_command

_EXTRAS = {
    "agents": "openai-agents",
    "agno": "agno",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic-ai",
}
"""The extras of agentctl by the libraries of agents that they install."""


class UnusableObject(Exception):
    """The reason why a reference does not name a usable object, for one line of an error."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def load_object(reference: str, folder: Path | None) -> object:
    """Import a module and return the object that a reference names.

    Args:
        reference: a name of the form `package.module:name`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.

    Raises:
        UnusableObject: the module cannot be imported, or does not have the name.
    """
    module_name, colon, name = reference.partition(":")
    if not (colon and module_name and name):
        raise UnusableObject("it does not have the form package.module:function")
    try:
        with _first_on_path(folder):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        what = f"its module cannot be imported ({reason})"
        raise UnusableObject(what, _missing_module_hint(module_name, error)) from error
    value: object = getattr(module, name, None)
    if value is None:
        raise UnusableObject(f"the module {module_name} has no {name}")
    return value


def _missing_module_hint(name: str, error: BaseException) -> str | None:
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    missing = error.name.partition(".")[0]
    extra = _EXTRAS.get(missing)
    if extra is not None and missing != name.partition(".")[0]:
        return f"install the library: {build_extra_command(extra)}"
    if not f"{name}.".startswith(f"{error.name}."):
        return None
    top = name.partition(".")[0]
    place = f"{name}.py" if name == top else f"the package {top}"
    return f"put {place} next to the configuration file, or install it"


@contextmanager
def _first_on_path(folder: Path | None) -> Iterator[None]:
    """Search `folder` first during the import, and last afterwards.

    It stays at the end of the path for later imports of the tools. There a file next to the
    configuration cannot hide a library that is imported later.
    """
    if folder is None:
        yield
        return
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        importlib.invalidate_caches()
        yield
    finally:
        sys.path.remove(entry)
        if entry not in sys.path:
            sys.path.append(entry)
