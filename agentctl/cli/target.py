"""The target of a command: a server over HTTP, or the service in this process.

`--url` or a context selects a server. Without one, or with `--config`, the command works locally
(docs/contract.md "Command line"). A token comes from a file, stdin or the environment, else from
the context, else from `agentctl login`, never from the command line.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from agentctl.cli import contexts
from agentctl.cli.garbage import spare_imports
from agentctl.cli.ids import find_short_ids, is_short, resolve_short_ids
from agentctl.cli.io import TOKEN_VARIABLE, current_io, read_token_file, resolve_token
from agentctl.cli.options import (
    AsUser,
    ContextName,
    InsecureHttp,
    LocalConfig,
    Timeout,
    TokenFile,
    Url,
    check_list_options,
)
from agentctl.cli.request_options import CommandSignature, declare_parameters, run_until_done
from agentctl.cli.show.terminal import note, note_detail
from agentctl.cli.show.tokens import describe_rejection
from agentctl.errors import AgentctlError, NotFound, Unauthenticated, Unavailable, UsageError
from agentctl.interface.declarations import Order
from agentctl.interface.requests import MINIMUM_ID_PREFIX, SUMMARY_VIEW
from agentctl.records.kinds import KINDS
from agentctl.records.routes import operation_ids
from agentctl.records.text import suggest_name

if TYPE_CHECKING:
    from agentctl.auth.principal import Principal
    from agentctl.cli.log import LocalLog
    from agentctl.config.settings import Settings
    from agentctl.interface.operations import Operations
    from agentctl.remote.connection import TokenSource
    from agentctl.service.service import Service

_NOUNS = ("agent", "team", "workflow", "session", "run", "approval", "webhook", "file")

_LISTS = {noun: f"{noun}s list" for noun in _NOUNS} | {
    "memory": "memories list",
    "delivery": "webhooks deliveries",
}
"""The command with the list of a kind of record."""

Reads = Literal["components", "stored"]
"""The reads of `service.reads` that a command needs: of components, or also of what is stored."""


@contextlib.contextmanager
def adding_config(config: Path | None) -> Iterator[None]:
    """Add `--config` to the command that the hint of a failure recommends."""
    try:
        yield
    except AgentctlError as failure:
        if config is not None and failure.command is not None:
            failure.hint = f"{failure.command} --config {shlex.quote(str(config))}"
        raise


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options of every command that can be remote; None or False if not given."""

    url: Url = None
    token_file: TokenFile = None
    context: ContextName = None
    insecure_http: InsecureHttp = False
    timeout: Timeout = None
    config: LocalConfig = None
    as_user: AsUser = None

    def flags(self) -> str:
        """Return the options as they are typed, with a leading space; empty if none is given."""
        words = ""
        for option in fields(self):
            value = getattr(self, option.name)
            if not value:
                continue

            words += f" {_flag_of(option.name)}"
            if value is not True:
                words += f" {shlex.quote(str(value))}"
        return words

    def reject(self, names: tuple[str, ...], reason: str) -> None:
        """Reject options that have no effect here."""
        for name in names:
            if getattr(self, name):
                raise UsageError(f"{_flag_of(name)} has no effect here: {reason}")


@dataclass(frozen=True, slots=True)
class Target:
    """An open connection to a server, or to the local service."""

    operations: Operations

    place: str
    """The place where they are executed, for messages: `on http://127.0.0.1:7777`."""

    options: str = ""
    """The options that select this target: ` --url http://127.0.0.1:7777`."""

    local: LocalTarget | None = None
    """The local service; None on a server."""

    token: str | None = field(default=None, repr=False)
    """The token that is sent to the server; None without one."""

    async def list_allowed(self) -> set[str] | None:
        """Return the operations that the caller may call; None if the server does not list them.

        A refused call would be an entry of the audit log.
        """
        try:
            document = await self.operations.system.get_me()
        except AgentctlError:
            return None
        return set(document.value["operations"])

    async def may_call(self, operation: str) -> bool:
        """Return True if the caller may call an operation, or if that is not known."""
        allowed = await self.list_allowed()
        return allowed is None or operation in allowed

    def report_done(self, change: str) -> None:
        """Report a change, and where it was made, on stderr."""
        note(f"{change} {self.place}")

    def command(self, words: str) -> str:
        """Return a whole command line for the same target, such as `runs get ID`."""
        return f"agentctl {words}{self.options}"

    def build_release_hint(self, session_ids: Sequence[str], db: str | None) -> str:
        """Return the hint of an error about held sessions.

        Args:
            db: the id of their database; None for the default database.
        """
        words = ["sessions", "release", *session_ids, *(("--db", db) if db else ())]
        return f"an administrator can end the hold with: {self.command(shlex.join(words))}"


@dataclass(frozen=True, slots=True)
class LocalTarget:
    """The local service, its settings and its log: the user is the operator and may read all."""

    settings: Settings
    log: LocalLog

    opened: Service | None
    """The service; None for a command that only reads, for which none is opened."""

    @property
    def service(self) -> Service:
        """The service. A command that needs it is not declared with `reads`."""
        assert self.opened is not None
        return self.opened


@asynccontextmanager
async def open_target(
    options: TargetOptions,
    *,
    create: bool = False,
    server_flags: tuple[str, ...] = (),
    only_locally: str = "",
    reads_token: bool = False,
    fallback_token: str | None = None,
    reads: Reads | None = None,
) -> AsyncIterator[Target]:
    """Open the target that the options select.

    Args:
        server_flags: given flags that need a server.
        only_locally: the hint if a server is selected; empty: the command can be remote.
        reads_token: the command uses AGENTCTL_TOKEN locally too.
        fallback_token: the token for a server if no other token is given.
        reads: locally open these reads only, without a service; None to open a service.

    Raises:
        UsageError: the options cannot be used together, or the token cannot be read or sent.
        AgentctlError: the configuration or the database cannot be used.
    """
    url, context = resolve_server(options)
    if only_locally:
        if url is not None:
            raise UsageError(f"this works only locally, not on {url}", hint=only_locally)
        options.reject(("as_user",), "the command covers the runs of every user")

    if url is None:
        opened = _open_local(
            options, create=create, server_flags=server_flags, reads_token=reads_token, reads=reads
        )
    else:
        options.reject(("as_user",), "a server takes the user from the token")
        token, source = await _find_token(options, url, context)
        opened = _open_remote(options, url, token or fallback_token, source)

    async with opened as target:
        yield target


async def _find_token(
    options: TargetOptions, url: str, context: contexts.Context | None
) -> tuple[str | None, TokenSource | None]:
    """Return the token for a server: from an option, else of the context, else of a sign-in.

    Returns:
        The token, and the sign-in that renews it; None for each that does not exist.
    """
    token = resolve_token(options.token_file)
    if token is not None:
        return token, None

    file = contexts.credential_file(context, url)
    if file:
        return read_token_file(str(file)), None

    # Imported here: most commands need no sign-in.
    from agentctl.cli.sign_ins import open_tokens

    source = await open_tokens(url)
    if source is None:
        return None, None
    return await source.read(), source


def with_target(
    *,
    create: bool = False,
    needs_server: tuple[str, ...] = (),
    only_locally: str = "",
    without: tuple[str, ...] = (),
    order: Order = (...,),
    reads: Reads | None = None,
    service_flags: tuple[str, ...] = (),
) -> Callable[[Callable[..., Awaitable[None]]], Any]:
    """Turn a coroutine function whose first parameter is a `Target` into a command (decision 148).

    The command has the other parameters of the function, and the options of `TargetOptions`. A
    parameter that is a request, such as a `RunFilter`, becomes the options of its fields
    (`agentctl.cli.request_options`). The function receives whole ids for short ids
    (`agentctl.cli.ids`).

    Args:
        create: create a local database that does not exist.
        needs_server: flags of the function that are rejected locally (exit code 2).
        only_locally: the hint if a server or `--as-user` is given, which are then rejected
            (exit code 2); empty: both are allowed.
        without: fields of requests that are no options.
        order: the order of the options, if it is not the order of the parameters and fields.
        reads: the function calls only operations of these reads: locally no service is opened,
            which costs more than the read. None if it calls other operations.
        service_flags: flags of the function with which it needs a service nevertheless.
    """

    def decorate(body: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @functools.wraps(body)
        def command(**values: Any) -> None:
            options = TargetOptions(**{name: values.pop(name) for name in common.parameters})
            invocation = values.pop("invocation", None)
            if invocation is not None:
                check_list_options(invocation)

            server_flags = tuple(name for name in needs_server if values[name])
            needs_service = any(values[name] for name in service_flags)
            opened = open_target(
                options,
                create=create,
                server_flags=server_flags,
                only_locally=only_locally,
                reads=None if needs_service else reads,
            )

            run_until_done(_run_with_target(body, own, opened, options.config, values))

        own = CommandSignature(functools.partial(body, None), without, order)
        common = inspect.signature(TargetOptions, eval_str=True)
        keyword_only = inspect.Parameter.KEYWORD_ONLY
        parameters = list(own.parameters)
        for parameter in common.parameters.values():
            parameters.append(parameter.replace(kind=keyword_only))

        # Only the context of an invocation knows which options were given.
        if any(parameter.name == "all_pages" for parameter in parameters):
            parameters.append(
                inspect.Parameter("invocation", keyword_only, annotation=typer.Context)
            )
        declare_parameters(command, parameters)
        return command

    return decorate


async def _run_with_target(
    body: Callable[..., Awaitable[None]],
    signature: CommandSignature,
    opened: AbstractAsyncContextManager[Target],
    config: Path | None,
    values: dict[str, Any],
) -> None:
    short_ids = find_short_ids(signature.parameters)
    with adding_config(config):
        async with opened as target:
            spare_imports()
            try:
                resolved_values = await resolve_short_ids(target.operations, short_ids, values)
                await body(target, **signature.build_arguments(resolved_values))
            except NotFound as failure:
                await _explain_not_found(failure, target, values)
                raise


async def _explain_not_found(failure: NotFound, target: Target, values: Mapping[str, Any]) -> None:
    """Add to a failure the place, the id that was not found, and a way to the right one.

    Args:
        values: the values of the parameters of the command.
    """
    noun = failure.detail.removesuffix(" not found").lower()
    if failure.cause is None:
        failure.cause = f"not found {target.place}"
    if noun not in _LISTS:
        return

    ids = _collect_ids(noun, values)

    if len(ids) == 1 and ids[0] not in failure.detail:
        failure.detail = f"{failure.detail}: {ids[0]}"
    if failure.hint is None:
        failure.hint = f"list them with: {target.command(_LISTS[noun])}"
        # The error about the id is the one to report.
        with contextlib.suppress(AgentctlError):
            failure.hint = await _find_hint(target, noun, ids, values) or failure.hint


def _collect_ids(noun: str, values: Mapping[str, Any]) -> list[str]:
    """Return the ids of records of a noun among the values of the parameters of a command."""
    names = [noun, f"{noun}_id", f"{noun}_ids"]
    if noun in KINDS:
        names.append("component_id")

    ids = list[str]()
    for name in names:
        value = values.get(name)
        if isinstance(value, str):
            ids += [value] if value else []
        else:
            ids += value or ()
    return ids


async def _find_hint(
    target: Target, noun: str, ids: Sequence[str], values: Mapping[str, Any]
) -> str | None:
    """Return a hint about ids that were not found; None if there is no better hint.

    It asks only for what the caller may read: a hint adds no denial to the audit log.
    """
    look = f"list them with: {target.command(_LISTS[noun])}"
    if noun not in KINDS:
        if any(map(is_short, ids)):
            return f"give at least {MINIMUM_ID_PREFIX} characters of an id; {look}"
        return None

    allowed = await target.list_allowed() or set()
    run_id = values.get("run_id") or next(iter(values.get("run_ids") or ()), None)
    if isinstance(run_id, str) and "get_run" in allowed:
        run = (await target.operations.runs.get(run_id, form=SUMMARY_VIEW)).value
        parent_id = run["parent_run_id"]
        if parent_id:
            return f"it is the run of a member: name the run that started it, {parent_id}"

    if not ids or operation_ids(noun).list not in allowed:
        return None
    components = (await target.operations.components.list(noun)).value
    similar_id = suggest_name(ids[0], [str(row[f"{noun}_id"]) for row in components])
    return f"did you mean {similar_id}? {look}" if similar_id else None


def resolve_server(options: TargetOptions) -> tuple[str | None, contexts.Context | None]:
    """Return the URL of the server, None for local work; and the context with its credential.

    Raises:
        UsageError: the options cannot be used together, or the context does not exist.
    """
    if options.config is not None:
        options.reject(("url", "context"), "--config selects local mode")
        return None, None
    context = contexts.resolve_context(options.context)
    if options.url is not None:
        return options.url, context
    return (context.url if context else None), context


def require_server(url: str | None, context: str | None) -> str:
    """Return the URL of the server for a command that works on no local service.

    Raises:
        UsageError: no server is selected; or as in `resolve_server`.
    """
    server, _ = resolve_server(TargetOptions(url=url, context=context))
    if server is None:
        raise UsageError("no server is selected", hint="give --url, or select a context")
    return server


@asynccontextmanager
async def _open_remote(
    options: TargetOptions, url: str, token: str | None, source: TokenSource | None
) -> AsyncIterator[Target]:
    from agentctl.cli.log import capturing_log
    from agentctl.remote import open_remote

    note_detail(f"server: {url}, {'with' if token else 'without'} a token")
    opened = open_remote(
        url,
        token,
        allow_insecure=options.insecure_http,
        read_timeout=options.timeout,
        source=source,
    )
    with capturing_log():
        async with opened as operations:
            try:
                yield Target(operations, f"on {url}", options.flags(), token=token)
            except Unauthenticated as failure:
                if failure.cause is None and token is not None:
                    failure.cause = describe_rejection(token)
                raise


@asynccontextmanager
async def _open_local(
    options: TargetOptions,
    *,
    create: bool,
    server_flags: tuple[str, ...],
    reads_token: bool,
    reads: Reads | None,
) -> AsyncIterator[Target]:
    options.reject(("token_file", "insecure_http"), "only a server takes a token")
    options.reject(("timeout",), "it is the time for a server to respond")
    if server_flags:
        flag = _flag_of(server_flags[0])
        raise UsageError(f"{flag} needs a server", hint="select one with --url")

    import pwd

    from agentctl import config
    from agentctl.auth import principal
    from agentctl.cli.log import capturing_log
    from agentctl.config.databases import display_url

    settings = config.load_settings(options.config)
    if os.environ.get(TOKEN_VARIABLE) and not reads_token:
        note(
            f"note: reading the database as its administrator, without {TOKEN_VARIABLE}; add --url"
            " to use the server"
        )
    note_detail(f"configuration: {settings.path}")
    for database in settings.databases:
        note_detail(f"database {database.id}: {display_url(database.url)}")

    # In a container the user may have no name.
    user = str(os.getuid())
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.getuid()).pw_name
    caller = principal.local_principal(user, acting_for=options.as_user)

    # Code of agents and tools is imported and executed in this process, and may print.
    with (
        _adding_place(settings),
        capturing_log() as log,
        contextlib.redirect_stdout(current_io().err),
    ):
        place = f"locally ({settings.path})"
        if reads is not None:
            async with _open_reads(reads, settings, caller) as operations:
                yield Target(operations, place, options.flags(), LocalTarget(settings, log, None))
            return

        from agentctl.service.service import Service

        async with Service.open(settings, create=create) as service:
            local = LocalTarget(settings, log, service)
            yield Target(service.operations_for(caller), place, options.flags(), local)


@contextlib.contextmanager
def _adding_place(settings: Settings) -> Iterator[None]:
    """Add the URL of a database to a failure that names only its id, as for other callers."""
    from agentctl.config.databases import display_url

    try:
        yield
    except Unavailable as failure:
        for database in settings.databases:
            if failure.cause == f"database {database.id!r}":
                failure.cause += f": {display_url(database.url)}"
        raise


def _open_reads(
    reads: Reads, settings: Settings, caller: Principal
) -> AbstractAsyncContextManager[Operations]:
    if reads == "components":
        from agentctl.service.reads.components import open_component_reads

        return open_component_reads(settings, caller)

    from agentctl.service.reads.reader import open_reads

    return open_reads(settings, caller)


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")
