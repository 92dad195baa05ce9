"""Checks of JSON values against JSON Schemas, of which either may be hostile (decision 75).

The validator holds the interpreter until it has finished, and no limit interrupts it. A check of
more than some milliseconds is done in a separate process, which is killed after
`PROCESSOR_SECONDS`.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import unquote

import orjson

from agentctl.errors import Unavailable, ValidationFailed
from agentctl.work.event_loop import take_shared_turn

MAXIMUM_SUBSCHEMAS = 1_000
"""Maximum number of subschemas of a request's schema, each counted wherever it is referred to. One
below `unevaluatedProperties` or `unevaluatedItems` counts three times for each of them, because its
validation is repeated as often."""

MAXIMUM_PATTERN_COST = 10_000
"""Maximum cost of the patterns of a request's schema: 10 for each, and 1 for 16 states of it."""

PROCESSOR_SECONDS = 5
"""Processor time of a check in a separate process."""

_FOREIGN = ("$id", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor")
_PATTERN_BYTES = 1_000_000
_BACKTRACKS = 1_000
_CHEAP_SUBSCHEMAS = 5_000
_CHEAP_PATTERNS = 100
_CHEAP_CHECK = 65_536
_CHEAP_TEXTS = 5_000
_MEMORY_BYTES = 1_073_741_824
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_COUNTED = re.compile(r"(\)?)\{(\d{1,6})(?:,(\d{0,6}))?\}")
_LOOK = 20
_TEXT_CHARACTERS = 1_000


class SchemaProblem(NamedTuple):
    """A place of a value that does not match a schema."""

    steps: tuple[str | int, ...]
    """The steps from the value to the place; empty for the value itself."""

    text: str
    """The difference from the schema."""

    @property
    def place(self) -> str:
        """The place as `.to[0]`."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)


UNUSABLE = SchemaProblem((), "the schema cannot be used")
DIFFERENT = SchemaProblem((), "the value does not match; it is too large to name the place")


class SchemaCost(NamedTuple):
    """The cost of a validation, from the schema alone."""

    subschemas: int
    """As `MAXIMUM_SUBSCHEMAS` counts them."""

    patterns: int
    """As `MAXIMUM_PATTERN_COST` counts them."""

    constants: int
    """The members of each `enum`."""

    loops: int
    """The references to a schema from inside of it."""


def refuse_documents(address: str) -> NoReturn:
    """Refuse to read another document than a schema itself."""
    raise ValueError(address)


def is_usable_schema(schema: Mapping[str, Any]) -> bool:
    """Return True if values can be validated by a JSON Schema."""
    return build_validator(schema) is not None


def check_schemas(schemas: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the schemas of a request can be used at a bounded cost.

    Args:
        schemas: by the name of the field, for the error.

    Raises:
        ValidationFailed: one is recursive, has too many subschemas or patterns, refers to another
            document or to something that it does not have, or is no JSON Schema.
    """
    for name, schema in schemas.items():
        if _measure(schema, name).loops:
            raise ValidationFailed(f"{name} must not be recursive")
        if not is_usable_schema(schema):
            raise ValidationFailed(f"{name} is not a valid JSON Schema")


def is_cheap(schemas: Iterable[Mapping[str, Any]], size: int = 1) -> bool:
    """Return True if schemas, and a value of a size in bytes, take at most some milliseconds."""
    subschemas = patterns = 0

    for schema in schemas:
        cost = _measure(schema, None)
        subschemas += cost.subschemas + cost.constants
        patterns += cost.patterns
        if (
            subschemas > _CHEAP_SUBSCHEMAS
            or patterns > _CHEAP_PATTERNS
            or size * (subschemas + patterns) > _CHEAP_CHECK
        ):
            return False

    return True


def _measure(schema: Mapping[str, Any], name: str | None) -> SchemaCost:
    """Count what a schema has.

    Args:
        name: the field of a request, whose schema is refused beyond a maximum; None for another
            schema, which is counted up to it.
    """
    count = patterns = constants = loops = 0
    pending: list[tuple[Any, tuple[str, ...], int]] = [(schema, (), 1)]
    names_documents = "draft-04" in str(schema.get("$schema"))

    while pending:
        node, outer_references, times = pending.pop()
        count += times

        children = node
        if isinstance(node, dict):
            children = node.values()
            if name is not None and (
                any(key in node for key in _FOREIGN)
                or (names_documents and isinstance(node.get("id"), str))
            ):
                raise ValidationFailed(f"{name} must use no references except $ref")
            times *= 3 ** sum(key in node for key in ("unevaluatedProperties", "unevaluatedItems"))
            patterns += times * sum(map(_weigh_pattern, _list_patterns(node)))
            if isinstance(constant_values := node.get("enum"), list):
                constants += times * len(constant_values)

            reference = node.get("$ref")
            if isinstance(reference, str) and reference in outer_references:
                loops += 1
            elif isinstance(reference, str):
                if (target := _resolve(schema, reference)) is not None:
                    pending.append((target, (*outer_references, reference), times))
                elif name is not None:
                    raise ValidationFailed(f"{name} refers to something that it does not have")

        pending += [
            (child, outer_references, times) for child in children if isinstance(child, dict | list)
        ]

        if count > MAXIMUM_SUBSCHEMAS or patterns > MAXIMUM_PATTERN_COST:
            if name is None:
                break
            if count > MAXIMUM_SUBSCHEMAS:
                raise ValidationFailed(f"{name} has more than {MAXIMUM_SUBSCHEMAS} subschemas")
            raise ValidationFailed(f"{name} has patterns that cost too much")

    return SchemaCost(count, patterns, constants, loops)


def _list_patterns(node: Mapping[str, Any]) -> list[str]:
    by_pattern = node.get("patternProperties")
    single = node.get("pattern")

    names = list(by_pattern) if isinstance(by_pattern, dict) else []
    return [*names, single] if isinstance(single, str) else names


def _weigh_pattern(pattern: str) -> int:
    """Return the cost of a pattern for each byte of a text, in units of that of a subschema."""
    states = len(pattern)
    copies = 1

    for group, low, high in _COUNTED.findall(pattern):
        number = int(high or low)
        if group:
            copies *= max(1, number)
        else:
            states += number

    looks = _LOOK * len(_LOOK_AROUND.findall(pattern))
    return 10 + looks + states * copies // 16


def _resolve(root: Mapping[str, Any], reference: str) -> Mapping[str, Any] | None:
    """Return the subschema of a reference within the document (RFC 6901); None if there is none."""
    if reference == "#":
        return root

    pointer = unquote(reference).removeprefix("#/")
    if not reference.startswith("#/"):
        return None

    node: Any = root
    for segment in pointer.split("/"):
        if isinstance(node, list) and segment.isdecimal() and len(segment) < 6:
            node = node[int(segment)] if int(segment) < len(node) else None
        elif isinstance(node, dict):
            node = node.get(segment.replace("~1", "/").replace("~0", "~"))
        else:
            return None

    return node if isinstance(node, dict) else None


def has_cheap_texts(schema: Mapping[str, Any], size: int) -> bool:
    """Return True if the problems of a value of a size in bytes take at most some milliseconds.

    The library finds all of them at once, and keeps a copy of the value for each.
    """
    cost = _measure(schema, None)
    return cost.loops < 2 and cost.subschemas * size <= _CHEAP_TEXTS


def list_problems(validator: Any, value: Any, limit: int) -> list[SchemaProblem]:
    """Return the first problems of a JSON value that does not match."""
    return [
        SchemaProblem(tuple(problem.instance_path), str(problem.message)[:_TEXT_CHARACTERS])
        for problem in islice(validator.iter_errors(value), limit)
    ]


def main() -> None:
    """Answer the request on stdin: the only work of a process, which ends when it takes too long.

    Each answer is a line of JSON; a later one replaces those before.
    """

    def limit(kind: int, value: int) -> None:
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (value, value))

    limit(resource.RLIMIT_CPU, PROCESSOR_SECONDS)
    limit(resource.RLIMIT_AS, _MEMORY_BYTES)
    os.nice(5)

    request = orjson.loads(sys.stdin.buffer.read())
    answer: Any = None

    if "schemas" in request:
        try:
            check_schemas(request["schemas"])
        except ValidationFailed as problem:
            answer = problem.detail
    elif (validator := build_validator(request["schema"], request["mask"])) is None:
        answer = [UNUSABLE]
    elif validator.is_valid(request["value"]):
        answer = []
    else:
        print(orjson.dumps([DIFFERENT], default=list).decode(), flush=True)
        # The limit is in whole seconds: at least one is left to name the place.
        limit(resource.RLIMIT_CPU, min(PROCESSOR_SECONDS, int(time.process_time()) + 2))
        answer = list_problems(validator, request["value"], request["limit"])

    print(orjson.dumps(answer, default=list).decode())


def build_validator(schema: Mapping[str, Any], mask: str | None = None) -> Any:
    """Return the validator of a schema; None if the schema is not usable.

    No other document is read. Patterns are matched in linear time, except those that look around,
    whose steps are limited: a text that exceeds them does not match.
    """
    import jsonschema_rs

    for options in (
        jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES),
        jsonschema_rs.FancyRegexOptions(size_limit=_PATTERN_BYTES, backtrack_limit=_BACKTRACKS),
    ):
        with suppress(ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
            return jsonschema_rs.validator_for(
                dict(schema), retriever=refuse_documents, pattern_options=options, mask=mask
            )
    return None


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
