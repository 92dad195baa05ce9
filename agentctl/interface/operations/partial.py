"""The base of backends of other products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from agentctl.errors import Unsupported
from agentctl.interface.operations import Operations


class PartialOperations(Operations):
    """The base of backends of another product, which implement some of the `Operations`.

    A call of any other operation raises `Unsupported` with the name of the backend, also of one
    that is added to `Operations` later.

    Args:
        name: the subject of the error: the product and its version.
        place: the URL or the file, for the cause of the error.

    Attributes:
        without_counterpart: operations that the product does not have: the end of the error, and a
            hint.
    """

    without_counterpart: ClassVar[Mapping[str, tuple[str, str | None]]] = {}

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        self.place = place

    def build_missing_error(self, what: str, hint: str | None = None) -> Unsupported:
        """Build the error of an operation that the backend does not have.

        Args:
            what: completes the sentence "the product does not have …".
        """
        return Unsupported(
            f"{self.name} does not have {what}",
            cause=f"{self.place} is {self.name}, not agentctl",
            hint=hint,
        )

    def execute(self, name: str, arguments: Mapping[str, Any]) -> Any:
        """Raise Unsupported: the backend does not override the operation."""
        unknown = f"the operation {name}", None
        raise self.build_missing_error(*self.without_counterpart.get(name, unknown))
