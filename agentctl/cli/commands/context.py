"""`agentctl context`: named servers, so that commands need no --url."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from agentctl.cli import contexts
from agentctl.cli.help import CommandApp
from agentctl.cli.options import Yes
from agentctl.cli.parameters import argument, complete_values, flag, option
from agentctl.cli.show.output import FieldsOutput, write_line
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import confirm, note
from agentctl.errors import Conflict, InvalidConfiguration, NotFound, UsageError

app = CommandApp(
    help="Manage named servers and select the current one.",
    epilog="Example: agentctl context add demo --url http://127.0.0.1:7777 --use",
)

_NAME = argument("NAME", "Name of the context", autocompletion=complete_values("context"))
Name = Annotated[str, _NAME]

_COLUMNS = [
    Column("name"),
    Column("current"),
    Column("url"),
    Column("token_file", look="whole"),
    Column("sign_in", lambda record: _format_sign_in(record["sign_in"]), look="whole"),
]


@app.command("add", epilog="Example: agentctl context add demo --url http://127.0.0.1:7777 --use")
def add_context(
    name: Name,
    url: Annotated[str, option("--url", "URL", "Server URL")],
    token_file: Path | None = option("--token-file", "FILE", "File with the token for this server"),
    use: bool = flag("--use", "Select it as the current context"),
) -> None:
    """Add a named server.

    The context stores the path of the token file, not the token. The token is not sent to other
    servers.
    """
    from agentctl.remote.address import parse_address

    contexts.check_name(name)
    address = parse_address(url)
    file = _resolve_token_file(token_file) if token_file is not None else None

    with contexts.updating() as stored:
        if name in stored.by_name:
            raise Conflict(
                f"a context named {name!r} already exists",
                hint=f"remove it first: agentctl context remove {name}",
            )
        stored.by_name[name] = contexts.Context(name, address.base, file)
        if use:
            stored.current = name

    note(f"added {name} ({address.base}) to {contexts.contexts_path()}")
    if file is not None and not (address.encrypted or address.loopback):
        note("commands need --insecure-http to send its token over plain http")
    if use:
        note(f"{name} is the current context")
    else:
        note(f"select it with: agentctl context use {name}")


@app.command("list", epilog="Example: agentctl context list -o json")
def list_contexts(out: FieldsOutput) -> None:
    """List the contexts."""
    stored = contexts.load_contexts()
    rows = [_build_record(context, stored) for context in stored.by_name.values()]
    out.show_list(rows, _COLUMNS, "name")


@app.command("use", epilog="Example: agentctl context use demo")
def use_context(
    name: Annotated[str | None, _NAME] = None,
    none: bool = flag("--none", "Select no context: work locally"),
) -> None:
    """Select the current context."""
    if (name is None) is not none:
        raise UsageError("give a NAME, or --none")
    with contexts.updating() as stored:
        context = None if name is None else contexts.find_context(stored, name)
        stored.current = name
    note("commands work locally" if context is None else f"commands use {context.url}")
    if os.environ.get("AGENTCTL_CONTEXT"):
        note("AGENTCTL_CONTEXT is set and takes precedence")


@app.command("current", epilog="Example: agentctl context current")
def current_context() -> None:
    """Print the name of the current context."""
    context = contexts.resolve_context()
    if context is None:
        raise NotFound(
            "no current context: commands without --url work locally",
            hint="select one with: agentctl context use NAME",
        )
    write_line(context.name)
    place = context.token_file or "AGENTCTL_TOKEN, --token-file or agentctl login"
    note(f"{context.url}, token from {place}")


@app.command("remove", epilog="Example: agentctl context remove demo --yes")
def remove_context(name: Name, yes: Yes = False) -> None:
    """Remove a context; its token file stays."""
    context = contexts.find_context(contexts.load_contexts(), name)
    confirm(f"Remove the context {name} ({context.url})?", yes=yes)
    with contexts.updating() as stored:
        contexts.find_context(stored, name)
        del stored.by_name[name]
        was_current = stored.current == name
        stored.current = None if was_current else stored.current
    note(f"removed {name} from {contexts.contexts_path()}")
    if was_current:
        note("no current context now: commands without --url work locally")


def _build_record(context: contexts.Context, stored: contexts.Contexts) -> dict[str, Any]:
    from agentctl.cli.sign_ins import describe_sign_in

    sign_in = None
    try:
        sign_in = describe_sign_in(context.url)
    except InvalidConfiguration as failure:  # One of them must not hide the other contexts.
        note(f"{failure.detail}: {failure.hint}")
    return {
        "name": context.name,
        "current": context.name == (os.environ.get("AGENTCTL_CONTEXT") or stored.current),
        "url": context.url,
        "token_file": None if context.token_file is None else str(context.token_file),
        "sign_in": None if sign_in is None else sign_in.describe(),
    }


def _format_sign_in(record: Mapping[str, Any] | None) -> str:
    if record is None:
        return ""
    who = f"{record['user']} ({record['name']})" if record["name"] else record["user"]
    end = f", token until {record['expires_at']}" if record["expires_at"] else ""
    return f"{who} at {record['issuer']}{end}, in the {record['kept_in']}"


def _resolve_token_file(file: Path) -> Path:
    if str(file) == "-":
        raise UsageError("a context stores the path of a token file: stdin has none")

    path = Path(os.path.abspath(file.expanduser()))  # noqa: PTH100 - keeps links
    try:
        str(path).encode()
        mode = path.stat().st_mode
    except UnicodeEncodeError:
        raise UsageError("the path of the token file is not UTF-8 text") from None
    except OSError:
        note(f"{path} cannot be read yet")
        return path

    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        note(f"other users may be able to read {path}: run chmod 600 {path}")
    return path
