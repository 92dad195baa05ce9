"""A field of a request is declared once: server, remote backend and commands follow it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Annotated, Any
from urllib.parse import urlencode

import pytest

from agentctl.auth.principal import Principal
from agentctl.cli.request_options import CommandSignature
from agentctl.interface.declarations import Option, Query, Signature, find_address, sort_names
from agentctl.interface.operations import FAMILIES, OPERATIONS, Operations
from agentctl.interface.requests import Page
from agentctl.records.times import ParsedTimestamp
from agentctl.remote.queries import query_of
from agentctl.server.requests import Parameters
from agentctl.service.service import ServiceOperations


@dataclass(frozen=True)
class Wine:
    """A filter of wines."""

    grapes: Annotated[
        tuple[str, ...], Query("Only of these"), Option("--grape", "NAME", "Filter by grape")
    ] = ()
    year: Annotated[int | None, Query("Only of this year", ge=1900)] = None
    bottled_after: Annotated[
        ParsedTimestamp | None, Query("Only later"), Option("--since", "AGE", "Filter by age")
    ] = None
    page: Page = Page(sort_by="updated_at")


WINE = Wine(("syrah", "merlot"), 1999, 1_500_000, Page(7, sort_by="updated_at"))


def list_wines(filter: Wine, *, cellar: Annotated[str, Query("The cellar")] = "main") -> None:
    raise NotImplementedError


async def list_command(target: object, filter: Wine, *, cellar: str = "main") -> None:
    raise NotImplementedError


def test_query_that_is_sent_is_the_request_that_is_read() -> None:
    signature = Signature(list_wines)
    sent = urlencode(query_of(WINE)).encode("ascii")
    values, error = Parameters(signature.parameters, {}).read({}, sent, [])
    assert error is None
    assert signature.build_arguments(values) == {"filter": WINE, "cellar": "main"}


def test_fields_replace_the_request_and_have_its_defaults() -> None:
    parameters = {each.name: each.default for each in Signature(list_wines).parameters}
    assert parameters == {
        "grapes": (), "year": None, "bottled_after": None, "limit": 20, "page": 1, "cursor": None,
        "sort_by": "updated_at", "sort_order": "desc", "cellar": "main",
    }  # fmt: skip


def test_a_field_that_is_no_parameter_keeps_its_default() -> None:
    signature = Signature(list_wines, without=("year", "sort_order"))
    values = {each.name: each.default for each in signature.parameters}
    assert "year" not in values
    assert signature.build_arguments(values | {"limit": 3})["filter"] == Wine(
        page=Page(3, sort_by="updated_at")
    )


@pytest.mark.parametrize(
    ("order", "expected"),
    [((...,), "abcd"), (("c", ...), "cabd"), ((..., "a"), "bcda"), (("d", ..., "a"), "dbca")],
)
def test_order_of_names(order: tuple[Any, ...], expected: str) -> None:
    assert "".join(sort_names("abcd", order)) == expected


def test_options_of_a_command_are_the_declared_ones() -> None:
    signature = CommandSignature(
        partial(list_command, None), ("sort_by", "sort_order"), ("page", ...)
    )
    names = [each.name for each in signature.parameters]
    assert names == ["page", "grape", "since", "limit", "cursor", "cellar"]
    values: dict[str, Any] = dict.fromkeys(names) | {"page": 2, "limit": 5, "grape": ["syrah"]}
    since = "1970-01-01T00:00:01.500Z"
    assert signature.build_arguments(values | {"since": since, "cellar": "old"}) == {
        "filter": Wine(("syrah",), None, 1_500_000, Page(5, 2, sort_by="updated_at")),
        "cellar": "old",
    }


def test_the_local_backend_has_every_operation() -> None:
    local = ServiceOperations(SimpleNamespace(), Principal(None))  # type: ignore[arg-type]
    declared_methods = [
        method
        for family in FAMILIES
        for method in vars(family).values()
        if hasattr(method, "declared")
    ]

    missing = set[str]()
    for method in declared_methods:
        address = find_address(method)
        family_name, _, name = address.partition(".")
        if getattr(type(getattr(local, family_name)), name) is method:
            missing.add(address)
    assert missing == set()


def test_every_family_is_an_attribute_of_its_name() -> None:
    """The server and the client find a method by the name of its class: `SessionsFamily.get`."""
    operations = Operations()
    for declared in OPERATIONS.values():
        method = attrgetter(declared.address)(operations)
        assert declared in method.declared
