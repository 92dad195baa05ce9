"""Structured results: schemas of agents and requests, validation, and the correction of answers.

docs/internals/security-cases.md M24.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, Field, RootModel

from agentctl.config.settings import Agent, Model, Team
from agentctl.errors import AgentctlError, InvalidConfiguration
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.structured_output import check_output_schema, load_output_model
from agentctl.runtime.transcript.events import Content
from tests.kit.fake_context import FakeContext, run, settings, with_catalog
from tests.kit.model import ModelEndpoint


class Person(BaseModel):
    """A person."""

    name: str
    age: int = Field(ge=0)


class Names(RootModel[list[str]]):
    """A list is not an object."""


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name", "age"],
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}
VALID = json.dumps({"name": "Ann", "age": 4})
INVALID = json.dumps({"name": "Ann", "age": -4})
PERSON = f"{__name__}:Person"


def request(
    endpoint: ModelEndpoint, drafts: list[str], schema: Any = SCHEMA, *, output: str = ""
) -> tuple[FakeContext, ExecutionError | None]:
    """Run an agent whose model answers with the drafts in turn."""
    configured = settings(endpoint, model="drafts", agents=(Agent("a", "m", output=output),))

    async def work(catalog: Catalog) -> tuple[FakeContext, ExecutionError | None]:
        context = FakeContext(catalog)
        context.change_spec(output_schema=json.dumps(schema) if schema else None)
        try:
            await context.execute("agent", "a", json.dumps(drafts), [])
        except ExecutionError as failure:
            return context, failure
        return context, None

    return with_catalog(configured, work)


@pytest.mark.parametrize(("schema", "output"), [(SCHEMA, ""), (None, PERSON)])
def test_valid_answer_is_the_output_and_the_content(
    model_endpoint: ModelEndpoint, schema: Any, output: str
) -> None:
    model_endpoint.forget()
    fenced = f"```json\n{VALID}\n```"

    ended, failure = request(model_endpoint, [fenced], schema, output=output)

    assert failure is None
    assert ended.transcript.output == {"name": "Ann", "age": 4}
    assert [event.delta for event in ended.events if isinstance(event, Content)] == [fenced]
    assert ended.transcript.content == fenced
    (body,) = model_endpoint.requests("drafts")
    sent = body["response_format"]
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["schema"]["required"] == ["name", "age"]


@pytest.mark.parametrize("draft", [INVALID, "no JSON", '{"name": "Ann", "age": NaN}', "[" * 5_000])
@pytest.mark.parametrize(("schema", "output"), [(SCHEMA, ""), (None, PERSON)])
def test_invalid_answer_is_corrected_once(
    model_endpoint: ModelEndpoint, draft: str, schema: Any, output: str
) -> None:
    model_endpoint.forget()

    ended, failure = request(model_endpoint, [draft, VALID], schema, output=output)

    assert failure is None
    assert ended.transcript.output == {"name": "Ann", "age": 4}
    assert ended.transcript.content == ended.joined_deltas == VALID
    prompt = model_endpoint.requests("drafts")[-1]["messages"][-1]
    assert prompt["role"] == "user"
    assert "does not match the required JSON Schema" in prompt["content"]
    if draft == INVALID:
        assert "- age: " in prompt["content"]


def test_second_invalid_answer_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()

    ended, failure = request(model_endpoint, [INVALID, "still wrong", VALID])

    assert failure is not None
    assert (failure.code, failure.detail) == (
        "OUTPUT_INVALID",
        "The answer does not match the output schema",
    )
    assert ended.transcript.output is None
    assert ended.transcript.content == ended.joined_deltas == "still wrong"
    assert len(model_endpoint.requests("drafts")) == 2


def test_schema_of_the_request_overrides_that_of_the_agent(model_endpoint: ModelEndpoint) -> None:
    schema = {"type": "object", "required": ["x"]}
    ended, failure = request(model_endpoint, ['{"x": 1}'], schema, output=PERSON)
    assert failure is None
    assert ended.transcript.output == {"x": 1}


def test_answer_after_tool_calls_is_validated(model_endpoint: ModelEndpoint) -> None:
    class _Sum(BaseModel):
        result: int

    globals()["Sum"] = _Sum
    agent = Agent("a", "tools", tools=("tests.runtime.sample_tools:add",), output=f"{__name__}:Sum")
    model = Model("tools", "openai", "tool:add", base_url=model_endpoint.base_url, retries=0)
    with pytest.raises(ExecutionError) as caught:
        run(settings(models=(model,), agents=(agent,)), '{"a": 1}', component="a")
    assert caught.value.code == "OUTPUT_INVALID"


def test_leader_of_a_team_gives_a_structured_result(model_endpoint: ModelEndpoint) -> None:
    team = Team("t", "m", ("writer",), mode="broadcast")
    configured = settings(model_endpoint, model="history", teams=(team,))

    async def work(catalog: Catalog) -> FakeContext:
        context = FakeContext(catalog)
        context.change_spec(output_schema=json.dumps({"type": "object"}))
        with pytest.raises(ExecutionError) as caught:
            await context.execute("team", "t", "hi", [])
        assert caught.value.code == "OUTPUT_INVALID"
        return context

    assert json.loads(with_catalog(configured, work).transcript.content)


DEEP: dict[str, Any] = {"type": "object"}
WIDE = {
    "type": "object",
    "$defs": {
        **{f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(40)},
        "a40": {},
    },
    "$ref": "#/$defs/a0",
}


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        ({}, 'must have "type": "object"'),
        ({"type": "array"}, 'must have "type": "object"'),
        ({"type": "object", "properties": 5}, "is not a valid JSON Schema"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "is not a valid JSON Schema"),
        ({"type": "object", "patternProperties": {"(a": {}}}, "is not a valid JSON Schema"),
        ({"type": "object", "pattern": "(a{1,999}){1,999}"}, "has patterns that cost too much"),
        ({"type": "object", "$ref": "#a"}, "refers to something that it does not have"),
        ({"type": "object", "$ref": "#"}, "must not be recursive"),
        (
            {"type": "object", "$ref": "http://127.0.0.1:9/x"},
            "refers to something that it does not have",
        ),
        (
            {"type": "object", "$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
            "must not be recursive",
        ),
        ({"type": "object", "$id": "http://127.0.0.1:9/x"}, "must use no references except $ref"),
        (WIDE, "has more than 1000 subschemas"),
    ],
)
async def test_unusable_schema_is_rejected(schema: dict[str, Any], detail: str) -> None:
    with pytest.raises(AgentctlError) as caught:
        await check_output_schema(schema)
    assert caught.value.detail == f"output_schema {detail}"


async def test_pattern_of_a_schema_takes_linear_time() -> None:
    await check_output_schema(
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(a+)+$"}}}
    )


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("SCHEMA", "it is not a pydantic model"),
        ("Names", "it is a RootModel; an output is an object"),
        ("Missing", f"the module {__name__} has no Missing"),
    ],
)
def test_unusable_output_is_one_line(name: str, what: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        load_output_model("agent a", f"{__name__}:{name}", None)
    assert caught.value.detail == f"The agent a cannot use the output '{__name__}:{name}': {what}"
