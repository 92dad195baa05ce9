"""Answers of a server compared with its OpenAPI document, which declares each of their fields."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import orjson

__all__ = ["DeclaredAnswers"]

JSON = "application/json"
EVENTS = "text/event-stream"

DOCUMENT = "urn:agentctl:openapi"
"""The URI of the components, to which the schemas of answers refer."""


class DeclaredAnswers:
    """The answers that a document declares.

    A record must have its required fields and no other ones than those that are declared. The
    document allows further fields, which a later version of a server may add.

    Args:
        document: the OpenAPI document as JSON.
    """

    def __init__(self, document: bytes) -> None:
        self.document: dict[str, Any] = orjson.loads(document)
        components = copy.deepcopy(self.document["components"])
        for schema in components["schemas"].values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)
        # A copy of all components in each schema would take most of the time of the checks.
        self._components = jsonschema_rs.Registry([(DOCUMENT, {"components": components})])
        self._operations = {
            operation["operationId"]: operation
            for methods in self.document["paths"].values()
            for operation in methods.values()
        }

    def check(self, name: str, status: int, content_type: str, content: bytes) -> None:
        """Check an answer of an operation. Pages, and answers without a body, are not checked."""
        if name not in self._operations or not content:
            return
        responses = self._operations[name]["responses"]
        assert str(status) in responses, f"{name}: the status {status} is not declared"
        media_type = content_type.partition(";")[0]
        if media_type == JSON:
            self.check_value(responses[str(status)]["content"][JSON]["schema"], content)
        elif media_type == EVENTS:
            schema = responses[str(status)]["content"][EVENTS]["schema"]
            for data in _find_data(content):
                self.check_value(schema, data)
        else:
            types = responses[str(status)]["content"].keys()
            assert {media_type, "*/*"} & types, f"{name}: {media_type}"

    def check_document(self, name: str, content: bytes) -> None:
        """Check the document of a success of an operation."""
        responses = self._operations[name]["responses"]
        success = next(status for status in ("200", "201") if status in responses)
        self.check_value(responses[success]["content"][JSON]["schema"], content)

    def check_event(self, data: bytes) -> None:
        """Check the data of an event of a run."""
        self.check_value({"$ref": "#/components/schemas/RunEvent"}, data)

    def check_value(self, schema: Any, content: bytes) -> None:
        """Check JSON with a schema of the document."""
        self._validator(orjson.dumps(schema)).validate(orjson.loads(content))

    @functools.cache  # noqa: B019  # a test run has few of them
    def _validator(self, schema: bytes) -> Any:
        referring = schema.replace(b'"#/components/', f'"{DOCUMENT}#/components/'.encode())
        return jsonschema_rs.validator_for(
            orjson.loads(referring), validate_formats=True, registry=self._components
        )


def _find_data(content: bytes) -> Iterator[bytes]:
    for line in content.split(b"\n"):
        if line.startswith(b"data: "):
            yield line.removeprefix(b"data: ")
