"""The transports of MCP next to those of the `mcp` library.

`python -m tests.benchmarks.reasons.mcp_transports` prints the CPU milliseconds to receive a message
of a program, the median of the rounds, and what one broken line or request does to the other calls
of its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import httpx2
from mcp import types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage

from agentctl.runtime.mcp.http import McpHttpClient
from agentctl.runtime.mcp.stdio import Program, build_environment, run_program
from tests.mcp.http_server import serve_http

ROUNDS = 5
CALLS = 200
OTHERS = 9
LIMIT = 100_000_000
SIZES = {100: 2_000, 1_000_000: 5, 16_000_000: 1}
"""Bytes of a message, and how many a program sends."""

SENDER = """
import sys
for _ in range(int(sys.argv[1])):
    text = "x" * int(sys.argv[2])
    sys.stdout.write('{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}\\n' % text)
sys.stdout.flush()
sys.stdin.read()
"""
BROKEN = """
import sys
sys.stdout.buffer.write(b'caf\\xe9\\n{"jsonrpc":"2.0","method":"after"}\\n')
sys.stdout.buffer.flush()
sys.stdin.read()
"""


def open_own(*line: str) -> Any:
    program = Program("p", line, build_environment({}), Path.cwd(), (), LIMIT)
    return run_program(program, lambda *_: None)


def open_library(*line: str) -> Any:
    return stdio_client(StdioServerParameters(command=line[0], args=list(line[1:])))


async def receive(open_program: Callable[..., Any], count: int, size: int) -> float:
    """Return the CPU milliseconds to receive a message."""
    start = time.process_time()
    async with open_program(sys.executable, "-c", SENDER, str(count), str(size)) as (read, _):
        for _ in range(count):
            await read.receive()
        return (time.process_time() - start) * 1_000 / count


async def receive_broken(open_program: Callable[..., Any]) -> bool:
    """Return whether the message after a line that is not UTF-8 arrives."""
    arrived = False
    with contextlib.suppress(BaseExceptionGroup, Exception):
        async with open_program(sys.executable, "-c", BROKEN) as (read, _), asyncio.timeout(10):
            while not arrived:
                arrived = isinstance(await read.receive(), SessionMessage)
    return arrived


def build_request(number: int, method: str, **params: Any) -> SessionMessage:
    request = types.JSONRPCRequest(jsonrpc="2.0", id=number, method=method, params=params)
    return SessionMessage(request)


async def call(build_client: Callable[[], httpx2.AsyncClient]) -> tuple[float, int]:
    """Return the CPU milliseconds of a call, and the calls that survive one that is reset."""
    survived = 0
    cost = 0.0
    with serve_http() as state, contextlib.suppress(BaseExceptionGroup, TimeoutError):
        async with (
            asyncio.timeout(30),
            build_client() as client,
            streamable_http_client(state.url, http_client=client) as (read, write),
        ):
            version = {"protocolVersion": "2025-06-18"}
            await write.send(build_request(1, "initialize", **version))
            await read.receive()
            start = time.thread_time()
            for number in range(CALLS):
                await write.send(build_request(number, "tools/call", name="who"))
                await read.receive()
            cost = (time.thread_time() - start) * 1_000 / CALLS
            for number in range(OTHERS):
                await write.send(build_request(number, "tools/call", name="hang"))
            while state.methods.count("tools/call") < CALLS + OTHERS:
                await asyncio.sleep(0.01)
            await write.send(build_request(OTHERS, "tools/call", name="reset"))
            with contextlib.suppress(Exception):
                while not isinstance((await read.receive()).message, types.JSONRPCError):
                    pass
            state.released.set()
            for _ in range(OTHERS):
                await read.receive()
                survived += 1
    return cost, survived


async def main() -> None:
    """Print a line for each comparison."""
    for size, count in SIZES.items():
        both = [
            median([await receive(side, count, size) for _ in range(ROUNDS)])
            for side in (open_own, open_library)
        ]
        figures = f"own {both[0]:.3f} ms, library {both[1]:.3f} ms, ratio {both[1] / both[0]:.1f}"
        print(f"a message of {size:,} bytes over stdio: {figures}")
    for name, side in (("own", open_own), ("library", open_library)):
        arrived = await receive_broken(side)
        print(f"{name}: a message after a line that is not UTF-8 arrives: {arrived}")
    clients = (lambda: McpHttpClient({}, LIMIT, lambda _: None), create_mcp_http_client)
    calls = [[await call(build) for _ in range(ROUNDS)] for build in clients]
    for name, rounds in zip(("own", "library"), calls, strict=True):
        cost = median(each for each, _ in rounds)
        survived = [number for _, number in rounds]
        print(f"{name}: an HTTP call {cost:.2f} ms; of {OTHERS} calls next to a reset: {survived}")


if __name__ == "__main__":
    logging.disable()
    asyncio.run(main())
