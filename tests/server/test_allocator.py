"""The threads of a server share the arenas of the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.process import without_coverage

PROBE = """
import ctypes, sys, threading
from agentctl.server.processes.allocator import limit_arenas

limit_arenas()
barrier = threading.Barrier(8)

def allocate():
    barrier.wait()
    block = bytearray(100_000)
    barrier.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
file = library.fopen(sys.argv[1].encode(), b"w")
library.malloc_info(0, ctypes.c_void_p(file))
library.fclose(ctypes.c_void_p(file))
"""


def _count_arenas(folder: Path, **variables: str) -> int:
    report = folder / "arenas.xml"
    environment = without_coverage(os.environ) | variables
    command = [sys.executable, "-c", PROBE, str(report)]
    subprocess.run(command, env=environment, check=True, timeout=PATIENCE)
    return report.read_text().count("<heap nr=")


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="arenas are a part of glibc: none on this system",
)
def test_threads_share_two_arenas_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    assert _count_arenas(tmp_path) == 2
    assert _count_arenas(tmp_path, MALLOC_ARENA_MAX="5") == 5
