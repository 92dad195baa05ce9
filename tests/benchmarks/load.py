"""Load by wrk: so many requests a second, from one thread over 16 connections."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Batch", "Load", "quiet", "require_wrk", "resident"]

CONNECTIONS = 16

QUIET_SECONDS = 60.0
"""How long a server may take to finish what it was asked before."""

_RATE = re.compile(r"Requests/sec:\s+([\d.]+)")
_BAD = re.compile(r"(?:Non-2xx or 3xx responses|Socket errors): (.*)")

_HERTZ = os.sysconf("SC_CLK_TCK")


def require_wrk() -> str:
    """Where wrk is.

    Raises:
        SystemExit: it is not installed.
    """
    found = shutil.which("wrk")
    if found is None:
        raise SystemExit("bench: wrk is missing (Debian, Ubuntu: apt install wrk)")
    return found


@dataclass(eq=False)
class Load:
    """The same request over and over to one server, which has answered it once beforehand.

    Attributes:
        url: what is asked for.
        process_id: of the server, which must have come to rest before the next round.
        form: the body of a POST, urlencoded; None: a GET.
        post: a POST without a body.
        seconds: of one round.
    """

    url: str
    process_id: int
    headers: Mapping[str, str] = field(default_factory=dict)
    form: str | None = None
    post: bool = False
    seconds: int = 1
    warm: bool = field(default=False, init=False)

    def __call__(self) -> float:
        """Requests a second in one round.

        Raises:
            RuntimeError: an answer was no success, or there was none.
        """
        self._ask_once()
        with tempfile.TemporaryDirectory() as folder:
            command = [
                require_wrk(),
                "-t1",
                f"-c{CONNECTIONS}",
                f"-d{self.seconds}s",
                "--timeout",
                "60s",
            ]
            command += [part for pair in self.headers.items() for part in ("-H", ": ".join(pair))]
            said = subprocess.run(
                [*command, "-s", str(self._script(Path(folder))), self.url],
                capture_output=True,
                text=True,
                check=True,
                timeout=120,
            ).stdout
        quiet(self.process_id)
        if bad := _BAD.search(said):
            raise RuntimeError(f"{self.url}: {bad[0]}")
        return self._rate(said)

    def _ask_once(self) -> None:
        if not self.warm:
            self.ask()
        self.warm = True

    def ask(self) -> None:
        """One request, and its answer."""
        data = self.form.encode() if self.form is not None else b"" if self.post else None
        request = urllib.request.Request(self.url, data, dict(self.headers))
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def _script(self, folder: Path) -> Path:
        """What wrk is to send."""
        lines = []
        if self.form is not None or self.post:
            lines.append('wrk.method = "POST"')
        if self.form is not None:
            lines.append('wrk.headers["Content-Type"] = "application/x-www-form-urlencoded"')
            lines.append(f"wrk.body = [[{self.form}]]")
        script = folder / "request.lua"
        script.write_text("\n".join(lines))
        return script

    def _rate(self, said: str) -> float:
        found = _RATE.search(said)
        if found is None or float(found[1]) == 0:
            raise RuntimeError(f"{self.url}: no answer within {self.seconds} s")
        return float(found[1])


@dataclass(eq=False)
class Batch:
    """The same over as many connections, but a number of requests, timed until all are answered.

    For what is so slow that next to nothing is complete when the time of a round is up.
    """

    load: Load
    requests: int

    def __call__(self) -> float:
        """Requests a second."""
        self.load.ask()
        start = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as clients:
            for asked in [clients.submit(self.load.ask) for _ in range(self.requests)]:
                asked.result()
        took = time.perf_counter() - start
        quiet(self.load.process_id)
        return self.requests / took


def quiet(process_id: int) -> None:
    """Wait until a process does next to nothing: what it was asked before must not count later."""
    deadline = time.monotonic() + QUIET_SECONDS
    before = _cpu(process_id)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = _cpu(process_id)
        if now - before <= 0.02:
            return
        before = now
    raise RuntimeError("the server does not come to rest")


def _cpu(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _HERTZ


def resident(process_id: int) -> float:
    """Memory that a process and its children have, in MB."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children").read_text().split()
    pages = int(Path(f"/proc/{process_id}/statm").read_text().split()[1])
    own = pages * os.sysconf("SC_PAGE_SIZE") / 1_048_576
    return own + sum(resident(int(child)) for child in children)
