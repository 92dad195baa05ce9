"""The states and sockets of a service manager, read and sent by the server and by libsystemd."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentctl.errors import UsageError
from agentctl.server.processes.service_manager import ServiceManager, take_socket
from tests.differential.comparison import LONG, Comparison, Outcome
from tests.differential.libsystemd import MISSING, Libsystemd, load_libsystemd

pytestmark = pytest.mark.skipif(load_libsystemd() is None, reason=MISSING)

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
PASSED = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
FIRST = 3

NO_NUMBERS = ("", "0", "-5", "5s", "\u0663", "\u00b2", "1.5", "18446744073709551616", "9" * 400)
NUMBERS = (*NO_NUMBERS, "1", "30000000", "9999999999999999999")
LAX_NUMBERS = ("+5", " 7", "012", "0x1e")
"""Numbers that libsystemd reads as those of C."""

RULES = {"a lax number": "sd_watchdog_enabled(3): systemd writes decimal digits"}


class Receiver:
    """A datagram socket for states, at a path or at an abstract name."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "notify \u00e9.sock")
        self.abstract = f"@agentctl-{os.getpid()}-{folder.name}"
        self._sockets = []
        for name in (self.path, f"\0{self.abstract[1:]}"):
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            receiver.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            receiver.bind(name)
            receiver.setblocking(False)
            self._sockets.append(receiver)

    def take(self) -> list[tuple[int, bytes, int]]:
        """Return the receiving socket, the bytes and the process of each datagram."""
        found = []
        for number, receiver in enumerate(self._sockets):
            while True:
                try:
                    data, extra, *_ = receiver.recvmsg(65_536, socket.CMSG_SPACE(12))
                except BlockingIOError:
                    break
                ((_, _, credentials),) = extra
                found.append((number, data, struct.unpack("iii", credentials)[0]))
        return found

    def close(self) -> None:
        for receiver in self._sockets:
            receiver.close()


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    opened = Receiver(tmp_path)
    yield opened
    opened.close()


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def set_environment(values: dict[str, str | None], names: tuple[str, ...]) -> None:
    for name in names:
        os.environ.pop(name, None)
        if (value := values.get(name)) is not None:
            os.environ[name] = value


def list_left(names: tuple[str, ...]) -> list[str]:
    """Return the variables that a child process would get, which C functions may have changed."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return [name for name in names if getenv(name.encode()) is not None]


def pick_states(chance: Random) -> list[str]:
    texts = ["READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=\u00e4 \U0001f600", "X=" + "y" * 3000]
    return [chance.choice(texts) for _ in range(chance.randrange(1, 4))]


def list_addresses(receiver: Receiver, folder: Path) -> tuple[str | None, ...]:
    """Return addresses that states arrive at, and those that nothing can be sent to."""
    return (
        None,
        "",
        "@",
        receiver.path,
        receiver.abstract,
        receiver.path,
        receiver.abstract,
        str(folder / "absent"),
        str(folder),
        "/" + "x" * 200,
        "@" + "x" * 200,
    )


def pick_variables(
    chance: Random, addresses: tuple[str | None, ...], number: str
) -> dict[str, str | None]:
    return {
        "NOTIFY_SOCKET": chance.choice(addresses),
        "WATCHDOG_USEC": chance.choice((None, number)),
        "WATCHDOG_PID": chance.choice((None, str(os.getpid()), "1", "", "x")),
    }


def notify(values: dict[str, str | None], states: list[str]) -> float | None:
    """Send states as the server does; return the seconds of the watchdog."""
    set_environment(values, VARIABLES)
    manager = ServiceManager.from_environment()
    manager.notify(*states)
    assert list_left(VARIABLES) == []
    return manager.watchdog_seconds


def notify_with_libsystemd(
    library: Libsystemd, values: dict[str, str | None], states: list[str]
) -> float | None:
    set_environment(values, VARIABLES)
    microseconds = library.read_watchdog()
    library.notify("\n".join(states).encode())
    assert list_left(VARIABLES) == []
    return microseconds and microseconds / 1e6


def test_states_arrive_as_those_of_libsystemd(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    library = Libsystemd()
    addresses = list_addresses(receiver, tmp_path)
    with Comparison("service manager: states", stricter=RULES) as comparison:
        gc.collect()  # Earlier tests may have left files that a collection closes.
        before = count_descriptors()
        chance = comparison.chance
        for _ in comparison.rounds(400):
            number = chance.choice((*NUMBERS, *LAX_NUMBERS, str(chance.randrange(10**12))))
            values = pick_variables(chance, addresses, number)
            states = pick_states(chance)

            own_seconds = notify(values, states)
            own = receiver.take()
            library_seconds = notify_with_libsystemd(library, values, states)
            comparison.compare((values, states), Outcome(own), Outcome(receiver.take()))
            comparison.compare(values, refuse(own_seconds, number), refuse(library_seconds, number))
        assert count_descriptors() == before


def refuse(seconds: float | None, number: str) -> Outcome:
    if seconds is None:
        kind = "a lax number" if number in LAX_NUMBERS else number
        return Outcome(refusal=kind or "empty")
    return Outcome(seconds)


def compare_passed_sockets(count: int) -> Iterator[dict[str, Any]]:
    """Take random passed sockets as descriptor 3, by both sides, in a separate process."""
    chance = Random(int(os.environ["AGENTCTL_TEST_SEED"]))
    library = Libsystemd()
    for _ in range(count):
        kinds = (
            (socket.AF_INET, socket.SOCK_STREAM, True),
            (socket.AF_INET6, socket.SOCK_STREAM, True),
            (socket.AF_INET, socket.SOCK_STREAM, True),
            (socket.AF_INET, socket.SOCK_STREAM, False),
            (socket.AF_INET, socket.SOCK_DGRAM, False),
            (socket.AF_UNIX, socket.SOCK_STREAM, True),
        )
        family, kind, listens = chance.choice(kinds)
        values: dict[str, str | None] = {
            "LISTEN_PID": chance.choice((None, *3 * (str(os.getpid()),), "1", "", "x")),
            "LISTEN_FDS": chance.choice((None, "1", "1", "1", "2", *NO_NUMBERS)),
            "LISTEN_FDNAMES": chance.choice((None, "agentctl.socket")),
        }
        with socket.socket(family, kind) as passed:
            if listens:
                # Linux gives an unnamed socket an address.
                if family == socket.AF_UNIX:
                    passed.bind("")
                passed.listen()
            outcomes = []
            for take in (take_own, lambda: take_by_library(library)):
                os.dup2(passed.fileno(), FIRST, inheritable=True)
                set_environment(values, PASSED)
                outcome = take()
                outcomes.append([outcome, list_left(PASSED)])
        yield {"exchange": [str(family), str(kind), listens, values], "outcomes": outcomes}


def take_own() -> str | None:
    try:
        taken = take_socket.__wrapped__()
    except UsageError as error:
        return "several" if "sockets" in error.detail else "no TCP listener"
    if taken is None:
        return None
    found = f"{taken.fileno()}, inheritable {os.get_inheritable(taken.fileno())}"
    taken.detach()
    return found


def take_by_library(library: Libsystemd) -> str | None:
    if not (count := library.count_passed()):
        return None
    if count > 1:
        return "several"
    if not library.is_tcp_listener(FIRST):
        return "no TCP listener"
    return f"{FIRST}, inheritable {os.get_inheritable(FIRST)}"


def test_passed_sockets_are_those_of_libsystemd() -> None:
    with Comparison("service manager: sockets") as comparison:
        seed = str(comparison.chance.randrange(10**6))
        count = 20_000 if LONG else 500
        # Descriptor 3 of this process belongs to others.
        done = subprocess.run(
            [sys.executable, "-m", "tests.differential.test_service_manager", str(count)],
            env=os.environ | {"AGENTCTL_TEST_SEED": seed},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
        )
        for line in done.stdout.splitlines():
            found = json.loads(line)
            own, library = found["outcomes"]
            comparison.compare(found["exchange"], Outcome(own), Outcome(library))
        assert comparison.exchanges == count


if __name__ == "__main__":
    # Take the number of the passed descriptor, so that nothing else gets it.
    os.dup2(sys.stdin.fileno(), FIRST)
    for compared in compare_passed_sockets(int(sys.argv[1])):
        print(json.dumps(compared))
