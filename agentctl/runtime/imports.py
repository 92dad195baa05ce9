"""Objects of users' modules, named `package.module:name` (docs/contract.md "Configuration")."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from agentctl.config.extras import build_extra_command, build_install_command

_EXTRAS = {
    "agents": "openai-agents",
    "agno": "agno",
    "google": "adk",
    "google.adk": "adk",
    "langchain_core": "langgraph",
    "langgraph": "langgraph",
    "pydantic_ai": "pydantic-ai",
}
"""The extras of agentctl by the libraries of agents that they install.

An import of `google.adk` where there is no package of Google at all lacks `google`.
"""

_PACKAGES = {
    "PIL": "pillow",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "googleapiclient": "google-api-python-client",
    "serpapi": "google-search-results",
    "sklearn": "scikit-learn",
    "tavily": "tavily-python",
    "yaml": "PyYAML",
}
"""Packages of an index whose modules have another name."""

_OWN_FILES = (__file__, importlib.__file__)


_NEXT_TO_CONFIGURATION = "next to the configuration file"

_INSTALLED = "site-packages"


class UnusableObject(Exception):
    """The reason why a reference does not name a usable object, for one line of an error."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


def load_object(reference: str, folder: Path | None, where: str = _NEXT_TO_CONFIGURATION) -> object:
    """Import a module and return the object that a reference names.

    Args:
        reference: a name of the form `package.module:name`.
        folder: folder of the configuration, searched before `sys.path`; None for `sys.path` only.
        where: the place of the folder, for hints.

    Raises:
        UnusableObject: the module cannot be imported, or does not have the name.
    """
    module_name, colon, name = reference.partition(":")

    if not (colon and module_name and name):
        raise UnusableObject("it does not have the form package.module:function")
    if module_name.endswith(".py"):
        right_name = module_name.removesuffix(".py").replace("/", ".")
        raise UnusableObject(
            f"{module_name} is a file, not a module", f'write it without .py: "{right_name}:{name}"'
        )
    _check_module_name(module_name, folder)

    try:
        with _first_on_path(folder):
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        problem = "its module cannot be imported"
        raise build_failure(problem, module_name, error, folder, where) from error

    value: object = getattr(module, name, None)
    if value is None:
        similar = get_close_matches(name, dir(module), 1)
        hint = f"did you mean {module_name}:{similar[0]}?" if similar else None
        raise UnusableObject(f"the module {module_name} has no {name}", hint)

    return value


def _check_module_name(name: str, folder: Path | None) -> None:
    """Refuse a file of the user with the name of a module of Python.

    Which of the two an import finds depends on whether anything has imported the module of Python
    before, and so on the command.
    """
    top = name.partition(".")[0]
    if folder is None or top not in sys.stdlib_module_names:
        return
    for file in (folder / f"{top}.py", folder / top / "__init__.py"):
        if file.is_file():
            what = f"{top} is a module of Python, which hides {file.relative_to(folder)}"
            raise UnusableObject(what, f"rename it, for example to my_{top}, and name it here")


def build_failure(
    problem: str,
    name: str,
    error: BaseException,
    folder: Path | None,
    where: str = _NEXT_TO_CONFIGURATION,
) -> UnusableObject:
    """Return the problem of user code that raised, with the place of the error and what to do.

    Args:
        problem: what failed: `its module cannot be imported`.
        name: the module that was imported, or that has the function.
        folder: folder of the configuration.
        where: the place of the folder, for hints.
    """
    place = find_place(error, folder)
    text = error.msg if isinstance(error, SyntaxError) and error.msg else str(error)
    reason = f"{type(error).__name__}: {text}".splitlines()[0]
    if place:
        reason = f"{place}: {reason}"

    hint = _build_import_hint(name, error, where) if isinstance(error, ImportError) else None
    if hint is None:
        hint = f"correct {place or f'the module {name}'}"
        if _INSTALLED in Path(place).parts:
            hint = f"install another version of {_find_library(error)}, which raised the error"
        elif isinstance(error, KeyError) and _is_variable(error):
            hint = f"set the environment variable {error.args[0]}, or {hint}"
    return UnusableObject(f"{problem} ({reason})", hint)


def _find_library(error: BaseException) -> str:
    """Return the installed package whose code raised an error; empty for other code."""
    parts = Path(_find_file(error)).parts
    return parts[parts.index(_INSTALLED) + 1].removesuffix(".py") if _INSTALLED in parts else ""


def _is_variable(error: KeyError) -> bool:
    """Return True if the code has read an environment variable that is not set."""
    return _find_file(error) in (os.__file__, "<frozen os>")


def _find_file(error: BaseException) -> str:
    """Return the file whose code raised an error; empty if it is not known."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename if frames else ""


def find_place(error: BaseException, folder: Path | None) -> str:
    """Return the file and the line that raised an error; empty if a module was not found.

    It is the last line of a file below `folder`, and of another one only if there is none: a
    package that fails was imported by the user's code.
    """
    frames = [
        (frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)
    ]

    if isinstance(error, SyntaxError) and error.filename is not None:
        frames.append((error.filename, error.lineno or 0))

    frames = [
        frame for frame in frames if frame[0] not in _OWN_FILES and not frame[0].startswith("<")
    ]

    for filename, line in reversed(frames):
        path = Path(filename)
        if folder is not None and path.is_relative_to(folder) and _INSTALLED not in path.parts:
            return f"{path.relative_to(folder)}, line {line}"
    return f"{frames[-1][0]}, line {frames[-1][1]}" if frames else ""


def _build_import_hint(name: str, error: ImportError, where: str) -> str | None:
    """Return what to do about an import that fails; None if the user's own code is wrong."""
    missing = error.name or ""
    top = missing.partition(".")[0]
    own_package = name.partition(".")[0]

    if not missing and (library := _find_library(error)):
        return f"install what {library} needs: its message names the package"

    if not isinstance(error, ModuleNotFoundError):
        is_installed = _INSTALLED in Path(error.path or "").parts
        return f"install a version of {top} that has this name" if is_installed else None

    library = missing if top == "google" else top
    if library in _EXTRAS and top != own_package:
        return f"install the library: {build_extra_command(_EXTRAS[library])}"

    if f"{name}.".startswith(f"{missing}."):
        place = f"{name}.py" if name == own_package else f"the package {own_package}"
        return f"put {place} {where}, or install it"

    if top == own_package or top in sys.stdlib_module_names:
        return None

    if top != missing:
        return f"install a version of {top} that has {missing}"

    package = _PACKAGES.get(top, top.replace("_", "-"))
    command = build_install_command(package)
    return f"install the package: {command}; or put {top}.py {where}"


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
