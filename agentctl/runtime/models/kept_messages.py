"""Messages of a run that waits, as JSON for its checkpoint.

An answer keeps the form of its provider: some providers need it back, such as signed thinking.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentctl.runtime.models.calls import Message, NativeMessage

if TYPE_CHECKING:
    from agentctl.runtime.models.attempts import PreparedModel


def dump_message(message: Message, models: Sequence[PreparedModel]) -> dict[str, Any]:
    """Return a message as a JSON object.

    Args:
        models: the models of the run.
    """
    native: NativeMessage | None = message.get("native")
    dumped = {name: value for name, value in message.items() if name != "native"}
    model = next((one for one in models if native and one.connection is native.connection), None)
    if native is not None and model is not None:
        dumped["native"] = {"model": model.id, "value": model.connection.dump_native(native.value)}
    return dumped


def load_message(stored: dict[str, Any], models: Sequence[PreparedModel]) -> Message:
    """Return the message of `dump_message`; in neutral form if its model cannot read it."""
    message = dict(stored)
    native = message.pop("native", None)
    model = next((one for one in models if native and one.id == native["model"]), None)
    if model is not None:
        value = model.connection.load_native(native["value"])
        if value is not None:
            message["native"] = NativeMessage(model.connection, value)
    return message
