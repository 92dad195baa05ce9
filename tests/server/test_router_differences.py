"""The router and the parser of parameters compared with those of Starlette and FastAPI.

Random paths, queries and values go to both.
"""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import unquote_to_bytes

import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import QueryParams
from starlette.routing import Match

from agentctl.config.settings import Database, Settings
from agentctl.errors import BadRequest
from agentctl.records.routes import RouteTable
from agentctl.records.times import ParsedTimestamp
from agentctl.records.value_types import WrongValue, compile_type
from agentctl.server import create_app
from agentctl.server.requests import MAXIMUM_PAIRS, parse_pairs
from agentctl.server.routing import check_routes
from tests.differential.comparison import LONG, SEED, report

TIMES = 50 if LONG else 1
APP = create_app(Settings(databases=(Database("main", "sqlite:////nowhere.db"),)))
OPERATIONS = check_routes(APP.routes)
TABLE = RouteTable({route.operation: route.place for route in OPERATIONS})
SEGMENTS = ("x", "runs", "cancel", "a b", "é", "..", "%2F", "\x00", "a\n", "", "agents", "s" * 300)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SORT = Literal["created_at", "updated_at"]
KINDS: dict[Any, tuple[Any, str]] = {
    int: (int, r"-?[0-9]{1,18}"),
    bool: (bool, r"(?i:true|false)|[01]"),
    float: (float, r"(?i:-?[0-9]{1,9}(\.[0-9]{1,40})?(e[+-]?[0-9]{1,3})?)"),
    SORT: (SORT, r"created_at|updated_at"),
    ParsedTimestamp: (
        datetime,
        r"(?i:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,30})?(Z|[+-]\d\d:[0-5]\d))",
    ),
}
"""By annotation: the type of FastAPI's parameter, and the allowed texts. FastAPI takes more texts
for the same values: ` 5`, `1_0`, `5.0`, `yes`, `on`, a date without a time."""

TEXTS = (
    "0", "1", "20", "-1", "007", "+5", " 5", "5 ", "1_0", "1.0", "1.5", "1e3", "1E-3", ".5", "5.",
    "9" * 18, "9" * 19, "inf", "nan", "true", "True", "FALSE", "yes", "on", "t", "", "null",
    "created_at", "updated_at", "Created_at", "2026-01-01T00:00:00Z", "2026-02-29T00:00:00Z",
    "2026-01-01t00:00:00.123456z", "2026-01-01T24:00:00Z", "2026-01-01T00:00:60Z", "2026-01-01",
    "2026-01-01 00:00:00+01:00", "2026-01-01T00:00:00+23:59", "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59.9999999Z", "1767225600", "\u0661", "\u00a01", "\ud800", "\x001",
)  # fmt: skip


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


def test_random_paths_match_as_in_starlette(chance: random.Random) -> None:
    found = 0
    for _ in range(1_000 * TIMES):
        parts = re.split(r"(\{\w+\}|/)", chance.choice(OPERATIONS).path)
        for index, part in enumerate(parts):
            if part.startswith("{") or chance.random() < 0.03:
                parts[index] = chance.choice(SEGMENTS)
        path = "".join(parts)
        method = chance.choice(("GET", "GET", "POST", "DELETE", "PATCH"))
        scope = {"type": "http", "method": method, "path": path, "root_path": ""}
        matches = ((route, *route.matches(scope)) for route in OPERATIONS)
        # Starlette's `$` also matches before a line feed at the end of the path.
        theirs = next(
            (
                (route.operation, child["path_params"])
                for route, match, child in matches
                if match is Match.FULL and route.path_regex.fullmatch(path)
            ),
            None,
        )
        assert TABLE.find(method, path) == theirs, (method, path)
        found += theirs is not None
    assert found > 100 * TIMES
    report("router", 1_000 * TIMES)


def test_random_queries_are_split_as_by_starlette(chance: random.Random) -> None:
    pieces = (b"a", b"b=", b"c=1", b"=", b"&", b"&", b"%41", b"%e9", b"%zz", b"+", b"\xff", b";")
    for _ in range(2_000 * TIMES):
        query = b"".join(chance.choices(pieces, k=chance.randrange(12)))
        theirs = QueryParams(query.decode("latin-1")).multi_items()
        try:
            unquote_to_bytes(query).decode("utf-8")
        except UnicodeDecodeError:
            # agentctl keeps invalid bytes, and refuses them where they are a value.
            assert len(parse_pairs(query)) == len(theirs)
        else:
            assert parse_pairs(query) == theirs, query
    report("query strings", 2_000 * TIMES)


def test_too_many_pairs_are_refused() -> None:
    assert len(parse_pairs(b"&".join([b"a=1"] * MAXIMUM_PAIRS))) == MAXIMUM_PAIRS
    with pytest.raises(BadRequest, match="More than 100 fields"):
        parse_pairs(b"&".join([b"a=1"] * (MAXIMUM_PAIRS + 1)))


def _is_outside_of_utc(value: object) -> bool:
    """Return True for a time before the year 1 or after 9999 in UTC, which could not be written."""
    if not isinstance(value, datetime):
        return False
    try:
        value.astimezone(UTC)
    except OverflowError:
        return True
    return False


@pytest.mark.parametrize("annotation", KINDS, ids=("int", "bool", "float", "choice", "time"))
def test_random_values_are_parsed_as_by_fastapi(annotation: Any, chance: random.Random) -> None:
    reference, allowed = KINDS[annotation]
    adapter = TypeAdapter(reference)
    ours = compile_type(annotation)
    accepted = 0
    for _ in range(1_500 * TIMES):
        text = chance.choice(TEXTS)
        for _ in range(chance.choice((0, 0, 1, 2))):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice("0159-+.:TZ e_x\n") + text[place + 1 :]
        try:
            value = ours.parse(text)
        except WrongValue:
            value = None
        try:
            theirs = adapter.validate_python(text)
        except ValidationError:
            theirs = None
        if value is not None:
            accepted += 1
            if isinstance(theirs, datetime):
                theirs = (theirs - EPOCH) // timedelta(microseconds=1)
            assert value == theirs, text
        elif theirs is not None and not _is_outside_of_utc(theirs):
            assert re.fullmatch(allowed, text, re.ASCII) is None, text
    assert accepted > 10 * TIMES
    report("parameters", 1_500 * TIMES)
