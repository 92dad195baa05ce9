"""Contexts: named servers, each with the file of its token.

`contexts.toml` in the user's configuration directory, mode 0600 in a directory of mode 0700:

    current = "demo"

    [contexts.demo]
    url = "http://127.0.0.1:7777"
    token_file = "/home/me/.secrets/demo.token"

The file contains paths of token files, never a token. A token is sent only to the origin of the URL
of its context.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentctl import errors
from agentctl.cli.files import replacing_private_file
from agentctl.records.text import is_component_id, suggest_name

CONTEXT_VARIABLE = "AGENTCTL_CONTEXT"

_LINE_NUMBER = re.compile(r"line (\d+)")


@dataclass(frozen=True, slots=True)
class Context:
    """A named server. `token_file` is absolute, None without a token."""

    name: str
    url: str
    token_file: Path | None = None


@dataclass(slots=True)
class Contexts:
    """All contexts by name, in the order of addition, and the name of the current one."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)


def contexts_path() -> Path:
    """Return the path of `contexts.toml`; it need not exist."""
    from platformdirs import user_config_path

    return user_config_path("agentctl", appauthor=False) / "contexts.toml"


def load_contexts() -> Contexts:
    """Load the contexts, none without a file; InvalidConfiguration if it is damaged."""
    path = contexts_path()
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except UnicodeDecodeError:
        raise _damaged_file(path, "it is not UTF-8 text") from None
    except OSError as error:
        raise _unusable_file(path, error) from None
    return _parse(path, text)


@contextmanager
def updating() -> Iterator[Contexts]:
    """Load the contexts for changes, and write them if the block ends without an exception.

    A lock of the directory excludes other processes. The file is replaced atomically.

    Raises:
        errors.InvalidConfiguration: the file is damaged and stays unchanged, or the
            directory cannot be written.
    """
    import fcntl

    path = contexts_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise _unusable_file(path, error) from None
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        contexts = load_contexts()
        yield contexts
        _replace(path.resolve(), contexts)
    finally:
        os.close(directory)


def resolve_context(name: str | None = None) -> Context | None:
    """Return the context to use: `name`, else AGENTCTL_CONTEXT, else the current one, else None.

    Raises:
        UsageError: AGENTCTL_CONTEXT is empty, or there is no such context.
    """
    contexts = load_contexts()
    if name is None:
        name = os.environ.get(CONTEXT_VARIABLE)
        if name is not None and not name.strip():
            raise errors.build_empty_value_error(CONTEXT_VARIABLE)
    if name is None:
        name = contexts.current
    return None if name is None else find_context(contexts, name)


def find_context(contexts: Contexts, name: str) -> Context:
    """Return the context with this name."""
    if name in contexts.by_name:
        return contexts.by_name[name]

    guess = suggest_name(name, contexts.by_name)
    raise errors.UsageError(
        f"there is no context named {name!r}",
        hint=f"did you mean {guess}?" if guess else "list them with: agentctl context list",
    )


def credential_file(context: Context | None, url: str) -> Path | None:
    """Return the token file of the context if `url` has the origin of the context, else None."""
    if context is None or context.token_file is None:
        return None
    from agentctl.remote.address import parse_address

    same = parse_address(context.url).origin == parse_address(url).origin
    return context.token_file if same else None


def check_name(name: str) -> None:
    """Raise UsageError for the name of a new context that is no id (docs/contract.md "Records")."""
    if not is_component_id(name):
        raise errors.UsageError(
            f"{name!r} is not a valid context name",
            hint="use up to 64 letters, digits, dots, dashes and underscores",
        )


def _parse(path: Path, text: str) -> Contexts:
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        line = _LINE_NUMBER.search(str(error))
        cause = f"line {line[1]} is not TOML" if line else "it is not TOML"
        raise _damaged_file(path, cause) from None

    tables = document.pop("contexts", {})
    current = document.pop("current", None)
    if document or not isinstance(tables, dict) or not isinstance(current, str | None):
        raise _damaged_file(path, 'it has more than "current" and [contexts.NAME] tables')

    contexts = Contexts(current)
    for name, table in tables.items():
        contexts.by_name[name] = _parse_context(path, name, table)

    if current is not None and current not in contexts.by_name:
        raise _damaged_file(path, f"current = {current!r} names no context")
    return contexts


def _parse_context(path: Path, name: str, table: object) -> Context:
    allowed_keys = {"url", "token_file"}
    if not is_component_id(name) or not isinstance(table, dict) or table.keys() - allowed_keys:
        raise _damaged_file(path, f"[contexts.{name}] allows url and token_file only")

    url = table.get("url")
    if not isinstance(url, str):
        raise _damaged_file(path, f"contexts.{name}.url is not a URL")

    token_file = table.get("token_file")
    if token_file is None:
        return Context(name, url, None)
    if not isinstance(token_file, str) or not Path(token_file).is_absolute():
        raise _damaged_file(path, f"contexts.{name}.token_file is not an absolute path")
    return Context(name, url, Path(token_file))


def _replace(path: Path, contexts: Contexts) -> None:
    import tomli_w

    tables: dict[str, Any] = {}
    for name, context in contexts.by_name.items():
        tables[name] = {"url": context.url}
        if context.token_file is not None:
            tables[name]["token_file"] = str(context.token_file)
    head = {} if contexts.current is None else {"current": contexts.current}
    data = tomli_w.dumps({**head, "contexts": tables}).encode()
    try:
        with replacing_private_file(path) as replace:
            replace(data)
    except OSError as error:
        raise _unusable_file(path, error) from None


def _damaged_file(path: Path, cause: str) -> errors.InvalidConfiguration:
    return errors.InvalidConfiguration(
        f"the contexts in {path} cannot be read",
        cause=cause,
        hint="correct the file or move it away; nothing was changed",
    )


def _unusable_file(path: Path, error: OSError) -> errors.InvalidConfiguration:
    return errors.InvalidConfiguration(
        f"the contexts in {path} cannot be used",
        cause=(error.strerror or "input or output failed").lower(),
        hint="check who owns the file and its directory",
    )
