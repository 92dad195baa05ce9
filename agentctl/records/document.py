"""What crosses the port: JSON as bytes, with the record that it holds made on demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar, cast

import orjson

__all__ = ["Document", "document_of"]

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


def document_of(record: Built) -> Document[Built]:
    """The document of a record that was built in memory."""
    return Document(orjson.dumps(record))
