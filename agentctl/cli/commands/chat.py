"""`agentctl chat`: a conversation at a terminal; off a terminal each line of stdin is a message."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.commands.runs.start import RunStart, build_start, choose_stream, show_new_run
from agentctl.cli.io import current_io
from agentctl.cli.options import ComponentChoice, SessionOption, TeamId, WorkflowId
from agentctl.cli.parameters import argument, complete_values
from agentctl.cli.report import report_error
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.terminal import may_ask, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import (
    AgentctlError,
    Conflict,
    RunFailed,
    TooManyRequests,
    Unavailable,
    UsageError,
    ValidationFailed,
    WaitsForDecision,
)
from agentctl.interface.requests import MessageRequest, ResumeRequest, RunRequest
from agentctl.records.text import new_id

if TYPE_CHECKING:
    from types import FrameType

    from agentctl.interface.requests import StreamEvent
    from agentctl.records.kinds import ComponentRef
    from agentctl.records.run_messages import RunMessageRecord

EXAMPLE = "agentctl chat assistant --session s1"

_HELP = (
    "/new begins another session, /session names it, /exit or Ctrl-D ends; a line that is typed"
    " while a run works is a message to it; Ctrl-C stops a run"
)

_GOES_ON = (
    Conflict, RunFailed, TooManyRequests, Unavailable, ValidationFailed, WaitsForDecision,
)  # fmt: skip
"""Errors after which a person can send another message."""

AgentArgument = Annotated[
    str | None, argument("AGENT_ID", "Agent id", autocompletion=complete_values("agent"))
]


@with_target(create=True)
async def chat(
    target: Target,
    out: CommandOutput,
    agent_id: AgentArgument = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
) -> None:
    """Chat with an agent, team or workflow.

    Each line is a message. A line that you type while a run works is sent to that run: its next
    step reads the line, or it is answered next. Ctrl-C stops the run; a second Ctrl-C ends the
    command. Approvals are asked in the conversation. /help lists the commands. Without a terminal,
    each line of stdin is a message, and the first error ends the command.
    """
    component = ComponentChoice(agent_id, team, workflow).resolve()
    if component is None:
        raise UsageError("no component given", hint="give AGENT_ID, --team ID or --workflow ID")
    choose_stream(True, out, background=False)
    session_id = session or new_id()
    is_person = may_ask()
    if is_person:
        note(f"session {session_id}; /help lists the commands, Ctrl-D ends the conversation")

    while (message := await _read_message(is_person=is_person)) is not None:
        is_command = is_person and message.startswith("/") and " " not in message
        if is_command and message == "/exit":
            break
        if is_command:
            session_id = new_id() if message == "/new" else session_id
            note(f"session {session_id}" if message in ("/new", "/session") else _HELP)
        elif message:
            await _send(target, out, component, RunRequest(message, session_id))

    if is_person:
        name = component[1] if agent_id else f"--{component[0]} {component[1]}"
        note(f"continue with: {target.command(f'chat {name} --session {session_id}')}")


async def _read_message(*, is_person: bool) -> str | None:
    """Return the next line without surrounding white space; None at the end of the input."""
    io = current_io()
    if is_person:
        # A blocking read would delay signals, and the work of a local service.
        loop = asyncio.get_running_loop()
        is_readable = asyncio.Event()
        io.err.write("> ")
        io.err.flush()
        loop.add_reader(io.stdin.fileno(), is_readable.set)
        try:
            await is_readable.wait()
        finally:
            loop.remove_reader(io.stdin.fileno())

    line = io.stdin.readline()
    if is_person and not line.endswith("\n"):
        io.err.write("\n")
    return line.strip() if line else None


async def _send(
    target: Target, out: CommandOutput, component: ComponentRef, request: RunRequest
) -> None:
    """Run one turn of the conversation and show it, and the turns of messages to its run.

    Raises:
        AgentctlError: the conversation cannot go on.
        CancelledError: Ctrl-C was typed twice, or off a terminal.
    """
    new = replace(build_start(target, component, request), is_brief=True)
    if not may_ask():
        await show_new_run(target, new, out, stream=True)
        return

    turns = [new]
    while turns:
        typed = TypedMessages(target)
        await _show_turn(target, out, replace(turns.pop(0), on_started=typed.begin), typed)
        for message in await typed.read_next():
            note(f"answered next: {message['content']}")
            turns.append(_build_next_turn(target, new, message))


def _build_next_turn(target: Target, new: RunStart, message: RunMessageRecord) -> RunStart:
    """Return the turn of a message that became a run of the conversation."""
    request = ResumeRequest(message["session_id"])
    run_id = message["message_id"]

    def follow(_: object) -> AsyncIterator[StreamEvent]:
        return target.operations.runs.follow(*new.component, run_id, request)

    return replace(new, stream=follow)


async def _show_turn(
    target: Target, out: CommandOutput, new: RunStart, typed: TypedMessages
) -> None:
    """Show one run to its end, and send what is typed meanwhile to it."""

    async def show() -> None:
        try:
            await show_new_run(target, new, out, stream=True)
        except KeyboardInterrupt:  # at a question; the run is cancelled
            raise asyncio.CancelledError from None
        except _GOES_ON as failure:
            report_error(failure)

    turn = asyncio.create_task(show())
    with _stopping(turn), contextlib.closing(typed):
        await asyncio.wait({turn})
    if not turn.cancelled():
        turn.result()


class TypedMessages:
    """Sends the lines that a person types while a run works to that run."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._run_id: str | None = None
        self._sending = list[asyncio.Task[None]]()
        self._ids = list[str]()

    def begin(self, run_id: str) -> None:
        """Read lines from now on; called when the run has begun."""
        self._run_id = run_id
        asyncio.get_running_loop().add_reader(current_io().stdin.fileno(), self._read)

    def close(self) -> None:
        """Read no further line. Safe to repeat, and before `begin`."""
        if self._run_id is not None:
            asyncio.get_running_loop().remove_reader(current_io().stdin.fileno())

    def _read(self) -> None:
        # At a terminal a line that can be read is complete.
        line = current_io().stdin.readline()
        if not line:
            self.close()
        elif text := line.strip():
            self._sending.append(asyncio.create_task(self._send(text)))

    async def _send(self, text: str) -> None:
        assert self._run_id is not None
        try:
            request = MessageRequest(text, idempotency_key=new_id())
            message = (await self._target.operations.runs.send_message(self._run_id, request)).value
        except AgentctlError as failure:
            report_error(failure)
            return
        self._ids.append(message["message_id"])
        if message["status"] == "waiting":
            note("sent: the next step reads it")

    async def read_next(self) -> list[RunMessageRecord]:
        """Return the messages that became runs, and note those that were refused.

        Called after the end of the run. A message to a paused run waits with it.
        """
        if self._sending:
            await asyncio.wait(self._sending)
        if not self._ids or self._run_id is None:
            return []

        try:
            page = (await self._target.operations.runs.list_messages(self._run_id)).value
        except AgentctlError as failure:
            report_error(failure)
            return []
        own_messages = [each for each in page["messages"] if each["message_id"] in self._ids]
        for message in own_messages:
            if message["status"] == "refused":
                note(f"not read: {message['content']}: {message['reason']}")
        return [message for message in own_messages if message["status"] == "next_run"]


@contextlib.contextmanager
def _stopping(turn: asyncio.Task[None]) -> Iterator[None]:
    """Let Ctrl-C cancel a turn, and a second one end the command at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    loop = turn.get_loop()

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, leave)
        loop.call_soon_threadsafe(turn.cancel)

    def leave(number: int, frame: FrameType | None) -> None:
        # The handler of the event loop cancels the command, and then ends its wait.
        before(number, frame)
        before(number, frame)

    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
