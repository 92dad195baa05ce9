"""libsystemd, the library of systemd for services, by ctypes: it needs no compiler."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache

MISSING = "needs libsystemd: apt install libsystemd0"

_LISTENING = 1
_STREAM = 1
_ANY_PORT = 0


@cache
def load_libsystemd() -> ctypes.CDLL | None:
    """Return the library of this machine; None without one."""
    name = ctypes.util.find_library("systemd")
    return None if name is None else ctypes.CDLL(name)


class Libsystemd:
    """The functions of libsystemd that the server implements, with their variables.

    Each removes its variables from the environment, as `unset_environment` of the library does.
    """

    def __init__(self) -> None:
        library = load_libsystemd()
        assert library is not None
        self._library = library

    def notify(self, text: bytes, *, keep: bool = False) -> int:
        """Send states; return a positive number if they were sent."""
        return int(self._library.sd_notify(int(not keep), text))

    def read_watchdog(self) -> int | None:
        """Return the microseconds of the watchdog of this process; None without one."""
        microseconds = ctypes.c_uint64()
        enabled = self._library.sd_watchdog_enabled(1, ctypes.byref(microseconds))
        return microseconds.value if enabled > 0 else None

    def count_passed(self) -> int:
        """Return the number of passed descriptors; an error of the variables counts as none."""
        return max(int(self._library.sd_listen_fds(1)), 0)

    def is_tcp_listener(self, descriptor: int) -> bool:
        found = self._library.sd_is_socket_inet(
            descriptor, 0, _STREAM, _LISTENING, ctypes.c_uint16(_ANY_PORT)
        )
        return bool(found > 0)
