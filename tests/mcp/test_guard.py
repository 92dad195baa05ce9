"""The guard of the program of an MCP server: the lines that pass, and the end of the processes."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from agentctl.runtime.mcp.guard import (
    LOGGED_BYTES,
    MAXIMUM_DEPTH,
    START,
    Bounds,
    Refusal,
    check,
    find_id,
    is_id,
    read_lines,
)
from tests.differential.comparison import LONG, SEED
from tests.kit.conditions import PATIENCE, wait_for, wait_until
from tests.mcp.hosting import host, stdio_spec

ROOT = Path(__file__).parents[2]
LIMIT = 100_000
MESSAGES = 20_000 if LONG else 1_000

TEXTS = ("", "x", "é", "\u2028", "\x85", "\r", "\t", '"', "\\", "\U0001f600", "a\nb", "v" * 900)
VALUES = (None, True, 0, -1.5, 1e300, "", "2.0", [], {}, [1], {"code": 1}, {"id": 3})

HOST = """
import asyncio, sys
from tests.mcp.hosting import host, stdio_spec

async def main():
    async with host(stdio_spec("--stubborn")) as hosted:
        print(await hosted.text("pid"), await hosted.text("child"), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
"""A process with a program that ignores the end of its stdin and SIGTERM, and with its child."""


def build_message(chance: Random, number: int) -> dict[str, Any]:
    """Return a request, a notification, a result or an error, with random values."""
    values: dict[str, Any] = {str(key): chance.choice(TEXTS) for key in range(chance.randrange(4))}
    values["nested"] = [dict(values), json.dumps(values)]
    kinds: tuple[dict[str, Any], ...] = (
        {"id": number, "method": "ask", "params": values},
        {"method": "notifications/note", "params": values},
        {"id": number, "result": values},
        {"id": number, "error": {"code": -32_000 - number % 99, "message": "no", "data": values}},
    )
    members = [("jsonrpc", "2.0"), *chance.choice(kinds).items()]
    chance.shuffle(members)
    return dict(members)


def change_message(chance: Random, message: dict[str, Any]) -> dict[str, Any]:
    """Return the message with a member that is missing, wrong or added."""
    changed = dict(message)
    name = chance.choice((*message, "jsonrpc", "id", "result", "error", "other"))
    if chance.random() < 0.3:
        changed.pop(name, None)
    else:
        changed[name] = chance.choice(VALUES)
    return changed


def parse(text: bytes) -> Any:
    return jsonrpc_message_adapter.validate_json(text, by_name=False)


def test_valid_messages_pass_as_they_are() -> None:
    chance = Random(SEED)
    for number in range(MESSAGES):
        message = build_message(chance, number)
        text = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode()
        ending = chance.choice((b"\n", b"\r\n", b" \n"))
        source = io.BytesIO(b" " + text + ending)
        assert [check(*line, LIMIT) for line in read_lines(source, LIMIT)] == [text]


def test_result_that_passes_is_one_that_the_library_accepts() -> None:
    """A response that the library refuses would leave its call open until the time limit."""
    chance = Random(SEED)
    kinds = Counter[str]()
    for number in range(MESSAGES):
        message = change_message(chance, build_message(chance, number))
        if "method" not in message:
            kinds[check_answer(message)] += 1
    assert min(kinds[kind] for kind in ("passed", "refused", "dropped")) > MESSAGES // 50


def check_answer(message: dict[str, Any]) -> str:
    """Check an answer, and return what became of it."""
    passed = b""
    answer = b""
    try:
        passed = check(json.dumps(message).encode(), b"", LIMIT) or b""
    except Refusal as refusal:
        answer = refusal.answer or b""

    if passed:
        assert isinstance(parse(passed), JSONRPCResponse | JSONRPCError)
        return "passed"
    if answer:
        assert parse(answer).id == message["id"]
        return "refused"
    assert "jsonrpc" not in message or not is_id(message.get("id"))
    return "dropped"


@pytest.mark.parametrize("text", [b"", b"starting", b"[1, 2]", b"{", b"\xff\xfe", b"{}"])
def test_other_text_is_no_message(text: bytes) -> None:
    assert check(text, b"", LIMIT) is None


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (b'{"a":' * 50_000 + b"1" + b"}" * 50_000, "the result is not a readable message"),
        (b'{"a":' * MAXIMUM_DEPTH + b"1" + b"}" * MAXIMUM_DEPTH, "the result is not a readable"),
        (b'{"a":[' + b"[]," * 200_000 + b"[]]}", "the result has too many values"),
        (b'{"a":"\xff"}', "the result is not a readable message"),
        (b'{"a":1', "the result is not a readable message"),
        (b"7", "the result is not a readable message"),
    ],
    ids=["deep", "just too deep", "values", "not UTF-8", "cut", "no object"],
)
def test_unusable_result_becomes_an_error_of_its_request(result: bytes, reason: str) -> None:
    text = b'{"jsonrpc":"2.0","id":7,"result":%b}\n' % result
    with pytest.raises(Refusal, match=reason) as refusal:
        check(text, b"", LIMIT)
    answer = parse(refusal.value.answer or b"")
    assert (answer.id, answer.error.message) == (7, str(refusal.value))


def test_surrogates_are_replaced_and_pairs_joined() -> None:
    text = rb'{"jsonrpc":"2.0","id":7,"result":{"a":"\ud83d","b":"\ud83d\ude00"}}'
    passed = check(text, b"", LIMIT)
    assert parse(passed or b"").result == {"a": "\ufffd", "b": "\U0001f600"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "result": {', 7),
        (b'{"id":7,"jsonrpc":"2.0","result":{', 7),
        (b'{"jsonrpc":"2.0","result":{"id":3},"id":7}\n', 7),
        (b'{"result":{"id":3},"id":7,"jsonrpc":"2.0"}', 7),
        (b'{"jsonrpc":"2.0","result":{"a":1,"id":3}}', None),
        (b'{"jsonrpc":"2.0","result":{"id":3,"a":1}}', None),
        (b'{"jsonrpc":"2.0","id":7,"method":"ask","params":{', None),
        (b"x", None),
    ],
)
def test_id_of_a_long_result_is_its_first_or_last_member(text: bytes, found: int | None) -> None:
    assert find_id(text, text) == found


@pytest.mark.parametrize("size", [9, 10, 11, 100_000, 1_000_000])
def test_line_over_the_limit_is_cut_and_read_to_its_end(size: int) -> None:
    data = b"<" + b"x" * (size - 2) + b">"
    (text, tail), following = read_lines(io.BytesIO(data + b"\nnext\n"), 10)
    assert following == (b"next", b"")
    if size <= 10:
        assert (text, tail) == (data, b"")
    else:
        assert len(text) <= LOGGED_BYTES
        assert tail.endswith(b">\n")


def is_running(process_id: int) -> bool:
    """Return True if a process exists and is not a zombie."""
    try:
        state = Path(f"/proc/{process_id}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"


def find_parent(process_id: int) -> int:
    stat = Path(f"/proc/{process_id}/stat").read_bytes()
    return int(stat.rpartition(b")")[2].split()[1])


def test_stubborn_program_and_its_child_end_when_agentctl_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True
    ) as hosting:
        assert hosting.stdout is not None
        processes = [int(each) for each in hosting.stdout.readline().split()]
        guard = find_parent(processes[0])
        assert find_parent(guard) == hosting.pid
        assert all(map(is_running, processes))
        hosting.kill()
    wait_for(lambda: not any(map(is_running, (*processes, guard))))


async def test_program_ends_with_its_guard_and_is_replaced() -> None:
    async with host(stdio_spec("--stubborn")) as hosted:
        processes = [int(await hosted.text(name)) for name in ("pid", "child")]
        os.kill(find_parent(processes[0]), signal.SIGKILL)
        await wait_until(lambda: not any(map(is_running, processes)))
        assert await hosted.text("echo", text="again") == "again"
        assert hosted.server.counters.failures == 1


def test_program_gets_no_variable_of_the_guard() -> None:
    """Python adds LC_CTYPE to the environment of an interpreter without a locale."""
    bounds = json.dumps(Bounds(LIMIT, PATIENCE, PATIENCE, ("PATH", "GIVEN"))._asdict())
    message = '{"jsonrpc":"2.0","method":"x","params":{"variables":"$GIVEN$LC_CTYPE"}}'
    program = ["sh", "-c", f"cat <<END\n{message}\nEND"]
    guard = subprocess.run(
        [sys.executable, "-I", "-S", "-c", START, str(ROOT), bounds, *program],
        env={"PATH": os.environ["PATH"], "GIVEN": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        start_new_session=True,
        timeout=PATIENCE,
    )
    assert parse(guard.stdout).params == {"variables": "1"}
    assert guard.stderr.splitlines()[1:] == [b"ended its program ended with code 0"]
