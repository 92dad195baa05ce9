"""Tools from functions, and functions that are refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentctl.errors import InvalidConfiguration
from agentctl.runtime.tools.functions import InvalidArguments, Tool, load_tools
from tests.runtime import sample_tools


def tool(name: str) -> Tool:
    (loaded,) = load_tools("agent writer", (f"{sample_tools.TOOLS}:{name}",), None)
    return loaded


def load_error(*references: str, folder: Path | None = None) -> InvalidConfiguration:
    with pytest.raises(InvalidConfiguration) as refused:
        load_tools("agent writer", references, folder)
    return refused.value


def test_name_description_and_schema_come_from_the_function() -> None:
    assert tool("add").record() == {
        "name": "add",
        "description": "Adds two numbers.\n\nThe second is 2 unless given.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
    }


def test_annotated_metadata_is_in_the_schema() -> None:
    times = tool("whisper").parameters["properties"]["times"]

    assert times == {"type": "integer", "minimum": 1, "description": "how often", "default": 1}


def test_types_that_are_used_twice_are_defined_once() -> None:
    parameters = tool("weather").parameters

    assert list(parameters["$defs"]) == ["Place"]
    assert parameters["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert parameters["required"] == ["place"]


def test_arguments_are_converted_to_parameter_types() -> None:
    converted = tool("weather").convert({"place": {"city": "Bonn"}, "days": [{"city": "Ulm"}]})

    assert converted == {
        "place": sample_tools.Place(city="Bonn"),
        "days": [sample_tools.Place(city="Ulm")],
    }


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "place is missing"),
        ({"place": {"city": "x"}, "time": 1}, "time is unknown"),
        ({"place": {}}, "place.city: Field required"),
        ({"place": {"city": "x"}, "days": [{"city": 1}]}, "days.0.city: Input should be"),
    ],
)
def test_invalid_arguments_are_named(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        tool("weather").convert(arguments)

    assert told in str(refused.value)


def test_coroutine_functions_are_detected() -> None:
    assert tool("whisper").is_async
    assert not tool("shout").is_async


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("tests.runtime.sample_tools", "it does not have the form package.module:function"),
        (":f", "it does not have the form package.module:function"),
        ("m:", "it does not have the form package.module:function"),
        ("m.py:f", "m.py is a file, not a module"),
        ("not.there:f", "its module cannot be imported"),
        (f"{sample_tools.TOOLS}:none", "the module tests.runtime.sample_tools has no none"),
        (f"{sample_tools.TOOLS}:TOOLS", "TOOLS is not a function"),
        (f"{sample_tools.TOOLS}:NotAFunction", "NotAFunction is not a function"),
        (f"{sample_tools.TOOLS}:streams", "it is an asynchronous generator"),
        (f"{sample_tools.TOOLS}:untyped", "its parameter text has no type"),
        (f"{sample_tools.TOOLS}:variable", "its parameter texts cannot be given by name"),
        (f"{sample_tools.TOOLS}:opaque", "its parameter lock has a type without a JSON form"),
        (f"{sample_tools.TOOLS}:unknown", "its annotations cannot be read (NameError)"),
        (f"{sample_tools.TOOLS}:größe", "its name must have at most 64 ASCII letters"),
    ],
)
def test_unusable_reference_is_refused_in_one_line(reference: str, told: str) -> None:
    refused = load_error(reference)

    assert refused.detail.startswith(f"The agent writer cannot use the tool {reference!r}: ")
    assert told in refused.detail
    assert "\n" not in refused.detail


def test_two_tools_of_one_name_are_refused() -> None:
    refused = load_error(f"{sample_tools.TOOLS}:add", f"{sample_tools.TOOLS}:add")

    assert refused.detail.endswith("it has two tools named add")


def test_module_with_an_import_error_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken_tools_one.py").write_text("import no_such_library\n")
    (tmp_path / "broken_tools_two.py").write_text("raise SystemExit('bye\\nbye')\n")
    (tmp_path / "broken_tools_three.py").write_text("def half(:\n")

    one = load_error("broken_tools_one:f", folder=tmp_path)
    place = "broken_tools_one.py, line 1"
    assert f"({place}: ModuleNotFoundError: No module named 'no_such_library')" in one.detail
    assert "install no-such-library" in str(one.hint)
    two = load_error("broken_tools_two:f", folder=tmp_path)
    assert two.detail.endswith("(broken_tools_two.py, line 1: SystemExit: bye)")
    assert "SyntaxError" in load_error("broken_tools_three:f", folder=tmp_path).detail


def test_missing_module_has_a_hint() -> None:
    assert (
        load_error("shopp:price").hint
        == "put shopp.py next to the configuration file, or install it"
    )
    assert str(load_error("shopp.tea:price").hint).startswith("put the package shopp next to ")


def test_configuration_folder_is_first_on_the_path_during_import_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "lib"
    beside = tmp_path / "conf"
    for folder, word in ((elsewhere, "far"), (beside, "near")):
        folder.mkdir()
        text = f"def where() -> str:\n    return {word!r}\n"
        (folder / "tools_of_this_test.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])

    (loaded,) = load_tools("agent writer", ("tools_of_this_test:where",), beside)

    assert loaded.function() == "near"
    assert sys.path[0] == str(elsewhere)
    assert sys.path[-1] == str(beside)
    sys.modules.pop("tools_of_this_test")


def test_folder_on_the_path_keeps_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    before = list(sys.path)

    load_tools("agent writer", (f"{sample_tools.TOOLS}:add",), tmp_path)

    assert sys.path == before
