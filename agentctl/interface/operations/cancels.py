"""The cancel of a run that waits longer than one request can."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from agentctl.errors import AgentctlError, Unavailable
from agentctl.interface.operations import Operations
from agentctl.interface.requests import MAXIMUM_CANCEL_WAIT, CancelRequest
from agentctl.records.document import Document, build_document
from agentctl.records.kinds import ComponentRef
from agentctl.records.runs import CancelRecord

POLL_SECONDS = 0.1
"""Pause between two requests for the same run, in case the server returns at once."""


async def cancel_until_stopped(
    operations: Operations,
    component: ComponentRef,
    run_id: str,
    request: CancelRequest,
    wait_to_repeat: Callable[[AgentctlError, int], Awaitable[None]] | None = None,
) -> Document[CancelRecord]:
    """Cancel a run and return the last result: whether it has stopped within the time.

    Args:
        request: `wait` are the seconds of all requests together.
        wait_to_repeat: waits before a request that failed is repeated, or raises its failure; its
            arguments are the failure and their number so far. None: failures are raised.
    """
    import asyncio

    end = time.monotonic() + request.wait
    left = request.wait
    failures = 0
    is_requested = False

    while True:
        part = replace(request, wait=min(max(left, 0.0), MAXIMUM_CANCEL_WAIT))
        try:
            document = await operations.runs.cancel(*component, run_id, part)
        except Unavailable as failure:
            if wait_to_repeat is None:
                raise
            failures += 1
            is_requested = True
            await wait_to_repeat(failure, failures)
            left = end - time.monotonic()
            continue

        record = document.value
        is_final = record["cancel"] == "already_final"
        if is_final and is_requested and record["status"] == "CANCELLED":
            return build_document({**record, "cancel": "stopped"})

        left = end - time.monotonic()
        if record["cancel"] != "requested" or left < POLL_SECONDS:
            return document

        is_requested = True
        await asyncio.sleep(POLL_SECONDS)
