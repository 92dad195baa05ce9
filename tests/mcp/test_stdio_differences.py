"""The transport of stdio servers compared with that of the `mcp` library.

One program speaks with both: it writes random messages, cut into random pieces, between lines
without a message, and returns each line that it reads. Decision 42 has the differences: bounds, and
lines without a message, which the library reports as exceptions.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import sys
from pathlib import Path
from typing import Any

from mcp import types
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage

from agentctl.runtime.mcp.stdio import Program, build_environment, run_program
from tests.conditions import PATIENCE
from tests.differential.comparison import LONG, SEED, report

MESSAGES = 5_000 if LONG else 200
ECHOES = 20

PROGRAM = """
import base64, json, sys, time
for piece in json.loads(open(sys.argv[1]).read()):
    sys.stdout.buffer.write(base64.b64decode(piece))
    sys.stdout.buffer.flush()
    time.sleep(0.001)
for line in sys.stdin.buffer:
    params = {"line": base64.b64encode(line).decode()}
    text = json.dumps({"jsonrpc": "2.0", "method": "echo", "params": params})
    sys.stdout.buffer.write(text.encode() + b"\\n")
    sys.stdout.buffer.flush()
"""

TEXTS = ("", "x", "é", "\u2028", "\x85", "\r", "\t", '"', "\\", "\U0001f600", "a\nb", "v" * 900)
NOISE = (b"\n", b"starting\n", b"[1, 2]\n", b"  \n", b"{\n", b"null\n")


def build_message(chance: random.Random, number: int) -> dict[str, Any]:
    """Return a request, a notification, a result or an error, with random values."""
    values = {str(key): chance.choice(TEXTS) for key in range(chance.randrange(4))}
    values["nested"] = json.dumps(values)
    common = {"jsonrpc": "2.0"}
    kind = chance.randrange(4)
    if kind == 0:
        return common | {"id": number, "method": "ask", "params": values}
    if kind == 1:
        return common | {"method": "notifications/note", "params": values}
    if kind == 2:
        return common | {"id": number, "result": values}
    return common | {"id": number, "error": {"code": -32_000 - number % 99, "message": "no"}}


def write_plan(chance: random.Random, path: Path) -> list[dict[str, Any]]:
    """Write the pieces that the program writes; return their messages."""
    messages = [build_message(chance, number) for number in range(1, MESSAGES + 1)]
    parts = []
    for message in messages:
        if chance.random() < 0.1:
            parts.append(chance.choice(NOISE))
        text = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode()
        parts += [text, chance.choice((b"\n", b"\n", b"\r\n", b" \n"))]
    data = b"".join(parts)
    places = sorted(chance.randrange(len(data)) for _ in range(MESSAGES))
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, None], strict=True)]
    path.write_text(json.dumps([base64.b64encode(piece).decode() for piece in pieces]))
    return messages


async def converse(transport: Any, sent: list[Any]) -> list[Any]:
    """Return the messages of the program, as JSON, and then those that it returned."""
    received = []
    async with asyncio.timeout(PATIENCE * (1 + MESSAGES / 1_000)), transport as (read, write):
        while len(received) < MESSAGES:
            item = await read.receive()
            if isinstance(item, SessionMessage):
                received.append(item.message.model_dump(mode="json", exclude_unset=True))
        for message in sent:
            await write.send(SessionMessage(types.JSONRPCRequest(**message)))
            item = await read.receive()
            received.append(item.message.model_dump(mode="json", exclude_unset=True))
    return received


def test_messages_are_those_of_the_library(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    plan = tmp_path / "plan.json"
    messages = write_plan(chance, plan)
    params = [{"text": chance.choice(TEXTS)} for _ in range(ECHOES)]
    sent = [
        {"jsonrpc": "2.0", "id": number, "method": "ask", "params": each}
        for number, each in enumerate(params)
    ]
    command = (sys.executable, "-c", PROGRAM, str(plan))
    program = Program("peer", command, build_environment({}), tmp_path, (), 1_000_000)
    reference = StdioServerParameters(command=command[0], args=list(command[1:]), cwd=tmp_path)

    async def compare() -> None:
        ours = await converse(run_program(program, lambda *_: None), sent)
        theirs = await converse(stdio_client(reference), sent)
        assert ours[:MESSAGES] == theirs[:MESSAGES] == messages
        assert ours[MESSAGES:] == theirs[MESSAGES:]

    asyncio.run(compare())
    report("MCP over stdio", MESSAGES + ECHOES)
