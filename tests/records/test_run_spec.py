"""The specification of a run has a JSON form."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson

from agentctl.records.run_spec import RunSpec
from tests.kit.run_specs import a_spec

MESSAGE = {"role": "user", "content": "hi", "created_at": 1}


def test_specification_has_a_json_form() -> None:
    spec = a_spec(
        claims='{"sub":"ann"}', metadata='{"a":1}', earlier_messages=(MESSAGE,), stop=("a", "b")
    )
    values: dict[str, Any] = orjson.loads(orjson.dumps(spec))
    values |= {name: tuple(values[name]) for name in ("earlier_messages", "stop")}
    assert RunSpec(**values) == spec
    assert {*values} == {field.name for field in dataclasses.fields(RunSpec)}


def test_text_form_has_no_claims() -> None:
    assert "ann" not in repr(a_spec(user_id=None, claims='{"sub":"ann"}'))
