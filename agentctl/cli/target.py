"""Where a token comes from: a file, stdin or the environment, never the command line.

The command that brings a database up to date, as it is to be typed here.

Running a command so that a signal ends it in order: what it opened is closed again.

Which port a command talks through: a server over HTTP, or the same service right here.

`--url`, else the context, is remote; else, or with `--config`, it is local (contract.md 8).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentctl.cli import contexts
from agentctl.cli.io import current_io
from agentctl.cli.options import AsUser, ContextName, InsecureHttp, LocalConfig, TokenFile, Url
from agentctl.cli.show.terminal import note
from agentctl.errors import NotFound, SchemaMismatch, Unavailable, UsageError

if TYPE_CHECKING:
    from agentctl.cli.log import LocalLog
    from agentctl.config.settings import Settings
    from agentctl.operations import Operations
    from agentctl.service.service import Service

__all__ = [
    "TOKEN_VARIABLE",
    "LocalRules",
    "LocalTarget",
    "Target",
    "TargetOptions",
    "naming",
    "open_target",
    "read_token_file",
    "resolve_token",
    "run_until_done",
    "with_target",
]

TOKEN_VARIABLE = "AGENTCTL_TOKEN"

_MAXIMUM_BYTES = 1 << 16
"""Bytes that are read at most; no server takes a token that long."""


def resolve_token(token_file: str | None) -> str | None:
    """The token of `--token-file` (`-` is stdin), else of AGENTCTL_TOKEN, else None.

    Raises:
        UsageFailed: the file cannot be read or holds nothing.
    """
    if token_file is not None:
        return read_token_file(token_file)
    return os.environ.get(TOKEN_VARIABLE, "").strip() or None


def read_token_file(name: str) -> str:
    """The token in a file, or on stdin for `-`, without white space around it.

    Raises:
        UsageFailed: it cannot be read, is no text or holds nothing.
    """
    place = "stdin" if name == "-" else name
    try:
        token = _read(name).decode("ascii").strip()
    except OSError as error:
        raise _unreadable_token(place, (error.strerror or "it cannot be read").lower()) from None
    except UnicodeDecodeError:
        raise _unreadable_token(place, "it is not ASCII text") from None
    if not token:
        raise _unreadable_token(place, "it is empty")
    return token


def _read(name: str) -> bytes:
    if name == "-":
        return current_io().stdin.buffer.read(_MAXIMUM_BYTES)
    with Path(name).open("rb") as file:
        return file.read(_MAXIMUM_BYTES)


def _unreadable_token(place: str, cause: str) -> UsageError:
    return UsageError(f"no token can be read from {place}", cause=cause)


@contextlib.contextmanager
def naming(config: Path | None) -> Iterator[None]:
    """Let the hint of a failure about a schema name the configuration that was given."""
    try:
        yield
    except (SchemaMismatch, Unavailable) as failure:
        if config is not None and failure.hint == _command():
            import shlex

            failure.hint = f"{failure.hint} --config {shlex.quote(str(config))}"
        raise


def _command() -> str:
    from agentctl.store.schema import MIGRATE_COMMAND

    return MIGRATE_COMMAND


def run_until_done(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. Ctrl-C, SIGTERM and SIGHUP cancel it first.

    Raises:
        KeyboardInterrupt: it was Ctrl-C.
        typer.Exit: it was SIGTERM or SIGHUP; the code is 128 and the number of the signal.
    """
    import asyncio
    import signal

    received: list[int] = []

    async def interruptible() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            received.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                loop.add_signal_handler(number, stop, number)
        await work

    try:
        asyncio.run(interruptible())
    except asyncio.CancelledError:
        raise typer.Exit(128 + received[0] if received else 1) from None


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options of every command that can be remote; all None or False when none is given."""

    url: Url = None
    token_file: TokenFile = None
    context: ContextName = None
    insecure_http: InsecureHttp = False
    config: LocalConfig = None
    as_user: AsUser = None


@dataclass(frozen=True, slots=True)
class Target:
    """An open port.

    Attributes:
        operations: what can be done, as the caller that the options say.
        target: where it is done, for people: `on http://127.0.0.1:7777`.
        options: the options that chose it, for another command: ` --url http://127.0.0.1:7777`.
        local: what there is when it is done here; None: on a server.
        token: what a server is shown; None: nothing, or there is no server.
    """

    operations: Operations
    target: str
    options: str = ""
    local: LocalTarget | None = None
    token: str | None = field(default=None, repr=False)

    def report_done(self, what: str) -> None:
        """Say on stderr what was changed, and where."""
        note(f"{what} {self.target}")

    def command(self, words: str) -> str:
        """A whole command that goes through the same door: `runs get ID` and the options."""
        return f"agentctl {words}{self.options}"


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """What work that is done here can be explained with: the user is its operator."""

    settings: Settings
    log: LocalLog
    service: Service


@dataclass(frozen=True, slots=True)
class LocalRules:
    """What holds when a command works locally.

    Attributes:
        create: whether a database that is not there is made.
        refused: flags that were given and need a server.
        only: what to do instead where it cannot; empty: it can work remotely too.
        about_token: the command looks at AGENTCTL_TOKEN itself, here too.
    """

    create: bool = False
    refused: tuple[str, ...] = ()
    only: str = ""
    reads_token: bool = False


_DEFAULT_RULES = LocalRules()
_LISTABLE_NOUNS = ("agent", "team", "workflow", "session", "run")


@asynccontextmanager
async def open_target(
    connection: TargetOptions, local: LocalRules = _DEFAULT_RULES, *, spare_token: str | None = None
) -> AsyncIterator[Target]:
    """Open the port that the options choose.

    Args:
        connection: the options.
        local: what holds should this turn out to be local.
        spare_token: what a server is shown where there is nothing else.

    Raises:
        UsageFailed: options that exclude each other, or a token that cannot be read or sent.
        AgentctlError: what keeps the configuration or the database from being used.
    """
    url, context = _resolve_server(connection)
    if local.only:
        _check_local(connection, url, local.only)
    if url is None:
        opened = _open_local(connection, local)
    else:
        _reject_options(connection, ("as_user",), "a server knows the user from the token")
        opened = _open_remote(connection, url, _credential(connection, url, context) or spare_token)
    async with opened as door:
        yield door


def _check_local(connection: TargetOptions, url: str | None, instead: str) -> None:
    """Refuse a server, and to act for a user."""
    if url is not None:
        raise UsageError(f"this works locally only, not on {url}", hint=instead)
    _reject_options(connection, ("as_user",), "it is about everybody's runs")


def with_target(
    *, create: bool = False, needs_server: tuple[str, ...] = (), only_locally: str = ""
) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Make a command of a coroutine function whose first parameter is a `Door`.

    The command has the function's other parameters, and the options of `Connection`.

    Args:
        create: whether a local database that is not there is made.
        needs_server: the function's flags that are refused locally (exit code 2).
        only_locally: what to do instead of talking to a server, or acting for a user, which are
            refused (exit code 2); empty: both are allowed.
    """

    def decorate(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(body)
        def command(**values: Any) -> None:
            connection = TargetOptions(**{name: values.pop(name) for name in _connection_names})
            refused = tuple(name for name in needs_server if values[name])
            local = LocalRules(create, refused, only_locally)
            run_until_done(_through_door(body, connection, values, local))

        own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
        parameters = [*own, *_connection_parameters]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


async def _through_door(
    body: Callable[..., Awaitable[None]],
    connection: TargetOptions,
    values: dict[str, Any],
    local: LocalRules,
) -> None:
    async with open_target(connection, local) as door:
        try:
            with naming(connection.config):
                await body(door, **values)
        except NotFound as failure:
            _add_not_found_hint(failure, door)
            raise


def _add_not_found_hint(failure: NotFound, door: Target) -> None:
    """Locally and remotely there are different things to be found."""
    noun = failure.detail.partition(" ")[0].lower()
    failure.cause = failure.cause or f"looked for it {door.target}"
    if noun in _LISTABLE_NOUNS and failure.hint is None:
        failure.hint = f"see what is there: {door.command(f'{noun}s list')}"


def _resolve_server(connection: TargetOptions) -> tuple[str | None, contexts.Context | None]:
    """The URL to talk to, None for here; and the context whose credential may go there."""
    if connection.config is not None:
        _reject_options(connection, ("url", "context"), "--config works locally")
        return None, None
    context = contexts.resolve_context(name=connection.context)
    return connection.url or (context.url if context else None), context


def _credential(
    connection: TargetOptions, url: str, context: contexts.Context | None
) -> str | None:
    """What a server is shown: the token that was given, else that of the context."""
    token = resolve_token(connection.token_file)
    if token is None:
        file = contexts.credential_file(context, url)
        token = read_token_file(str(file)) if file else None
    return token


@asynccontextmanager
async def _open_remote(
    connection: TargetOptions, url: str, token: str | None
) -> AsyncIterator[Target]:
    from agentctl.remote import RemoteOperations

    insecure = connection.insecure_http
    async with RemoteOperations(url, token, allow_insecure=insecure) as operations:
        yield Target(operations, f"on {url}", _format_options(connection), token=token)


@asynccontextmanager
async def _open_local(connection: TargetOptions, local: LocalRules) -> AsyncIterator[Target]:
    _reject_options(connection, ("token_file", "insecure_http"), "tokens are for servers only")
    for name in local.refused:
        raise UsageError(f"{_flag_of(name)} needs a server", hint="name one with --url")
    from agentctl import config
    from agentctl.auth import principal
    from agentctl.cli.log import capturing_log
    from agentctl.service.service import Service

    if os.environ.get(TOKEN_VARIABLE) and not local.reads_token:
        note(f"note: working locally; {TOKEN_VARIABLE} is for servers (--url)")
    settings = config.load_settings(connection.config)
    caller = principal.local_principal(_os_user_name(), acting_for=connection.as_user)
    target = f"locally ({settings.path})"
    with capturing_log() as log:
        async with Service.open(settings, create=local.create) as service:
            acting = service.operations_for(caller)
            yield Target(
                acting, target, _format_options(connection), LocalTarget(settings, log, service)
            )


def _format_options(connection: TargetOptions) -> str:
    """The options that chose the door, as they are typed; nothing of what is not an option."""
    import shlex

    values = ((each.name, getattr(connection, each.name)) for each in fields(connection))
    words = [
        _flag_of(name) if value is True else f"{_flag_of(name)} {shlex.quote(str(value))}"
        for name, value in values
        if value
    ]
    return "".join(f" {word}" for word in words)


def _reject_options(connection: TargetOptions, names: tuple[str, ...], why: str) -> None:
    """Refuse options that would do nothing here."""
    for name in names:
        if getattr(connection, name):
            raise UsageError(f"{_flag_of(name)} makes no sense here: {why}")


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def _os_user_name() -> str:
    """The operating system's name of who runs this; the number when it has no name."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _parameters_of_connection() -> list[inspect.Parameter]:
    made = inspect.signature(TargetOptions, eval_str=True).parameters.values()
    return [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in made]


_connection_parameters = _parameters_of_connection()
_connection_names = [field.name for field in fields(TargetOptions)]
