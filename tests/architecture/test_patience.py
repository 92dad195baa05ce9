"""Waits of tests time out after `PATIENCE` (tests/kit/conditions.py), not after other numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

MOVED = ("benchmarks/", "peers/")
"""Folders that measure, or that run programs of others."""

BOUNDS = {
    "conformance/hosted_tools.py STUBBORN_SECONDS": "the work of a tool",
    "conformance/interfaces.py CANCEL_SECONDS": "a value of a request",
    "console/test_costs.py IDLE_SECONDS": "a page without requests is idle",
    "kit/model_server.py TRICKLE_SECONDS": "a pause of the endpoint",
    "faults/history.py BASELINE_SECONDS": "a fault may cause an endless loop",
    "faults/history.py SECONDS": "the tests of a mend may be stuck",
    "faults/trials.py BASELINE_SECONDS": "the tests without a fault may be stuck",
    "faults/trials.py LONGEST_SECONDS": "a choice of tests",
    "faults/trials.py MINIMUM_SECONDS": "a fault may cause an endless loop",
    "faults/trials.py TEST_SECONDS": "a fault may cause an endless loop",
    "identity/short_tokens.py SECONDS": "the life of a token",
    "lab/clients.py REQUEST_SECONDS": "a client then asks another server",
    "lab/crashes.py BACK_SECONDS": "docs/internals/security-cases.md R19",
    "lab/crashes.py CALM_SECONDS": "a part of the load",
    "lab/crashes.py LOST_SECONDS": "the length of a disturbance",
    "lab/failures/tools.py TIMEOUT": "a setting of a library of agents",
    "lab/failures/world.py EXPIRE_SECONDS": "a setting of the server",
    "lab/failures/world.py RUN_SECONDS": "a setting of the server",
    "lab/failures/world.py TOOL_SECONDS": "a setting of the server",
    "lab/halts/callers.py REFUSED_SECONDS": "a caller that was refused asks again",
    "lab/halts/counting_endpoint.py NEAR_SECONDS": "the longest call of a model",
    "lab/halts/counting_endpoint.py WAIT_SECONDS": "the pause of a poll",
    "lab/halts/experiment.py AWAKE_SECONDS": "calls are counted after a stop for so long",
    "lab/halts/experiment.py DEAD_STOP_SECONDS": "the length of a stop",
    "lab/halts/experiment.py NEAR_SECONDS": "the longest time until the next halt",
    "lab/halts/experiment.py QUIET_SECONDS": "calls are counted after a halt for so long",
    "lab/halts/experiment.py RUN_SECONDS": "the time between two halts",
    "lab/halts/experiment.py SHORT_STOP_SECONDS": "the length of a stop",
    "lab/hostile/health.py PAUSE_SECONDS": "a pause between requests",
    "lab/pairs/operations.py WAIT": "a value of a request",
    "lab/pairs/servers.py HEARTBEAT_SECONDS": "a setting of the server",
    "lab/pairs/trial.py BLOCKED_SECONDS": "an actor that does not move is blocked",
    "lab/pairs/trial.py SWEEP_SECONDS": "a setting of the server",
    "lab/pairs/trial.py WAIT_SECONDS": "an actor that does not move waits for another one",
    "lab/received.py IDLE_SECONDS": "a run that is live later is a violation",
    "lab/requests.py PAUSE_SECONDS": "a pause of a client",
    "lab/requests.py RESPONSE_SECONDS": "a later response is a violation that the search reports",
    "lab/test_crashes.py LONG_SECONDS": "the length of the load",
    "lab/test_crashes.py SECONDS": "the length of the load",
    "lab/test_starts.py SECONDS": "the length of a disturbance",
    "lab/world.py TOKEN_SECONDS": "the life of a token",
    "outages/server_pair.py WAIT": "a setting of the database",
    "outages/test_driver.py WAIT": "a setting of the database",
    "outages/test_overload.py SOON": "a caller that leaves",
    "outages/test_servers.py WAIT_SECONDS": "the work of a tool",
    "outages/test_statement_counts.py LATE": "a number of followers",
    "packaging/machines.py RUN_SECONDS": "a machine installs and tests everything",
    "packaging/test_proxies.py HELD_SECONDS": "the length of a silent response",
    "poolers/test_connections.py SECONDS": "the length of the load",
    "kit/process_states.py DUMP_SECONDS": "a process that is aborted writes its stacks",
    "runs/simulated_processes.py HEARTBEAT_SECONDS": "a setting of the server",
    "runs/test_hanging_work.py CANCEL_SECONDS": "a value of a request",
    "runs/test_hanging_work.py RUN_SECONDS": "a setting of the server",
    "runs/test_lanes.py SOON": "the pause of a lane",
    "runtime/test_stream_exchanges.py READ_TIMEOUT": "a setting of the transport",
    "scheduling.py _UNKNOWN_SECONDS": "what a file takes of which nothing is recorded",
    "server/supervision.py WATCHED_SECONDS": "an effect that may not come is waited for",
    "server/test_draining.py DRAIN_SECONDS": "a setting of the server",
    "server/test_draining.py WORK_SECONDS": "the work of a tool",
    "server/test_http_limits.py SECONDS": "a setting of the server",
    "server/test_http_limits.py STALLED_SECONDS": "a setting of the server",
    "service/test_cancel.py STUBBORN_SECONDS": "the work of a tool",
    "service/test_halts.py CALL_SECONDS": "the work of a tool",
    "service/test_shutdown.py CALL_SECONDS": "the work of a tool",
    "stops/work.py BEAT_SECONDS": "a pause of the work",
}
"""Constants that name seconds and end no wait of a test, with what they are instead."""

NUMBERS = {
    "console/deployed.py": "an agent that waits for a file",
    "mcp/stdio_server.py": "a program without the modules of the tests",
    "packaging/sign_in.py": "a program without the modules of the tests",
    "pauses/waiting_functions.py": "agents in a folder of their own; the limit is their subject",
    "runtime/sample_agents.py": "agents that ignore a cancel for this long",
    "runtime/sample_tools.py": "a tool that hangs",
    "server/context_code.py": "agents in a folder of their own",
    "server/supervision.py": "a server that takes longer does not answer",
    "server/test_openai_tools.py": "a client that leaves",
    "architecture/test_patience.py": "examples",
}
"""Files with numbers in waits, with the reason."""

_CONSTANT = re.compile(
    r"^((?:[A-Z_]+_)?(?:SECONDS|TIMEOUT|DEADLINE|PATIENCE|SOON|LATE|WAIT))(?:: \w+)? = [\d_.]+$",
    re.MULTILINE,
)
_SECONDS = r"(?:[2-9]|\d{2,})[\d_]*(?:\.\d*)?"
_NUMBER = re.compile(
    rf"""\.(?:wait|join|result|communicate|settimeout)\({_SECONDS}\)
    | \btimeout={_SECONDS}[,)\n]
    | \basyncio\.timeout\({_SECONDS}\)
    | \basyncio\.wait_for\([^\n]*,[ ]{_SECONDS}\)
    | \bmonotonic\(\)[ ]\+[ ]{_SECONDS}
    """,
    re.VERBOSE,
)


_WAITS = ("timeout", "wait", ".join(", ".result(", ".communicate(", "monotonic() +")
"""Texts of a line with a number in a wait: to look for them takes a tenth of the pattern's time."""


def find_numbers(text: str) -> list[str]:
    """Return the waits with a number of seconds in a text."""
    return [
        number[0].strip()
        for line in text.splitlines(keepends=True)
        if any(word in line for word in _WAITS)
        for number in _NUMBER.finditer(line)
    ]


def read_tests() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        name = path.relative_to(TESTS).as_posix()
        if not name.startswith(MOVED):
            yield name, path.read_text()


def test_no_constant_is_a_deadline_of_a_test() -> None:
    found = {
        f"{name} {constant[1]}"
        for name, text in read_tests()
        for constant in _CONSTANT.finditer(text)
    }
    assert found == set(BOUNDS)


def test_no_wait_has_a_number_of_seconds() -> None:
    found: dict[str, list[str]] = {}
    for name, text in read_tests():
        if numbers := find_numbers(text):
            found[name] = numbers
    assert {name: each for name, each in found.items() if name not in NUMBERS} == {}
    assert found.keys() == NUMBERS.keys()


@pytest.mark.parametrize(
    "line",
    [
        "assert process.wait(60) == 0",
        "client = Client(base_url=url, timeout=20)",
        "async with asyncio.timeout(60):",
        "await asyncio.wait_for(gone.wait(), 5)",
        "deadline = time.monotonic() + 60",
    ],
)
def test_numbers_in_waits_are_found(line: str) -> None:
    assert find_numbers(f"{line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "assert process.wait(PATIENCE) == 0",
        "await asyncio.wait([task], timeout=0.3)",
        "wait_for(lambda: count() == 2)",
        'wait_for(lambda: answers(2, 30), "no answer")',
        "CancelRequest('s1', wait=30)",
    ],
)
def test_other_numbers_are_not_found(line: str) -> None:
    assert not find_numbers(f"{line}\n")
