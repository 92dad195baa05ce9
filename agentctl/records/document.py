"""Documents: JSON as bytes with the record parsed on demand; and the error records.

Operations return documents. The server sends the bytes, `-o json` prints them, and only a table
parses the record.
"""

from __future__ import annotations

from typing import Generic, NotRequired, TypeVar, cast

import orjson
from typing_extensions import TypedDict

from agentctl.light_dataclass import dataclass

Record = TypeVar("Record", covariant=True)
Built = TypeVar("Built")


@dataclass(frozen=True, slots=True)
class Document(Generic[Record]):
    """One JSON document. `raw` is the body of the response: UTF-8 bytes without a newline."""

    raw: bytes

    @property
    def value(self) -> Record:
        """The parsed record; every access parses it again."""
        return cast(Record, orjson.loads(self.raw))


def build_document(record: Built) -> Document[Built]:
    """Serialize a record."""
    return Document(orjson.dumps(record))


class ErrorBody(TypedDict):
    """The body of an error (docs/contract.md "Errors")."""

    detail: str
    error_code: NotRequired[str | None]


class ForbiddenBody(TypedDict):
    """The body of a 403: any one of `required_scopes` suffices."""

    detail: str
    error_code: NotRequired[str | None]
    required_scopes: list[str]
