"""The callers of an experiment: threads that begin work of each path, as long as it lasts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import httpx2

from tests.kit.conditions import PATIENCE
from tests.lab.halts.counting_endpoint import TAKEOVER
from tests.lab.halts.operator import TRUST, choose_url
from tests.lab.halts.paths import PATHS, Caller
from tests.lab.servers import Server

REFUSED_SECONDS = 1.0
"""Longest pause of a caller that a halt has refused, in case that the halt is never ended."""

CONNECTION_RUNS = 8
"""Beginnings of a caller on one connection: then another server or worker gets its requests."""


class Callers:
    """The threads.

    Args:
        count: callers of each path.
        answers: counts the answers that are neither a success nor a refusal by a halt.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        headers: Mapping[str, str],
        count: int,
        answers: Counter[str],
    ) -> None:
        self._servers = servers
        self._headers = headers
        self._answers = answers
        self._ended = threading.Event()
        self._changed = threading.Condition()
        self._refused = Counter[str]()
        self._is_halted = False
        self._threads = [
            threading.Thread(target=self._begin_often, args=(path,), daemon=True)
            for path in PATHS
            if path != TAKEOVER
            for _ in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def note_halt(self) -> None:
        """Let callers that are refused from now on wait for the end of the halt."""
        with self._changed:
            self._is_halted = True
            self._refused.clear()

    def note_resume(self) -> None:
        """Let the callers that were refused begin again."""
        with self._changed:
            self._is_halted = False
            self._changed.notify_all()

    def read_refused(self) -> Counter[str]:
        """Return the number of requests of each path that were refused since `note_halt`."""
        with self._changed:
            return Counter(self._refused)

    def stop(self) -> None:
        """Begin nothing any more."""
        self._ended.set()
        self.note_resume()

    def join(self) -> int:
        """Wait until all callers have their answers; return the number of those that have not."""
        deadline = time.monotonic() + PATIENCE
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.1))
        return sum(thread.is_alive() for thread in self._threads)

    def _begin_often(self, path: str) -> None:
        """Begin work of a path until the experiment ends: the body of a thread."""
        caller = Caller(path)
        while not self._ended.is_set():
            client = httpx2.Client(
                base_url=choose_url(self._servers),
                headers=self._headers,
                timeout=PATIENCE,
                verify=TRUST,
            )
            try:
                with client:
                    caller.client = client
                    self._begin_some(caller)
            except (httpx2.HTTPError, AssertionError, KeyError):
                # A request that is lost with its server, or an answer that is not the one expected.
                time.sleep(0.02)

    def _begin_some(self, caller: Caller) -> None:
        for _ in range(CONNECTION_RUNS):
            if self._ended.is_set():
                return
            self.take_answer(caller.path, PATHS[caller.path].begin(caller))

    def take_answer(self, path: str, answer: httpx2.Response) -> None:
        """Count an answer; wait for the end of the halt if it refuses the request."""
        if "halted" in answer.text:
            with self._changed:
                self._refused[path] += 1
                if self._is_halted:
                    self._changed.wait(REFUSED_SECONDS)
        elif answer.status_code >= 400:
            self._answers[f"{path}: {answer.status_code}"] += 1
            time.sleep(0.05)
