"""A document as another machine sent it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar, cast

from agentctl import errors
from agentctl.records.document import Document

__all__ = ["Received", "Shape", "check_shape"]

Record = TypeVar("Record", covariant=True)
Shape = Literal["object", "array"]

_BRACKETS: dict[Shape, tuple[bytes, bytes]] = {"object": (b"{", b"}"), "array": (b"[", b"]")}
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Received(Document[Record]):
    """A document that is parsed late, and whose sender may have sent something else."""

    @property
    def value(self) -> Record:
        """The parsed record.

        Raises:
            errors.Unavailable: it is no JSON after all.
        """
        import orjson

        try:
            return cast(Record, orjson.loads(self.raw))
        except orjson.JSONDecodeError:
            raise errors.Unavailable("The server's answer is not the JSON that is due") from None


def check_shape(raw: bytes, shape: Shape) -> bool:
    """Whether `raw` begins and ends as an object or an array does, at the cost of two bytes."""
    first, last = _BRACKETS[shape]
    trimmed = raw.strip(_SPACE) if raw[:1].isspace() or raw[-1:].isspace() else raw
    return trimmed.startswith(first) and trimmed.endswith(last)
