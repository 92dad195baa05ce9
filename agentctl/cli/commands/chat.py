"""`agentctl chat`: a conversation at a terminal; off a terminal each line of stdin is a message."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.commands.runs.start import build_start, choose_stream, show_new_run
from agentctl.cli.io import current_io
from agentctl.cli.options import ComponentChoice, SessionOption, TeamId, WorkflowId
from agentctl.cli.parameters import argument, complete_values
from agentctl.cli.report import report_error
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.terminal import may_ask, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import (
    Conflict,
    RunFailed,
    TooManyRequests,
    Unavailable,
    UsageError,
    ValidationFailed,
    WaitsForDecision,
)
from agentctl.interface.requests import RunRequest
from agentctl.records.text import new_id

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from agentctl.records.kinds import ComponentRef

EXAMPLE = "agentctl chat assistant --session s1"

_HELP = "/new begins another session, /session names it, /exit or Ctrl-D ends; Ctrl-C stops a run"

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

    Each line is a message. Ctrl-C stops the run; a second Ctrl-C ends the command. Approvals are
    asked in the conversation. /help lists the commands. Without a terminal, each line of stdin is a
    message, and the first error ends the command.
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
    """Run one turn of the conversation and show it.

    Raises:
        AgentctlError: the conversation cannot go on.
        CancelledError: Ctrl-C was typed twice, or off a terminal.
    """
    new = replace(build_start(target, component, request), is_brief=True)
    if not may_ask():
        await show_new_run(target, new, out, stream=True)
        return

    async def show() -> None:
        try:
            await show_new_run(target, new, out, stream=True)
        except KeyboardInterrupt:  # at a question; the run is cancelled
            raise asyncio.CancelledError from None
        except _GOES_ON as failure:
            report_error(failure)

    turn = asyncio.create_task(show())
    with _stopping(turn):
        await asyncio.wait({turn})
    if not turn.cancelled():
        turn.result()


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
