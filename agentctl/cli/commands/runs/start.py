"""`agentctl runs start`: start a run, and show its events as they arrive or its record.

In the formats table and tsv stdout is the text of the run as it arrives, in a table at a terminal
drawn as Markdown; ids and status go to stderr. `json` is the record of the run, `jsonl` one event
in each line, `name` the run id. Commands that repeat a run show it in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from agentctl.cli import approvals
from agentctl.cli.commands.files import send_file
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import NO_CHOICE, ComponentChoice, SessionOption, parse_object
from agentctl.cli.parameters import flag, option
from agentctl.cli.show import columns, event_lines
from agentctl.cli.show.answer import RunOutput, read_run_end, report_run_end
from agentctl.cli.show.output import CommandOutput, write_text
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import ask, may_ask, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import (
    AgentctlError,
    ConfirmationDeclined,
    Conflict,
    NotFound,
    Unavailable,
    UsageError,
    ValidationFailed,
)
from agentctl.interface.requests import CancelRequest, RunRequest, StreamEvent
from agentctl.interface.requests.approvals import ContinueRequest, Ruling, build_ruling
from agentctl.interface.requests.files import FileUpload
from agentctl.records.document import Document
from agentctl.records.events import EventKind, find_event_kind
from agentctl.records.kinds import ComponentRef
from agentctl.records.runs import RunRecord
from agentctl.records.sessions import SESSION_NOT_FOUND
from agentctl.records.strict import parse_json

Background = Annotated[
    bool, flag("--background", "Return immediately; the run continues on the server")
]

StreamOption = Annotated[
    bool | None, flag("--stream/--no-stream", "Show the output as it arrives, or at the end")
]

KeyOption = Annotated[
    str | None,
    option(
        "--idempotency-key", "KEY", "Start at most one run; repeating the command shows that run"
    ),
]

_STARTED = plain_columns("run_id", "session_id", "status")
"""The columns of a run in the background, as tab-separated values."""

_CHOICES = "Make this call? [y]es, [n]o, [e]dit the arguments, [l]ater: "


@with_target(create=True, needs_server=("background",))
async def start_run(
    target: Target,
    out: CommandOutput,
    message: str | None = option("--message -m", "TEXT", "Message to send (- reads stdin)"),
    input: str | None = option(
        "--input", "JSON", "JSON object for an agent in code (- reads stdin, @FILE a file)"
    ),
    choice: ComponentChoice = NO_CHOICE,
    session: SessionOption = None,
    user: str | None = option("--user", "USER", "Owner of the run (administrators only)"),
    background: Background = False,
    stream: StreamOption = None,
    idempotency_key: KeyOption = None,
    metadata: list[str] | None = option(
        "--metadata", "KEY=VALUE", "Metadata of the run (repeatable), or one JSON object"
    ),
    session_state: str | None = option(
        "--session-state", "JSON", "JSON object: replaces these keys of the state of the session"
    ),
    output_schema: str | None = option(
        "--output-schema", "JSON", "JSON Schema of an object for the answer"
    ),
    client_tools: str | None = option(
        "--client-tools",
        "JSON",
        "Array of tools that you execute: name, description, parameters; @FILE reads a file",
    ),
    file: list[str] | None = option(
        "--file", "PATH", "File for the message, which is uploaded (repeatable)"
    ),
    file_id: list[str] | None = option("--file-id", "ID", "Uploaded file (repeatable)"),
) -> None:
    """Start a run of an agent, team or workflow, and show its output.

    At a terminal it asks about calls that the user of the run may approve, and continues. Ctrl-C
    cancels the run, unless it has an --idempotency-key and a server executes it. Exit code 1 if the
    run ends as ERROR or is cancelled, 9 if it is waiting for approval.
    """
    component = choice.resolve()
    if component is None:
        raise UsageError("no component given", hint="give --agent, --team or --workflow ID")
    if message is None and input is None and not (file or file_id):
        raise UsageError("no message given", hint="give --message, --file or --input")
    if message == "-" and input == "-":
        raise UsageError("only one of --message and --input can read stdin")

    if message is not None:
        message = read_text_or_stdin(message, "message")
    input_text = input
    if input_text is not None:
        input_text = approvals.read_value("--input", input_text)

    request = RunRequest(
        message=message,
        session_id=session,
        user_id=user,
        background=background,
        idempotency_key=idempotency_key,
        metadata=_parse_metadata(metadata),
        session_state=parse_object("--session-state", session_state),
        output_schema=parse_object("--output-schema", output_schema),
        input=parse_object("--input", input_text),
        client_tools=_parse_tools(client_tools),
    )
    stream = choose_stream(stream, out, background=background)

    with _adding_hint(target, session):
        uploaded_files: list[tuple[str, str | None]] = []
        try:
            request = await _add_files(
                target, component, request, file or (), file_id or (), uploaded_files
            )
            new = build_start(target, component, request)
            await show_new_run(target, new, out, stream=stream)
        except AgentctlError as refusal:
            # The run may exist if the server did not answer.
            if not isinstance(refusal, Unavailable):
                await _delete_unused(target, uploaded_files)
            raise


async def _add_files(
    target: Target,
    component: ComponentRef,
    request: RunRequest,
    paths: Sequence[str],
    file_ids: Sequence[str],
    uploaded_files: list[tuple[str, str | None]],
) -> RunRequest:
    """Upload the files of a message; return its request with their ids.

    Args:
        uploaded_files: receives the id and the database of each uploaded file, also of the files
            before one that is refused.
    """
    if paths and request.idempotency_key is not None:
        raise UsageError(
            "--file uploads a new file each time, so a repeated command would be another request",
            hint=f"upload it once, and pass --file-id: {target.command('files upload FILE')}",
        )
    database = None
    if paths:
        database = (await target.operations.components.get(*component)).value["db_id"]

    for path in paths:
        upload = FileUpload(Path(path).name, user_id=request.user_id, db_id=database)
        document = await send_file(target, path, upload)
        uploaded_files.append((document.value["file_id"], database))

    uploaded_ids = [uploaded_id for uploaded_id, _ in uploaded_files]
    return replace(request, files=(*file_ids, *uploaded_ids))


async def _delete_unused(target: Target, uploaded_files: Sequence[tuple[str, str | None]]) -> None:
    """Delete the uploaded files that no session has."""
    for file_id, database in uploaded_files:
        with contextlib.suppress(AgentctlError):
            file = (await target.operations.files.get(file_id, db_id=database)).value
            if file["session_id"] is None:
                await target.operations.files.delete(file_id, db_id=database)


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
    except NotFound as missing:
        # A run creates a session that does not exist.
        if missing.detail == SESSION_NOT_FOUND:
            missing.hint = "the id is taken: choose another one with --session NEW"
        raise


def _parse_tools(text: str | None) -> list[dict[str, Any]] | None:
    if text is None:
        return None

    try:
        tools = parse_json(approvals.read_value("--client-tools", text))
    except ValueError:
        tools = None

    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(
            "--client-tools must be a JSON array of tools",
            hint="""write --client-tools '[{"name": "open_file", "description": "…"}]'""",
        )
    return tools


def _parse_metadata(texts: list[str] | None) -> dict[str, Any] | None:
    """Return the object of texts `KEY=VALUE` with strings as values, or of one JSON object."""
    if not texts:
        return None
    if texts[0].lstrip().startswith("{"):
        if len(texts) > 1:
            raise UsageError("--metadata with a JSON object excludes another --metadata")
        return parse_object("--metadata", texts[0])

    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key and equals):
            hint = 'write: --metadata team=cakes, or: --metadata \'{"team": "cakes"}\''
            raise UsageError("--metadata must be KEY=VALUE or a JSON object", hint=hint)
        if key in pairs:
            raise UsageError(f"--metadata has the key {key!r} twice")
        pairs[key] = value
    return pairs


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run to start."""

    component: ComponentRef

    request: Any
    """A `RunRequest`, `RetryRequest` or `ForkRequest`."""

    stream: Callable[[Any], AsyncIterator[StreamEvent]]
    wait: Callable[[Any], Awaitable[Document[RunRecord]]]

    is_brief: bool = False
    """True if its ids are not noted when it starts."""

    on_started: Callable[[str], None] | None = None
    """Called with the id of the run when its first event has arrived."""


def build_start(target: Target, component: ComponentRef, request: RunRequest) -> RunStart:
    """Return the start of a run of a component."""
    operations = target.operations
    return RunStart(
        component,
        request,
        stream=partial(operations.runs.stream, *component),
        wait=partial(operations.runs.create, *component),
    )


def choose_stream(stream: bool | None, out: CommandOutput, *, background: bool) -> bool:
    """Return True if the events of a new run are shown; UsageError if the format has none."""
    if stream is None:
        return not background and out.format in ("table", "wide", "tsv", "jsonl")
    if stream and out.format in ("json", "name"):
        raise UsageError(f"-o {out.format} excludes --stream", hint="use -o jsonl, or --no-stream")
    return stream


async def show_new_run(target: Target, new: RunStart, out: CommandOutput, *, stream: bool) -> None:
    """Start a run and show its output, see `runs start`."""
    if stream:
        await _stream_run(target, new, out)
    else:
        await _wait_for_run(target, new, out)


async def _stream_run(target: Target, new: RunStart, out: CommandOutput) -> None:
    """Show the events of a run as they arrive, and ask about its approvals at a terminal."""
    import asyncio

    component = new.component
    lines = event_lines.create_event_lines(component[0], out.format)
    run_output = lines.output
    # True if the message was sent to a run that is at work, instead of starting one.
    is_sent = False
    stream = new.stream(new.request)
    questions = RunQuestions(target, component, out)

    try:
        # Once for each leg of the run.
        while True:
            events = event_lines.with_activity(stream, component[1], lambda: lines.in_line)
            # Close the stream at once on an interrupt: the server then detects the disconnect.
            async with contextlib.aclosing(events):
                async for event in events:
                    is_first = not run_output.run_id
                    event_lines.write_event(event, out.format, lines)
                    if not is_first:
                        continue

                    if new.on_started is not None:
                        new.on_started(run_output.run_id)
                    # Another run got the message: its events begin with the delivery.
                    is_sent = find_event_kind(event.name) is EventKind.MESSAGE_DELIVERED
                    if is_sent:
                        target.report_done(f"sent to run {run_output.run_id}")
                    elif not new.is_brief:
                        _note_started(target, new, run_output.run_id, run_output.session_id)

            if run_output.asked is None:
                break
            lines.flush()
            decisions = await questions.ask(run_output.run_id, run_output.asked)
            stream = questions.stream(run_output.run_id, decisions)
    except (asyncio.CancelledError, KeyboardInterrupt):
        lines.flush()
        if is_sent:
            target.report_done(f"run {run_output.run_id} continues")
        else:
            await _cancel_interrupted(target, new, run_output)
        raise
    finally:
        lines.end_answer()

    lines.flush()
    if not run_output.end:
        look = target.command(f"runs get {run_output.run_id}")
        raise Unavailable("the stream ended before the run did", hint=f"check the run with: {look}")
    end = await read_run_end(target, component, run_output)
    report_run_end(target, run_output.run_id, end, run_output.seconds)


async def _cancel_interrupted(target: Target, new: RunStart, run_output: RunOutput) -> None:
    """Cancel a run after Ctrl-C, unless it has to continue, and note its status."""
    run_id = run_output.run_id
    if not run_id:
        return

    look = target.command(f"runs get {run_id}")
    if new.request.background:
        target.report_done(f"run {run_id} continues")
        return
    if new.request.idempotency_key is not None:
        # On a server the run continues; a local run of this process ends with it.
        note(f"interrupted: check the run with: {look}")
        return

    try:
        cancel = CancelRequest(run_output.session_id, reason="Interrupted at the terminal")
        record = (await target.operations.runs.cancel(*new.component, run_id, cancel)).value
        note(f"interrupted: run {run_id} is {record['status']}")
    except AgentctlError:
        note(f"interrupted: run {run_id} may continue; check it with: {look}")


async def _wait_for_run(target: Target, new: RunStart, out: CommandOutput) -> None:
    """Show a run at its end, or at its pause, and ask about its approvals at a terminal."""
    import asyncio

    try:
        async with showing_progress("waiting for the run, Ctrl-C cancels it"):
            document = await new.wait(new.request)
    except asyncio.CancelledError:
        look = target.command("runs list --limit 3")
        note(f"interrupted: check the run with: {look}")
        raise

    run = document.value
    run_id = run["run_id"]
    message = run.get("sent_message")
    if message is not None and message["next_run_id"] is None:
        target.report_done(f"sent to run {run_id}")
    else:
        _note_started(target, new, run_id, run["session_id"])

    questions = RunQuestions(target, new.component, out)
    while run["status"] == "PAUSED" and not new.request.background and questions.may_ask:
        try:
            # The record of agentctl has no arguments: no one is asked about a call unseen.
            shown_approvals = [row for row in run["approvals"] if "arguments" in row]
            decisions = await questions.ask(run_id, shown_approvals)
            async with showing_progress("waiting for the run"):
                document = await questions.continue_run(run_id, decisions)
        except (asyncio.CancelledError, KeyboardInterrupt):
            note(f"interrupted: check the run with: {target.command(f'runs get {run_id}')}")
            raise
        run = document.value

    if out.format in ("table", "wide", "tsv") and not new.request.background:
        content = run.get("content")
        write_text(f"{content}\n" if content else "")
    else:
        run_columns = _STARTED if out.format == "tsv" else columns.RUN
        out.show_record(document, run_columns, "run_id")

    if run["status"] == "PAUSED":
        raise approvals.build_waiting(target, run_id, run["approvals"])
    if not new.request.background:
        report_run_end(target, run_id, run)


def _note_started(target: Target, new: RunStart, run_id: str, session_id: str) -> None:
    # With a key the run may have been started by an earlier command.
    what = "started run" if new.request.idempotency_key is None else "with this key: run"
    target.report_done(f"{what} {run_id} of session {session_id}")


class RunQuestions:
    """Asks about the approvals of a run, and lets it continue.

    Each approval is asked about once. A decision that the server does not accept is asked again.
    """

    def __init__(self, target: Target, component: ComponentRef, out: CommandOutput) -> None:
        self._target = target
        self._component = component
        self._asked_ids: set[str] = set()

        self.may_ask = out.format in event_lines.TEXT_FORMATS and may_ask()
        """True if the output is for people, and a person can answer."""

    async def ask(
        self, run_id: str, known_approvals: Sequence[Mapping[str, Any]]
    ) -> tuple[Ruling, ...]:
        """Ask about the approvals of a run.

        Args:
            known_approvals: the approvals to ask about if the caller cannot read the list of the
                server, or the server has none.

        Raises:
            WaitsForDecision: there is no decision: no one can be asked, or other people decide.
            KeyboardInterrupt: Ctrl-C was typed.
        """
        pending = await approvals.read_pending(self._target, run_id)
        if not pending:
            pending = [row for row in known_approvals if row["approval_id"] not in self._asked_ids]

        decisions = []
        for approval in pending if self.may_ask else ():
            if approval["policy"] == "user" and approval["approval_id"] not in self._asked_ids:
                self._asked_ids.add(approval["approval_id"])
                decision = _ask_about(approval)
                if decision is not None:
                    decisions.append(decision)

        if not decisions:
            raise approvals.build_waiting(self._target, run_id, pending)
        return tuple(decisions)

    async def stream(
        self, run_id: str, decisions: tuple[Ruling, ...]
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events after the decisions; none if the run still waits."""
        operations = self._target.operations
        with self._asking_again(decisions):
            request = ContinueRequest(decisions)
            events = operations.runs.stream_continued(*self._component, run_id, request)
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event

    async def continue_run(self, run_id: str, decisions: tuple[Ruling, ...]) -> Document[RunRecord]:
        """Return the record of the run after its next leg, or of the run that still waits."""
        operations = self._target.operations
        with self._asking_again(decisions):
            return await operations.runs.continue_run(
                *self._component, run_id, ContinueRequest(decisions)
            )
        # The decisions were not accepted.
        return await operations.runs.get_of_component(*self._component, run_id)

    @contextlib.contextmanager
    def _asking_again(self, decisions: Sequence[Ruling]) -> Iterator[None]:
        """Note a refusal of the decisions, and forget that their approvals were asked about."""
        try:
            yield
        except ValidationFailed as failure:
            note(f"not accepted: {failure.detail}")
            self._asked_ids -= {ruling.approval_id for ruling in decisions if ruling.approval_id}


def _ask_about(approval: Mapping[str, Any]) -> Ruling | None:
    """Show a call and ask about it; return None for a later decision."""
    approvals.show_call(approval)

    if approval["kind"] == "approval":
        return _ask_about_call(approval)

    if approval["kind"] == "input":
        note("Ctrl-D at the beginning of a line: later")
        try:
            value = approvals.ask_value("answer", approval.get("schema"))
        except ConfirmationDeclined:
            return None
        return build_ruling(approval, "answer", value)

    if approval["kind"] == "external":
        text = ask(f"result of {approval['tool_name']}, JSON or text (empty: later): ")
        if text:
            return build_ruling(approval, "complete", approvals.parse_value(text, None))

    # An unknown outcome has too many consequences for a question between two answers.
    return None


def _ask_about_call(approval: Mapping[str, Any]) -> Ruling | None:
    """Ask if a call is made, with edited arguments if the user wants; None for later."""
    edited_arguments: Mapping[str, Any] | None = None
    while True:
        match (ask(_CHOICES) or "later").lower():
            case "y" | "yes":
                arguments = None if edited_arguments is None else dict(edited_arguments)
                return build_ruling(approval, "approve", arguments)
            case "n" | "no":
                note_text = ask("Note for the agent (empty: none): ") or None
                return build_ruling(approval, "reject", note=note_text)
            case "e" | "edit":
                present_arguments = edited_arguments
                if present_arguments is None:
                    present_arguments = approval["arguments"]
                schema = approval.get("schema")

                try:
                    answer = approvals.ask_value("arguments", schema, present_arguments)
                except ConfirmationDeclined:
                    continue
                if not isinstance(answer, Mapping):
                    note("the arguments are a JSON object")
                    continue

                edited_arguments = answer
                approvals.show_call(approval, edited_arguments)
            case "l" | "later":
                return None
