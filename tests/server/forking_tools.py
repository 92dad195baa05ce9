"""Agents whose tools fork processes."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import httpx2

from tests.kit.process_states import is_alive

__all__ = ["FILES", "call_tool", "describe_agents", "surviving"]

TOOLS = '''
import ctypes
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

FORK = multiprocessing.get_context("fork")
POOLS = []


def keep_children() -> int:
    """Start a pool whose process stays."""
    POOLS.append(ProcessPoolExecutor(1, mp_context=FORK))
    return POOLS[-1].submit(os.getpid).result()


def fork_in_c() -> int:
    """Leave a child as a library in C may: nothing of Python acts in it before it waits."""
    system = ctypes.PyDLL(None)
    child = system.fork()
    while child == 0:
        system.pause()
    return child


def use_pool() -> int:
    """Use a pool and terminate it."""
    with FORK.Pool(3) as pool:
        return sum(pool.map(abs, [1, -2, 3]))
'''

NAMES = ("keep_children", "fork_in_c", "use_pool")

FILES = {"fork_tools.py": TOOLS}
"""The module of the tools, a file of the configuration's folder."""

AGENT = """
[[models]]
id = "{name}"
provider = "openai"
model = "tool:{name}"
base_url = "{url}"

[[agents]]
id = "{name}"
model = "{name}"
tools = ["fork_tools:{name}"]
"""


def describe_agents(url: str) -> str:
    """Return the tables of an agent for each tool.

    Args:
        url: the `base_url` of their models.
    """
    return "".join(AGENT.format(name=name, url=url) for name in NAMES)


def call_tool(client: httpx2.Client, name: str) -> int:
    """Run the agent of a tool; return the number that the tool returned."""
    answer = client.post(f"/agents/{name}/runs", json={"message": "{}", "stream": False})
    run = answer.json()
    assert run["status"] == "COMPLETED", run
    return int(run["tools"][0]["result"])


@contextlib.contextmanager
def surviving(pid: int) -> Iterator[None]:
    """End a process that must be alive until the end of the block."""
    try:
        yield
        assert is_alive(pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
