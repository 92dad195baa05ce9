"""What crosses the port: JSON as bytes, with the record that it holds made on demand.

The error body of spec.md "Errors".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NotRequired, TypeVar, cast

import orjson
from typing_extensions import TypedDict

__all__ = ["Document", "ErrorBody", "ForbiddenBody", "build_document"]

Record = TypeVar("Record", covariant=True)
Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Document(Generic[Record]):
    """One JSON document. `raw` is what was, or will be, sent: UTF-8 bytes without a newline."""

    raw: bytes

    @property
    def value(self) -> Record:
        """The parsed record. Parsed at each call: ask once and keep it."""
        return cast(Record, orjson.loads(self.raw))


def build_document(record: Built) -> Document[Built]:
    """The document of a record that was built in memory."""
    return Document(orjson.dumps(record))


class ErrorBody(TypedDict):
    """An error: what happened, and a code to sort it by."""

    detail: str
    error_code: NotRequired[str | None]


class ForbiddenBody(TypedDict):
    """A refusal for lack of scopes: any one of `required_scopes` would do."""

    detail: str
    error_code: NotRequired[str | None]
    required_scopes: list[str]
