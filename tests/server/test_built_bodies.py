"""The bodies in the shapes of AgentOS that a process keeps."""

from __future__ import annotations

import orjson

from agentctl.interop.agentos.server.operation import (
    MAXIMUM_BYTES,
    MAXIMUM_ENTRY_BYTES,
    BuiltBodies,
)


def test_body_of_a_known_document_is_built_once() -> None:
    bodies = BuiltBodies()
    built = list[bytes]()

    def respond(raw: bytes) -> bytes:
        def build() -> dict[str, int]:
            built.append(raw)
            return {"size": len(raw)}

        return bytes(bodies.respond(("run", raw), build).body)

    assert respond(b"[1]") == respond(b"[1]") == orjson.dumps({"size": 3})
    assert respond(b"[1,2]") == orjson.dumps({"size": 5})
    assert built == [b"[1]", b"[1,2]"]


def test_kept_bodies_are_bounded() -> None:
    bodies = BuiltBodies()
    for number in range(200):
        raw = number.to_bytes(2, "big") * 50_000
        bodies.respond(("run", raw), lambda: "x" * 1_000)
        assert bodies.size <= MAXIMUM_BYTES
    assert bodies.size > MAXIMUM_BYTES - 200_000
    size = bodies.size
    bodies.respond(("run", b"x" * MAXIMUM_ENTRY_BYTES), lambda: "x")
    assert bodies.size == size
