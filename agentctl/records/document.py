"""Documents: JSON as bytes with the record parsed on demand; error records; stored JSON texts.

Operations return documents. The server sends the bytes, `-o json` prints them, and only a table
parses the record. Another program may have damaged a stored text (docs/databases.md "Damaged
data").
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NotRequired, TypeVar

import orjson
from typing_extensions import TypedDict

from agentctl.errors import DatabaseDamaged

Parsed = TypeVar("Parsed")


def parse_stored(text: str, kind: type[Parsed]) -> Parsed | None:
    """Return the value of a stored JSON text; None if it is not JSON, or not of the type."""
    try:
        value = orjson.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, kind) else None


def parse_records(text: str) -> list[dict[str, Any]] | None:
    """Return the objects of a stored JSON array; None if the text is damaged."""
    entries = parse_stored(text, list)
    if entries is None or not all(isinstance(entry, dict) for entry in entries):
        return None
    return entries


def require(parsed: Parsed | None) -> Parsed:
    """Return a parsed value.

    Raises:
        DatabaseDamaged: its text is damaged.
    """
    if parsed is None:
        raise build_damage()
    return parsed


def build_damage() -> DatabaseDamaged:
    """Return the error of a read of damaged data."""
    return DatabaseDamaged(
        "The database is damaged",
        cause="a stored JSON text is not valid",
        hint="restore the database from a backup",
    )


Record = TypeVar("Record", covariant=True)
Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Document(Generic[Record]):
    """One JSON document. `raw` is the body of the response: UTF-8 bytes without a newline."""

    raw: bytes

    @property
    def value(self) -> Record:
        """The parsed record; every access parses it again."""
        record: Record = orjson.loads(self.raw)
        return record


def build_document(record: Built) -> Document[Built]:
    """Serialize a record."""
    return Document(orjson.dumps(record))


def derive(*, without: Collection[str], after: Mapping[str, Sequence[str]]) -> Callable[[Any], Any]:
    """Remove fields that a record has from its base. Type checkers still know the fields.

    Args:
        without: the removed fields.
        after: fields that follow another field; the other fields have the order of the base.
    """

    def build(record: Any) -> Any:
        moved_fields = {name for names in after.values() for name in names}
        order = list[str]()
        for name in record.__annotations__:
            if name not in moved_fields:
                order += [name, *after.get(name, ())]
        annotations = {name: record.__annotations__[name] for name in order if name not in without}

        derived: Any = TypedDict(record.__name__, annotations)  # type: ignore[misc]
        derived.__module__ = record.__module__
        derived.__doc__ = record.__doc__
        return derived

    return build


class ErrorBody(TypedDict):
    """The body of an error (docs/contract.md "Errors")."""

    detail: str
    error_code: NotRequired[str | None]


class ForbiddenBody(TypedDict):
    """The body of a 403: any one of `required_scopes` suffices."""

    detail: str
    error_code: NotRequired[str | None]
    required_scopes: list[str]


class HeldBody(TypedDict):
    """The body of a 409 of a deletion: `session_ids` are held, not always all of them."""

    detail: str
    error_code: NotRequired[str | None]
    session_ids: NotRequired[list[str]]
