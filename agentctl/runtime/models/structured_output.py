"""Structured results of runs: their schemas, and the validation of answers (docs/models.md).

A schema is that of a pydantic model in the configuration or of the request of a run. Schemas of
requests come from callers, so their size and the cost of a validation are limited: patterns are
matched in linear time, and references to other documents and recursive schemas are refused.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.errors import InvalidConfiguration, ValidationFailed
from agentctl.records.text import replace_unstorable
from agentctl.runtime.imports import UnusableObject, load_object
from agentctl.runtime.json_schema import check_request_schemas, list_schema_problems
from agentctl.runtime.json_values import clean_json_value

if TYPE_CHECKING:
    from pydantic import BaseModel

MAXIMUM_ANSWER_BYTES = 262_144
"""Maximum size of a structured answer, which is validated in one step of the event loop."""

_MAXIMUM_PROBLEMS = 10
_PROBLEM_CHARACTERS = 200
_FENCED = re.compile(r"\s*```(?:json)?\s*\n(?P<text>.*?)\n?\s*```\s*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class InvalidAnswer(Exception):
    """An answer that does not match its schema.

    Args:
        problems: descriptions for the model, one line each.
    """

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = [problem[:_PROBLEM_CHARACTERS] for problem in problems[:_MAXIMUM_PROBLEMS]]

    @property
    def prompt(self) -> str:
        """The request to the model to correct its answer."""
        lines = "\n".join(f"- {problem}" for problem in self.problems)
        return (
            "Your answer does not match the required JSON Schema:\n"
            f"{lines}\nAnswer again with the corrected JSON document and nothing else."
        )


class OutputSchema(ABC):
    """The schema of a structured result."""

    json_schema: dict[str, Any]
    """The JSON Schema that the model receives; it describes an object."""

    name: str | None = None
    """A name of letters, digits, "_" and "-"; None without a name."""

    description: str | None = None
    """Description of the result; None without a description."""

    async def parse(self, text: str) -> Any:
        """Parse and validate an answer, also one in a fenced code block; return a JSON value.

        Raises:
            InvalidAnswer: the answer is not JSON, does not match the schema, or is too large.
        """
        if fenced := _FENCED.fullmatch(text):
            text = fenced["text"]
        if len(text.encode()) > MAXIMUM_ANSWER_BYTES:
            raise InvalidAnswer(f"it has more than {MAXIMUM_ANSWER_BYTES} bytes")
        try:
            value = clean_json_value(json.loads(text))
        except (ValueError, RecursionError):
            raise InvalidAnswer("it is not a JSON document") from None
        return await self.validate(value)

    @abstractmethod
    async def validate(self, value: Any) -> Any:
        """Validate a JSON value and return the result as a JSON value.

        Raises:
            InvalidAnswer: the value does not match the schema.
        """


class ModelSchema(OutputSchema):
    """The schema of a pydantic model."""

    def __init__(self, model: type[BaseModel]) -> None:
        self.json_schema = model.model_json_schema()
        self.name = model.__name__ if _NAME.fullmatch(model.__name__) else None
        self.description = (model.__doc__ or "").strip() or None
        self._model = model

    async def validate(self, value: Any) -> Any:
        from pydantic import ValidationError

        try:
            instance = self._model.model_validate_json(json.dumps(value))
        except ValidationError as error:
            raise InvalidAnswer(*map(_describe_error, error.errors(include_url=False))) from None
        return clean_json_value(instance.model_dump(mode="json"))


class RequestSchema(OutputSchema):
    """The JSON Schema of a request, which `check_output_schema` has checked."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.json_schema = schema

    async def validate(self, value: Any) -> Any:
        if problems := await list_schema_problems(self.json_schema, value, _MAXIMUM_PROBLEMS):
            raise InvalidAnswer(
                *(
                    replace_unstorable(f"{'/'.join(map(str, steps)) or 'the document'}: {text}")
                    for steps, text in problems
                )
            )
        return value


def load_output_model(owner: str, reference: str, folder: Path | None) -> ModelSchema:
    """Load the pydantic model of an agent's `output`.

    Args:
        owner: the component, for the error.
        reference: a name of the form `package.module:Name`.
        folder: folder of the configuration, which is searched first.

    Raises:
        InvalidConfiguration: it is not the name of a pydantic model that describes an object.
    """
    try:
        model = load_object(reference, folder)
        return ModelSchema(_check_model(model))
    except UnusableObject as error:
        raise InvalidConfiguration(
            f"The {owner} cannot use the output {reference!r}: {error.what}", hint=error.hint
        ) from error


def _check_model(value: object) -> type[BaseModel]:
    from pydantic import BaseModel, RootModel

    if not isinstance(value, type) or not issubclass(value, BaseModel):
        raise UnusableObject("it is not a pydantic model")
    if issubclass(value, RootModel):
        raise UnusableObject("it is a RootModel; an output is an object")
    try:
        value.model_json_schema()
    except Exception as error:
        raise UnusableObject(f"it has no JSON Schema ({type(error).__name__})") from error
    return value


async def check_output_schema(schema: dict[str, Any]) -> None:
    """Check the JSON Schema of a request.

    Raises:
        ValidationFailed: it is not a JSON Schema of an object, refers to another document, is
            recursive, or has too many subschemas or patterns.
        Unavailable: see `check_request_schemas`.
    """
    if schema.get("type") != "object":
        raise ValidationFailed('output_schema must have "type": "object"')
    await check_request_schemas({"output_schema": schema})


def _describe_error(error: Any) -> str:
    where = "/".join(map(str, error["loc"]))
    return replace_unstorable(f"{where or 'the document'}: {error['msg']}")
