"""States for a service manager, sent by the server, by libsystemd and by packages around it.

`python -m tests.benchmarks.reasons.service_manager` needs libsystemd, and uses sdnotify and
cysystemd if they are installed. Printed are the microseconds of one state, the median of the
rounds; the seconds until the caller continues if the manager does not read its states; and whether
a state arrives after the manager has created its socket again.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from agentctl.server.processes.service_manager import ServiceManager
from tests.differential.libsystemd import Libsystemd

ROUNDS = 15
STATES = 2_000
PATIENCE = 5.0

Send = Callable[[], object]


def list_senders(address: str) -> Iterator[tuple[str, Callable[[], Send]]]:
    """Yield functions that return what sends a state."""
    manager = ServiceManager(address)
    yield "agentctl", lambda: lambda: manager.notify("WATCHDOG=1")
    yield "libsystemd", lambda: lambda: Libsystemd().notify(b"WATCHDOG=1", keep=True)
    try:
        from cysystemd.daemon import sd_notify  # type: ignore[import-not-found]

        yield "cysystemd", lambda: lambda: sd_notify("WATCHDOG=1", False)
    except ImportError:
        print("without cysystemd", file=sys.stderr)
    try:
        from sdnotify import SystemdNotifier  # type: ignore[import-not-found]
    except ImportError:
        print("without sdnotify", file=sys.stderr)
        return

    def connect() -> Send:
        notifier = SystemdNotifier()
        return lambda: notifier.notify("WATCHDOG=1")

    yield "sdnotify", connect


def bind(address: str) -> socket.socket:
    Path(address).unlink(missing_ok=True)
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(address)
    receiver.setblocking(False)
    return receiver


def measure(send: Send, receiver: socket.socket) -> float:
    """Return the microseconds of a state that the manager reads."""
    rounds = []
    for _ in range(ROUNDS):
        took = 0.0
        for _ in range(STATES):
            began = time.perf_counter()
            send()
            took += time.perf_counter() - began
            assert receiver.recv(100) == b"WATCHDOG=1"
        rounds.append(took / STATES * 1e6)
    return median(rounds)


def measure_blocked(send: Send) -> str:
    """Return the seconds of one state while the queue of the manager is full."""
    fork = get_context("fork")
    ours, theirs = fork.Pipe()

    def fill() -> None:
        while True:
            began = time.perf_counter()
            send()
            theirs.send(time.perf_counter() - began)

    process = fork.Process(target=fill)
    process.start()
    slowest = 0.0
    until = time.monotonic() + PATIENCE
    while slowest < 0.1 and ours.poll(max(0.0, until - time.monotonic())):
        slowest = max(slowest, ours.recv())
    process.kill()
    process.join()
    return f"{slowest:.1f}" if slowest >= 0.1 else f"more than {PATIENCE:.0f}"


def arrives_again(connect: Callable[[], Send], address: str) -> bool:
    with bind(address):
        send = connect()
    with bind(address) as receiver:
        send()
        try:
            return bool(receiver.recv(100))
        except BlockingIOError:
            return False


def main() -> None:
    """Print the table."""
    print("| sender | us of a state | seconds, full queue | arrives at a new socket |")
    print("| --- | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as folder:
        address = os.environ["NOTIFY_SOCKET"] = str(Path(folder) / "notify")
        for name, connect in list_senders(address):
            with bind(address) as receiver:
                took = measure(connect(), receiver)
                blocked = measure_blocked(connect())
            again = arrives_again(connect, address)
            print(f"| {name} | {took:.1f} | {blocked} | {'yes' if again else 'no'} |")


if __name__ == "__main__":
    main()
