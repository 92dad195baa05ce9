"""`agentctl runs start`: start a run and show its output.

In the formats table and tsv stdout is the text of the run as it arrives, in a table at a terminal
drawn as Markdown; ids and status go to stderr. `json` is the record of the run, `jsonl` one event
in each line, `name` the run id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from agentctl.cli.approvals import read_value
from agentctl.cli.commands.runs.show_new import (
    Background,
    KeyOption,
    NewRun,
    StreamOption,
    choose_stream,
    show_new_run,
)
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import (
    AgentId,
    Output,
    SessionOption,
    TeamId,
    WorkflowId,
    parse_object,
    resolve_component,
)
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.errors import Conflict, UsageError
from agentctl.records.strict import parse_json
from agentctl.requests import RunRequest

Message = Annotated[
    str | None,
    typer.Option("--message", "-m", metavar="TEXT", help="Message to send (- reads stdin)"),
]
InputObject = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="JSON",
        help="JSON object for an agent in code (- reads stdin, @FILE a file)",
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata",
        metavar="KEY=VALUE",
        help="Metadata of the run (repeatable), or one JSON object",
    ),
]
SessionState = Annotated[
    str | None,
    typer.Option(
        "--session-state",
        metavar="JSON",
        help="JSON object: replaces these keys of the state of the session",
    ),
]
OutputSchema = Annotated[
    str | None,
    typer.Option("--output-schema", metavar="JSON", help="JSON Schema of an object for the answer"),
]
ClientTools = Annotated[
    str | None,
    typer.Option(
        "--client-tools",
        metavar="JSON",
        help="Array of tools that you execute: name, description, parameters; @FILE reads a file",
    ),
]


@with_target(create=True, needs_server=("background",))
async def start_run(
    target: Target,
    message: Message = None,
    input: InputObject = None,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    user: Annotated[
        str | None,
        typer.Option("--user", metavar="USER", help="Owner of the run (administrators only)"),
    ] = None,
    background: Background = False,
    stream: StreamOption = None,
    idempotency_key: KeyOption = None,
    metadata: Metadata = None,
    session_state: SessionState = None,
    output_schema: OutputSchema = None,
    client_tools: ClientTools = None,
    output: Output = None,
) -> None:
    """Start a run of an agent, team or workflow, and show its output.

    At a terminal it asks about calls that the user of the run may approve, and goes on. Ctrl-C
    cancels the run, unless it has an --idempotency-key and a server executes it. Exit code 1 if the
    run ends as ERROR or is cancelled, 9 if it waits for a decision.
    """
    output_format = resolve_format(output)
    component = resolve_component(agent, team, workflow)
    if component is None:
        raise UsageError("no component given", hint="give --agent, --team or --workflow ID")
    if message is None and input is None:
        raise UsageError("no message given", hint="give --message TEXT, or --input for an object")
    if message == "-" and input == "-":
        raise UsageError("only one of --message and --input can read stdin")
    request = RunRequest(
        None if message is None else read_text_or_stdin(message, "message"),
        session,
        user,
        background,
        idempotency_key,
        _parse_pairs("--metadata", metadata),
        parse_object("--session-state", session_state),
        parse_object("--output-schema", output_schema),
        input=parse_object("--input", None if input is None else read_value("--input", input)),
        client_tools=_parse_tools("--client-tools", client_tools),
    )
    stream = choose_stream(stream, output_format, background=background)
    operations = target.operations
    new = NewRun(
        component=component,
        stream=lambda: operations.stream_run(*component, request),
        wait=lambda: operations.create_run(*component, request),
        background=background,
        has_key=idempotency_key is not None,
    )
    with _adding_hint(target, session):
        await show_new_run(target, new, output_format, stream=stream)


@contextlib.contextmanager
def _adding_hint(target: Target, session: str | None) -> Iterator[None]:
    """Name the session in the error of a server that does not accept the run in it."""
    try:
        yield
    except Conflict as conflict:
        if session is not None and conflict.hint is None:
            look = target.command(f"sessions get {session}")
            conflict.hint = f"choose another session with --session NEW; this one: {look}"
        raise


def _parse_tools(option: str, text: str | None) -> list[dict[str, Any]] | None:
    if text is None:
        return None
    try:
        tools = parse_json(read_value(option, text))
    except ValueError:
        tools = None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(
            f"{option} must be a JSON array of tools",
            hint=f"""write {option} '[{{"name": "open_file", "description": "…"}}]'""",
        )
    return tools


def _parse_pairs(option: str, texts: list[str] | None) -> dict[str, Any] | None:
    """Return the object of texts `KEY=VALUE` with strings as values, or of one JSON object."""
    if not texts:
        return None
    if texts[0].lstrip().startswith("{"):
        if len(texts) > 1:
            raise UsageError(f"{option} with a JSON object excludes another {option}")
        return parse_object(option, texts[0])
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            raise UsageError(f"{option} must be KEY=VALUE or a JSON object")
        if key in pairs:
            raise UsageError(f"{option} has the key {key!r} twice")
        pairs[key] = value
    return pairs
