"""The checkpointer of one run, for graphs without their own; its content is stored at a pause."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from agentctl.runtime.failures import ExecutionError

THREAD = "run"
"""The thread of the run: its saver has no other one."""


class _LazySerializer:
    """Serializes values when they are stored, not when the graph keeps them.

    Most runs do not pause: they serialize nothing.
    """

    def __init__(self) -> None:
        # The values come from the database of this service.
        self._serializer = JsonPlusSerializer(allowed_msgpack_modules=True)

    def dumps_typed(self, value: Any) -> tuple[str, Any]:
        return "object", value

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return self._serializer.loads_typed(self.encode(data))

    def encode(self, data: tuple[str, Any]) -> tuple[str, bytes]:
        kind, value = data
        return self._serializer.dumps_typed(value) if kind == "object" else (kind, value)


class RunSaver(InMemorySaver):  # type: ignore[misc]
    """A checkpointer in memory for one leg of one run."""

    def __init__(self) -> None:
        self._lazy = _LazySerializer()
        super().__init__(serde=self._lazy)

    def to_json(self) -> dict[str, Any]:
        """Return the newest checkpoint of the graph and of its subgraphs as a JSON object.

        Raises:
            ExecutionError: the state of the graph cannot be serialized.
        """
        try:
            return self._dump()
        except Exception as error:
            raise ExecutionError(
                "AGENT_FAILED",
                "The run cannot wait: the state of the graph has a value that cannot be stored",
            ) from error

    def prune(self) -> None:
        """Forget all checkpoints but the newest one of each graph."""
        kept = set()
        for space, stored in self.storage[THREAD].items():
            newest = max(stored, default="")
            for checkpoint_id in [each for each in stored if each != newest]:
                del stored[checkpoint_id]
                self.writes.pop((THREAD, space, checkpoint_id), None)
            if newest:
                versions = self._lazy.loads_typed(stored[newest][0])["channel_versions"]
                kept |= {(THREAD, space, *item) for item in versions.items()}
        for key in [each for each in self.blobs if each not in kept]:
            del self.blobs[key]

    def _dump(self) -> dict[str, Any]:
        checkpoints, writes, blobs = [], [], []
        for space, stored in self.storage[THREAD].items():
            if not stored:
                continue
            checkpoint_id = max(stored)
            checkpoint, metadata, _ = stored[checkpoint_id]
            checkpoints.append(
                [space, checkpoint_id, self._to_text(checkpoint), self._to_text(metadata)]
            )
            pending = self.writes.get((THREAD, space, checkpoint_id), {})
            for (task_id, index), (_, channel, value, path) in pending.items():
                writes.append(
                    [space, checkpoint_id, task_id, index, channel, self._to_text(value), path]
                )
            versions = self._lazy.loads_typed(checkpoint)["channel_versions"]
            for channel, version in versions.items():
                value = self.blobs.get((THREAD, space, channel, version))
                if value is not None:
                    blobs.append([space, channel, version, self._to_text(value)])
        return {"checkpoints": checkpoints, "writes": writes, "blobs": blobs}

    def _to_text(self, data: tuple[str, Any]) -> list[str]:
        kind, value = self._lazy.encode(data)
        return [kind, base64.b64encode(value).decode()]

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> RunSaver:
        """Return the checkpointer of a pause."""
        saver = cls()
        for space, checkpoint_id, checkpoint, metadata in stored["checkpoints"]:
            values = _from_text(checkpoint), _from_text(metadata), None
            saver.storage[THREAD][space][checkpoint_id] = values
        for space, checkpoint_id, task_id, index, channel, value, path in stored["writes"]:
            saver.writes[THREAD, space, checkpoint_id][task_id, index] = (
                task_id,
                channel,
                _from_text(value),
                path,
            )
        for space, channel, version, value in stored["blobs"]:
            saver.blobs[THREAD, space, channel, version] = _from_text(value)
        return saver


def _from_text(stored: list[str]) -> tuple[str, bytes]:
    return stored[0], base64.b64decode(stored[1])
