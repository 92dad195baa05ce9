"""The JSON Schema of the configuration, which editors read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentctl.config.json_schema import build_json_schema
from agentctl.config.load import DEMO_CONFIG, SAMPLE_CONFIG
from agentctl.config.tables import ENTRY_TABLES, list_sections

REPOSITORY = Path(__file__).parents[2]

EXAMPLES = [
    *(REPOSITORY / "docs" / "examples").rglob("agentctl.toml"),
    REPOSITORY / "packaging" / "agentctl.toml",
    REPOSITORY / "agentctl" / "config" / "demo_mcp.toml",
]

WRONG = {
    "unknown table": '[servers]\nhost = "x"',
    "unknown key": "[server]\nprot = 7777",
    "type": '[server]\nport = "7777"',
    "bound": "[server]\nport = 65536",
    "choice": '[server]\non_disconnect = "stop"',
    "pattern": '[[agents]]\nid = "two words"',
    "missing id": '[[agents]]\nmodel = "fast"',
    "entry as a table": '[agents]\nid = "a"',
    "unknown key of a nested table": '[[agents]]\nid = "a"\nmemory = { modus = "tool" }',
    "constant with another value": "[limits]\nbody_seconds = 31",
}


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = build_json_schema()
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_configurations_of_the_repository_are_valid(validator: Any, path: Path) -> None:
    assert [*validator.iter_errors(tomllib.loads(path.read_text()))] == []


@pytest.mark.parametrize("text", [SAMPLE_CONFIG, DEMO_CONFIG], ids=["sample", "demo"])
def test_configurations_of_the_package_are_valid(validator: Any, text: str) -> None:
    assert [*validator.iter_errors(tomllib.loads(text))] == []


@pytest.mark.parametrize("text", WRONG.values(), ids=WRONG)
def test_wrong_configuration_is_refused(validator: Any, text: str) -> None:
    assert [*validator.iter_errors(tomllib.loads(text))]


def test_former_key_with_its_value_is_valid(validator: Any) -> None:
    assert [*validator.iter_errors({"limits": {"body_seconds": 30}})] == []


def test_keys_have_the_comments_of_the_sample() -> None:
    schema = build_json_schema()
    assert {*list_sections(), *ENTRY_TABLES} <= {*schema["properties"]}

    server = schema["definitions"]["Server"]["properties"]
    assert server["port"]["description"].startswith("0: any free port")
    undescribed = [
        f"{name}.{key}"
        for name, table in list_sections().items()
        for key, part in schema["definitions"][table.__name__]["properties"].items()
        if "description" not in part
    ]
    assert undescribed == []
