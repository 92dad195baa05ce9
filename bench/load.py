"""Load by wrk: requests per second from one thread, by default over 16 connections.

The CPU time of the server per request is measured too: it hardly depends on other work of the
machine.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.measure import Row, Target, build_ratio_row, run_rounds

__all__ = [
    "Batch",
    "Load",
    "compare_loads",
    "list_processes",
    "require_wrk",
    "resident_megabytes",
    "wait_until_idle",
]

CONNECTIONS = 16

FORM = "application/x-www-form-urlencoded"

ANSWER_SECONDS = 300.0
"""Maximum time of one request: a slow server that answers sixteen at once on a busy machine."""

QUIET_SECONDS = 60.0
"""Maximum time until a server has finished earlier requests."""

_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_COUNT = re.compile(r"(\d+) requests in")
_BAD = re.compile(r"(?:Non-2xx or 3xx responses|Socket errors): (.*)")

_HERTZ = os.sysconf("SC_CLK_TCK")


def require_wrk() -> str:
    """Return the path of wrk.

    Raises:
        SystemExit: wrk is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise SystemExit("bench: wrk is missing (Debian, Ubuntu: apt install wrk)")
    return found


@dataclass(eq=False)
class Load:
    """The same request again and again to one server, which has answered it once before.

    Attributes:
        url: URL of the request.
        process_id: process of the server, which must be idle before the next round.
        body: the body of a POST; None for a GET.
        kind: the media type of the body.
        post: True for a POST without a body.
        seconds: duration of a round.
        connections: number of connections, each with one request at a time.
        twin: the same load of the server on PostgreSQL; None without one.
    """

    url: str
    process_id: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str | None = None
    kind: str = FORM
    post: bool = False
    seconds: int = 1
    connections: int = CONNECTIONS
    twin: Load | None = None
    warm: bool = field(default=False, init=False)
    costs: list[float] = field(default_factory=list, init=False)

    def __call__(self) -> float:
        """Run one round and return the requests per second; retry longer if no request completed.

        The CPU seconds per request are appended to `costs`.

        Raises:
            RuntimeError: a response was not successful, or there was none.
        """
        self._ask_once()
        for seconds in (self.seconds, 2 * self.seconds, 8 * self.seconds):
            before = cpu_seconds(self.process_id)
            said = self._said(seconds)
            wait_until_idle(self.process_id)
            used = cpu_seconds(self.process_id) - before
            if bad := _BAD.search(said):
                raise RuntimeError(f"{self.url}: {bad[0]}")
            rate = _RATE.search(said)
            count = _COUNT.search(said)
            if rate and count and int(count[1]):
                self.costs.append(used / int(count[1]))
                return float(rate[1])
        raise RuntimeError(f"{self.url}: no answer within {seconds} s")

    def _said(self, seconds: int) -> str:
        """Return the output of wrk for one round."""
        with tempfile.TemporaryDirectory() as folder:
            command = [require_wrk(), "-t1", f"-c{self.connections}", f"-d{seconds}s"]
            command += ["--timeout", "60s", "-s", str(self._script(Path(folder)))]
            command += [part for pair in self.headers.items() for part in ("-H", ": ".join(pair))]
            done = subprocess.run(
                [*command, self.url], capture_output=True, text=True, check=True, timeout=120
            )
        return done.stdout

    def by_processor(self) -> float:
        """Run one round and return the requests per second of CPU time of the server."""
        self()
        return 1 / self.costs[-1]

    def _ask_once(self) -> None:
        if not self.warm:
            self.ask()
        self.warm = True

    def ask(self) -> None:
        """Send one request and read the response."""
        data = b"" if self.post else None
        if self.body is not None:
            data = self.body.encode()
        headers = dict(self.headers) | ({} if self.body is None else {"Content-Type": self.kind})
        request = urllib.request.Request(self.url, data, headers)
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            answer.read()

    def _script(self, folder: Path) -> Path:
        """Write the script of the request for wrk."""
        lines = []
        if self.body is not None or self.post:
            lines.append('wrk.method = "POST"')
        if self.body is not None:
            lines.append(f'wrk.headers["Content-Type"] = "{self.kind}"')
            lines.append(f"wrk.body = [==[{self.body}]==]")
        script = folder / "request.lua"
        script.write_text("\n".join(lines))
        return script


@dataclass(eq=False)
class Batch:
    """A fixed number of requests over as many connections, timed until all are answered.

    For servers so slow that almost no request completes within a round.
    """

    load: Load
    requests: int

    def __call__(self) -> float:
        """Run one round and return the requests per second."""
        self.load.ask()
        before = cpu_seconds(self.load.process_id)
        start = time.perf_counter()
        with ThreadPoolExecutor(self.load.connections) as clients:
            for request in [clients.submit(self.load.ask) for _ in range(self.requests)]:
                request.result()
        took = time.perf_counter() - start
        wait_until_idle(self.load.process_id)
        used = cpu_seconds(self.load.process_id) - before
        self.load.costs.append(used / self.requests)
        return self.requests / took

    @property
    def costs(self) -> list[float]:
        """The CPU seconds per request of each round."""
        return self.load.costs


def compare_loads(
    work: str,
    ours: Load | Batch,
    against: str,
    theirs: Load | Batch,
    rounds: int,
    target: Target | None = None,
) -> Row:
    """Run two loads in turns, and the twin of ours, and return the row."""
    twin = ours.twin if isinstance(ours, Load) else None
    acts = {"ours": ours, "theirs": theirs} | ({} if twin is None else {"twin": twin})
    rates = run_rounds(acts, rounds)
    cost = statistics.median(ours.costs)
    row = build_ratio_row(work, rates["ours"], against, rates["theirs"], "/s", target)
    row = replace(row, by_processor=statistics.median(theirs.costs) / cost)
    if twin is None:
        return row
    ratio = cost / statistics.median(twin.costs)
    return row.with_postgres(rates["twin"], rates["ours"], "/s", ratio)


def wait_until_idle(process_id: int) -> None:
    """Wait until a process is idle, so that earlier requests do not count.

    Raises:
        RuntimeError: the process stays busy.
    """
    deadline = time.monotonic() + QUIET_SECONDS
    before = cpu_seconds(process_id)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = cpu_seconds(process_id)
        if now - before <= 0.02:
            return
        before = now
    raise RuntimeError("the server does not come to rest")


def cpu_seconds(process_id: int) -> float:
    """Return the CPU seconds of a process and its children."""
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / _HERTZ
    return own + sum(map(cpu_seconds, _children(process_id)))


def resident_megabytes(process_id: int) -> float:
    """Return the resident memory of a process and its children in MB."""
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    own = pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576
    return own + sum(map(resident_megabytes, _children(process_id)))


def list_processes(process_id: int) -> list[int]:
    """Return a process and its children."""
    below = [each for child in _children(process_id) for each in list_processes(child)]
    return [process_id, *below]


def _children(process_id: int) -> list[int]:
    try:
        text = Path(f"/proc/{process_id}/task/{process_id}/children").read_text()
    except OSError:  # The process has ended.
        return []
    return [int(child) for child in text.split()]
