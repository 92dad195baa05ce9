"""Bodies in the shapes of AgentOS, kept by the documents that they were built from.

Clients read the same components, sessions and runs again and again, and a document that has not
changed has the same body. So it is neither parsed nor built again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import orjson

from agentctl.interop.agentos.server.directory import Directory
from agentctl.records.document import Document
from agentctl.server.answers import BytesResponse, document_response

MAXIMUM_BYTES = 8 << 20
"""Bytes of all kept bodies and of their documents, in one process."""

MAXIMUM_ENTRY_BYTES = 256 << 10
"""Bytes of a document and its body; larger ones are not kept."""


class BuiltBodies:
    """The bodies that were used last.

    Attributes:
        size: bytes of the kept documents and bodies.
    """

    def __init__(self) -> None:
        self.size = 0
        self._bodies: OrderedDict[Hashable, bytes] = OrderedDict()

    def respond(self, key: tuple[Hashable, ...], build: Callable[[], Any]) -> BytesResponse:
        """Return the response with the body for a key.

        Args:
            key: everything that the body depends on: the name of the shape, the bytes of the
                documents, and parameters of the request.
            build: returns the value of the body, if it is not kept.
        """
        body = self._bodies.get(key)
        if body is not None:
            self._bodies.move_to_end(key)
            return document_response(Document(body))
        body = orjson.dumps(build())
        size = _count_bytes(key, body)
        if size <= MAXIMUM_ENTRY_BYTES:
            self._bodies[key] = body
            self.size += size
            while self.size > MAXIMUM_BYTES:
                self.size -= _count_bytes(*self._bodies.popitem(last=False))
        return document_response(Document(body))


class Endpoints:
    """The base of endpoints."""

    def __init__(self, directory: Directory, bodies: BuiltBodies) -> None:
        self._directory, self._bodies = directory, bodies


def _count_bytes(key: Any, body: bytes) -> int:
    return len(body) + sum(len(part) for part in key if isinstance(part, bytes))
