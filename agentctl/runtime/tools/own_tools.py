"""The tools that agentctl itself gives to models: their records, and the base of their actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from agentctl.light_dataclass import dataclass
from agentctl.runtime.pauses import CallOutcome

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.transcript.conversation import Conversation


@dataclass(frozen=True, slots=True)
class OwnAction(ABC):
    """A tool with a fixed record as an action of a model.

    Its calls have no effects and may be made again, unless a class states otherwise.
    """

    has_effects: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True

    tool: ToolRecord

    def record(self) -> ToolRecord:
        return self.tool

    @abstractmethod
    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome: ...


def build_tool(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    required: Sequence[str] | None = None,
) -> ToolRecord:
    """Build the record of a tool whose arguments are the members of an object.

    Args:
        required: names of the required arguments; None for all.
    """
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": [*(properties if required is None else required)],
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "parameters": parameters}
