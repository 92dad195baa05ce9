"""A client of all servers of a world, which repeats a request until one of them answers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import httpx2

from tests.kit.conditions import PATIENCE
from tests.lab.servers import Server
from tests.lab.world import World

__all__ = ["Client"]

REQUEST_SECONDS = 20.0
"""Time after which another server is asked: one that is stopped or cut off never answers."""


class Client:
    """A client with the rights of an administrator."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._headers = world.headers
        self._http = httpx2.AsyncClient(timeout=REQUEST_SECONDS)

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self, method: str, path: str, *, server: Server | None = None, **options: Any
    ) -> httpx2.Response:
        """Send a request to any server, again until one accepts it.

        Args:
            server: the only one to ask, once.
            options: as of `httpx2.AsyncClient.request`.

        Raises:
            ConnectionError: the only server does not answer.
        """
        headers = {**self._headers, **options.pop("headers", {})}
        deadline = time.monotonic() + PATIENCE
        while True:
            asked = server or self._world.dice.choice(self._world.list_running())
            with contextlib.suppress(httpx2.HTTPError):
                url = f"{asked.url}{path}"
                response = await self._http.request(method, url, headers=headers, **options)
                if response.status_code not in (429, 503):
                    return response
            if server is not None:
                raise ConnectionError
            assert time.monotonic() < deadline, "no server answers"
            await asyncio.sleep(0.1)

    async def read(self, run_id: str) -> dict[str, Any]:
        """Return the record of a run."""
        run: dict[str, Any] = (await self.send("GET", f"/runs/{run_id}")).json()
        return run

    async def wait_for(self, run_id: str, *statuses: str) -> dict[str, Any]:
        """Return the record of a run when it has one of some statuses."""
        deadline = time.monotonic() + PATIENCE
        while True:
            run = await self.read(run_id)
            if run.get("status") in statuses:
                return run
            assert time.monotonic() < deadline, run
            await asyncio.sleep(0.1)

    async def list_approvals(self, query: str) -> list[dict[str, Any]]:
        """Return a page of approvals, oldest first."""
        path = f"/approvals?{query}&sort_order=asc&limit=100"
        rows: list[dict[str, Any]] = (await self.send("GET", path)).json()["data"]
        return rows

    async def decide(
        self, row: dict[str, Any], decision: str, *, server: Server | None = None, **fields: Any
    ) -> bool:
        """Decide about an approval; return False if it was decided before.

        The answer to a decision may be lost with its server.
        """
        component = f"{row['component_type']}s/{row['component_id']}"
        path = f"/{component}/approvals/{row['approval_id']}/decide"
        body = {"decision": decision, "arguments_hash": row["arguments_hash"], **fields}
        response = await self.send("POST", path, server=server, json=body)
        assert response.status_code in (200, 409), response.text
        return response.status_code == 200
