"""The operator of an experiment, who creates halts and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import httpx2

from tests.kit.conditions import PATIENCE
from tests.lab.halts.paths import COMPONENTS
from tests.lab.servers import Server

TRUST = ssl.create_default_context()
"""For all clients: to load it takes 25 ms, and the servers have no certificates."""

PARTS = "parts"
"""The scope of halts of all components at once."""


class NotCreated(Exception):
    """A halt was not accepted, or its answer was lost with a server."""


def choose_url(servers: Sequence[Server]) -> str:
    """Return the URL of a server that runs, if one does."""
    running = [server for server in servers if server.is_running]
    return random.choice(running or servers).url


class Operator:
    """The operator.

    Args:
        answers: counts the answers that are no success.
    """

    def __init__(
        self, servers: Sequence[Server], headers: Mapping[str, str], answers: Counter[str]
    ) -> None:
        self._servers = servers
        self._headers = headers
        self._answers = answers

    async def create(
        self, scope: str, scope_id: str | None, *, servers: Sequence[Server] = ()
    ) -> list[str]:
        """Create a halt, or those of `PARTS`; return their ids when all of them have returned.

        Args:
            servers: those that may be asked, by default all.

        Raises:
            NotCreated: one was not accepted, or its answer was lost.
        """
        scopes: Sequence[tuple[str, str | None]] = [(scope, scope_id)]
        if scope == PARTS:
            scopes = COMPONENTS
        bodies = [{"scope": kind, "scope_id": id_, "reason": "proof"} for kind, id_ in scopes]
        async with self._open(servers or self._servers) as client:
            answers = await asyncio.gather(
                *(client.post("/halts", json=body) for body in bodies), return_exceptions=True
            )

        halt_ids: list[str] = []
        for answer in answers:
            if not isinstance(answer, httpx2.Response):
                continue
            if answer.status_code == 201:
                halt_ids.append(answer.json()["halt_id"])
            else:
                self._answers[f"POST /halts: {answer.status_code}"] += 1
        if len(halt_ids) < len(bodies):
            raise NotCreated
        return halt_ids

    async def end(self, halt_ids: Sequence[str]) -> None:
        """End some halts, of which some may have ended already."""
        left = [*halt_ids]
        deadline = time.monotonic() + PATIENCE
        while left:
            assert time.monotonic() < deadline, "a halt could not be ended"
            with contextlib.suppress(httpx2.HTTPError):
                async with self._open(self._servers) as client:
                    answer = await client.delete(f"/halts/{left[-1]}")
                    if answer.status_code in (204, 409):
                        left.pop()
                        continue
                    self._answers[f"DELETE /halts: {answer.status_code}"] += 1
            await asyncio.sleep(0.1)

    async def end_all(self) -> None:
        """End all halts, also those whose answer was lost."""
        deadline = time.monotonic() + PATIENCE
        while True:
            assert time.monotonic() < deadline, "the halts could not be listed"
            with contextlib.suppress(httpx2.HTTPError):
                async with self._open(self._servers) as client:
                    listed = await client.get("/halts", params={"state": "active", "limit": 100})
                if listed.status_code == 200:
                    await self.end([halt["halt_id"] for halt in listed.json()["data"]])
                    return
            await asyncio.sleep(0.1)

    def _open(self, servers: Sequence[Server]) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(
            base_url=choose_url(servers), headers=self._headers, timeout=PATIENCE, verify=TRUST
        )
