"""The messages of a library in neutral form, for the models in the code of agents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError
from agentctl.runtime.files import LoadedFile
from agentctl.runtime.models.calls import build_result

NATIVE = "agentctl_native"
"""Name under which the messages of libraries keep `Answered.native`."""


class NeutralMessages:
    """The messages of a request, without those of the system.

    Attributes:
        messages: neutral messages, in their order.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._instructions: list[str] = []
        self._names: dict[str, str] = {}

    @property
    def instructions(self) -> str:
        """The texts of the system."""
        return "\n\n".join(filter(None, self._instructions))

    def add_system(self, text: str) -> None:
        self._instructions.append(text)

    def add_user(self, text: str, files: Sequence[LoadedFile] = ()) -> None:
        message: dict[str, Any] = {"role": "user", "content": text}
        self.messages.append({**message, "files": files} if files else message)

    def add_answer(
        self, text: str, calls: Iterable[tuple[str, str, Any]], kept: Mapping[str, Any] | None
    ) -> None:
        """Add an answer of a model.

        Args:
            calls: the id, the name and the arguments of each.
            kept: what the library has kept with the message, such as the value of `NATIVE`.
        """
        self.messages.append({"role": "assistant", "content": text})
        self.extend_answer(calls=calls, kept=kept)

    def extend_answer(
        self,
        text: str = "",
        calls: Iterable[tuple[str, str, Any]] = (),
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """Add to the answer before, for a library whose answers have several items."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        answer = self.messages[-1]
        answer["content"] += text
        for call_id, name, arguments in calls:
            self._names[call_id] = name
            call = {"id": call_id, "name": name, "arguments": arguments}
            answer.setdefault("tool_calls", []).append(call)
        if native := (kept or {}).get(NATIVE):
            answer["native"] = native

    def add_result(self, call_id: str, text: str, name: str | None = None) -> None:
        """Add the result of a call; without a name, that of the answer which has requested it."""
        named = self._names.get(call_id, "") if name is None else name
        self.messages.append(build_result(call_id, named, text))


def check_model_failure(failure: ExecutionError) -> None:
    """Raise a failure that is not one of a model: no retry or fallback of a library catches it."""
    if failure.code not in MODEL_FAILURES:
        raise failure
