"""Checks of JSON values against JSON Schemas, of which either may be hostile (docs/decisions/0075).

The validator holds the interpreter until it has finished, and no limit interrupts it. A check of
more than some milliseconds is done in a separate process, which is killed after
`PROCESSOR_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from agentctl.errors import Unavailable, ValidationFailed
from agentctl.runtime.bounds import take_shared_turn
from agentctl.runtime.json_schema import (
    PROCESSOR_SECONDS,
    UNUSABLE,
    SchemaProblem,
    build_validator,
    check_schemas,
    has_cheap_texts,
    is_cheap,
    list_problems,
)

CHECK_SECONDS = 20.0
"""Time of a check in a process, with its wait for one."""

PROCESSES = 2
"""Checks in a process at the same time."""

_PACKAGE = str(Path(__file__).parents[2])
_PROGRAM = "from agentctl.runtime.json_schema import main; main()"
_LATE = f"it could not be checked within {PROCESSOR_SECONDS} seconds of processor time"


async def find_schema_problem(
    schema: Mapping[str, Any], value: Any, *, mask: str | None = None
) -> SchemaProblem | None:
    """Return the first problem of a JSON value, or None. See `list_schema_problems`."""
    return next(iter(await list_schema_problems(schema, value, 1, mask=mask)), None)


async def list_schema_problems(
    schema: Mapping[str, Any], value: Any, limit: int, *, mask: str | None = None
) -> list[SchemaProblem]:
    """Return the first problems of a JSON value; none if it matches its schema.

    No value matches a schema that is not usable, or whose check takes too long.

    Args:
        limit: maximum number of problems.
        mask: replaces the value in the texts, for texts that reach the log.
    """
    await take_shared_turn()
    size = len(orjson.dumps(value))
    if is_cheap([schema], size):
        validator = build_validator(schema, mask)
        if validator is None:
            return [UNUSABLE]
        if validator.is_valid(value):
            return []
        if has_cheap_texts(schema, size):
            return list_problems(validator, value, limit)
    request = {"schema": schema, "value": value, "limit": limit, "mask": mask}
    try:
        answer = await _ask(request)
    except TimeoutError:
        return [SchemaProblem((), _LATE)]
    return [SchemaProblem(tuple(steps), text) for steps, text in answer]


async def check_request_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> None:
    """Check the schemas of a request by the names of their fields.

    Raises:
        ValidationFailed: see `check_schemas`.
        Unavailable: the checks of other requests take all of `CHECK_SECONDS`.
    """
    if is_cheap(schemas.values()):
        check_schemas(schemas)
        return
    try:
        answer = await _ask({"schemas": schemas})
    except TimeoutError:
        raise Unavailable("The schemas of the request could not be checked in time") from None
    if answer is not None:
        raise ValidationFailed(answer)


async def _ask(request: dict[str, Any]) -> Any:
    """Return the answer of a process."""
    work = asyncio.get_running_loop().run_in_executor(_open_threads(), _run_process, request)
    return await asyncio.wait_for(work, CHECK_SECONDS)


@cache
def _open_threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(PROCESSES, "agentctl-schema")


def _run_process(request: dict[str, Any]) -> Any:
    try:
        # Without `site` it starts in half the time.
        answers = subprocess.run(
            [sys.executable, "-S", "-c", _PROGRAM],
            input=orjson.dumps(request),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=CHECK_SECONDS,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([_PACKAGE, *filter(None, sys.path)])},
        ).stdout
    except subprocess.TimeoutExpired as late:
        answers = late.stdout or b""
    except OSError:
        answers = b""
    if not answers:
        raise TimeoutError
    return orjson.loads(answers.splitlines()[-1])
