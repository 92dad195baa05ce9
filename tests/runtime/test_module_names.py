"""A file of the user that has the name of a module of Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentctl.runtime.imports import UnusableObject, load_object


@pytest.mark.parametrize("name", ["calendar", "queue", "types", "http", "csv", "graphlib", "this"])
@pytest.mark.parametrize("is_package", [False, True])
def test_file_with_the_name_of_a_module_of_python_is_refused(
    tmp_path: Path, name: str, is_package: bool
) -> None:
    """The result is the same if a command has imported the module of Python before."""
    file = tmp_path / name / "__init__.py" if is_package else tmp_path / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("def hello(message):\n    return message\n")
    with pytest.raises(UnusableObject) as refused:
        load_object(f"{name}:hello", tmp_path)
    assert f"{name} is a module of Python, which hides" in refused.value.what
    assert "rename it" in str(refused.value.hint)


def test_module_of_python_without_such_a_file_can_be_named(tmp_path: Path) -> None:
    assert load_object("queue:Queue", tmp_path)
