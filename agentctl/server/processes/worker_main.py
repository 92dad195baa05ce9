"""The program of a worker process: `python -m agentctl.server.processes.worker_main`.

Its arguments are three file descriptors: the listening socket, the channel to the supervisor
and the channel for metrics (`metrics_endpoint`); and the application of a user,
if there is one. The end of the channel means that the supervisor has died: the worker drains and
ends as well.

The channel has lines. The supervisor sends the settings, once, and later `DRAIN`, `LEAVE`,
`GIVE_WAY`, `PROCEED` and `END`. A worker sends JSON objects: `{"ready": true}` when it accepts
requests, `{"stopping": runs}` when it starts to drain, `{"waiting": true}` at the end of a step of
the shutdown that all workers do together, and `{"failed": {...}}` with the error that ends it. Both
sides detect the end of the other process by the end of the channel (decision 18).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from agentctl import errors
from agentctl.config.tables import settings_from_text
from agentctl.server.processes.listener import adopt_socket
from agentctl.server.processes.metrics_endpoint import answer_metrics_requests
from agentctl.telemetry.log import log_to_stderr
from agentctl.work.event_loop import finish_process
from agentctl.work.lost_output import drop_lost_writes

if TYPE_CHECKING:
    from agentctl.server.processes.serve import DrainingServer

DRAIN = b"drain"
"""Accept no new runs, wait for live runs, then end."""

LEAVE = b"leave"
"""Accept no new connections, serve the clients of open connections, then as `DRAIN`."""

GIVE_WAY = b"give way"
"""Accept no new connections, then as `DRAIN`: another process has taken the place of this one."""

PROCEED = b"proceed"
"""All workers that stop have done this step."""

END = b"end"
"""Cancel live runs, and end."""

_ERROR_CLASSES: dict[str, type[errors.AgentctlError]] = {
    kind.__name__: kind
    for kind in (
        errors.InvalidConfiguration,
        errors.InvalidKey,
        errors.SchemaMismatch,
        errors.Unavailable,
        errors.UsageError,
    )
}
"""Errors that prevent a start; any other error is a bug of agentctl."""


def error_to_message(error: Exception) -> dict[str, Any]:
    """Return the message of an error; of an unexpected exception only the name of its class."""
    # Its text may have a secret.
    if not isinstance(error, errors.AgentctlError):
        name = type(error).__name__
        hint = "this is a bug in agentctl: please report it with the command that you ran"
        error = errors.InternalError(f"internal failure ({name})", hint=hint)

    return {
        "kind": type(error).__name__,
        "detail": error.detail,
        "cause": error.cause,
        "hint": error.hint,
    }


def error_from_message(message: dict[str, Any]) -> errors.AgentctlError:
    """Return the error that a worker sent, for the supervisor to raise."""
    kind = _ERROR_CLASSES.get(message["kind"], errors.AgentctlError)
    return kind(message["detail"], cause=message["cause"], hint=message["hint"])


_RECEIVE_BYTES = 65_536


def main() -> int:
    """Serve until the supervisor or a signal stops the worker; return the exit code."""
    listener, control, metrics = (adopt_socket(int(number)) for number in sys.argv[1:4])
    with listener, control, metrics:
        supervisor = _SupervisorChannel(control, metrics)
        text = supervisor.read_line()
        if text is None:
            return 1

        supervisor.end_if_it_dies_before_the_start()
        settings = settings_from_text(text.decode())
        log_to_stderr(settings.log, with_process_id=True)
        try:
            # Imported here, so that an error of the import is sent, too.
            from agentctl.server.processes.serve import serve_on_socket

            serve_on_socket(listener, settings, supervisor, *sys.argv[4:])
        except Exception as error:
            supervisor.send(failed=error_to_message(error))
            return 1
    return 0


class _SupervisorChannel:
    """The worker's end of the channel to the supervisor: the controller of its server."""

    def __init__(self, ours: socket.socket, metrics: socket.socket) -> None:
        self._socket = ours
        self._metrics = metrics
        self._unread = b""
        self._supervisor_died = False
        self._has_started = threading.Event()
        self._may_proceed = asyncio.Event()

    def read_line(self) -> bytes | None:
        """Wait for a complete line; return None if the supervisor has died."""
        while b"\n" not in self._unread:
            if not self._receive():
                return None
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def send(self, **message: Any) -> None:
        """Send one object; it is lost if the supervisor has died."""
        with contextlib.suppress(OSError):
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def end_if_it_dies_before_the_start(self) -> None:
        """End this process if the supervisor dies before `started`: the port is then free at once.

        The event loop reads the channel, but does not run while agents in code are imported.
        """

        def watch() -> None:
            poll = select.poll()
            # Without events, only the end of the channel is reported.
            poll.register(self._socket, 0)
            while not self._has_started.is_set():
                if poll.poll(200) and not self._has_started.is_set():
                    os._exit(1)

        threading.Thread(target=watch, name="supervisor", daemon=True).start()

    def started(self) -> None:
        self._has_started.set()
        self.send(ready=True)

    def stopping(self, runs: int) -> None:
        self.send(stopping=runs)

    def publish_metrics(self, text: Callable[[int], str]) -> AbstractAsyncContextManager[None]:
        return answer_metrics_requests(self._metrics, text)

    async def wait_for_others(self, seconds: float) -> None:
        self._may_proceed.clear()
        if self._supervisor_died:
            return
        self.send(waiting=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._may_proceed.wait()

    @contextlib.contextmanager
    def control(self, server: DrainingServer) -> Iterator[None]:
        """Execute the commands of the supervisor on the server while the block lasts."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket, self._execute_commands, server)
        try:
            yield
        finally:
            loop.remove_reader(self._socket)

    def _execute_commands(self, server: DrainingServer) -> None:
        if not self._receive():
            asyncio.get_running_loop().remove_reader(self._socket)
            self._supervisor_died = True
            self._may_proceed.set()
            server.leave()

        *lines, self._unread = self._unread.split(b"\n")
        commands: dict[bytes, Callable[[], object]] = {
            DRAIN: server.drain,
            LEAVE: server.leave,
            GIVE_WAY: server.give_way,
            PROCEED: self._may_proceed.set,
            END: server.end,
        }
        for line in lines:
            commands[line]()

    def _receive(self) -> bool:
        """Read what has arrived; return False at the end of the channel."""
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError:
            return False
        self._unread += data
        return bool(data)


if __name__ == "__main__":
    sys.stdout = drop_lost_writes(sys.stdout)
    sys.stderr = drop_lost_writes(sys.stderr)
    exit_code = main()
    finish_process(exit_code)
    sys.exit(exit_code)
