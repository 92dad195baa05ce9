"""Versions of components: what changes the hash of a configuration, and what does not."""

from __future__ import annotations

import ast
import gc
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from agentctl.records.kinds import ComponentKind
from agentctl.runtime.components import versions
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.versions import describe_version, find_version, read_code
from tests.kit.loaded_settings import load_settings_copy
from tests.kit.tables import every_row

CONFIG = """
[authorization]
enabled = false

[[models]]
id = "fast"
provider = "openai"
model = "gpt-5.2-mini"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "KEY"

[[agents]]
id = "writer"
model = "fast"
instructions = "Write."
tools = ["version_tools:look_up"]
approve = { look_up = "user" }
settings = { temperature = 0.5, max_tokens = 100 }

[[agents]]
id = "coder"
object = "version_agents:answer"

[[teams]]
id = "desk"
model = "fast"
members = ["writer", "coder"]

[[workflows]]
id = "line"
steps = [{ name = "first", agent = "writer" }, { name = "second", team = "desk" }]
"""

FILES = {
    "version_tools.py": (
        'def look_up(word: str) -> str:\n    """Look a word up."""\n'
        "    from version_parts.words import find\n\n    return find(word)\n"
    ),
    "version_agents.py": (
        "import json\nimport version_tools\n\n"
        "async def answer(message: str) -> str:\n    return version_tools.look_up(message)\n"
    ),
    "version_parts/__init__.py": "",
    "version_parts/words.py": "from . import letters\n\ndef find(word):\n    return word\n",
    "version_parts/letters.py": "A = 1\n",
    "unused.py": "A = 1\n",
}

COMPONENTS: tuple[tuple[ComponentKind, str], ...] = (
    ("agent", "writer"), ("agent", "coder"), ("team", "desk"), ("workflow", "line"),
)  # fmt: skip


class Project:
    """A folder with a configuration and its code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("agentctl.toml", CONFIG)
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def replace(self, name: str, old: str, new: str) -> None:
        text = (self.folder / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def catalog(self) -> Catalog:
        """Return a catalog, as a new process reads the folder."""
        forget()
        return Catalog.from_settings(load_settings_copy(self.folder / "agentctl.toml"))

    def versions(self) -> dict[str, str | None]:
        catalog = self.catalog()
        found = {}
        for kind, component_id in COMPONENTS:
            component = catalog.get(kind, component_id)
            assert component is not None
            found[component_id] = find_version(catalog, component)
        return found

    def changed(self, before: dict[str, str | None]) -> set[str]:
        return {name for name, version in self.versions().items() if version != before[name]}


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith(("version_", "unused"))]:
        del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    paths = list(sys.path)
    yield Project(tmp_path)
    sys.path[:] = paths
    forget()


ABOVE_WRITER = {"writer", "desk", "line"}

CHANGES = [
    ("agentctl.toml", '"Write."', '"Write briefly."', ABOVE_WRITER),
    ("agentctl.toml", "temperature = 0.5", "temperature = 0.4", ABOVE_WRITER),
    ("agentctl.toml", 'look_up = "user"', '"look_*" = "user"', ABOVE_WRITER),
    ("agentctl.toml", '"gpt-5.2-mini"', '"gpt-5.2"', ABOVE_WRITER),
    ("agentctl.toml", 'provider = "openai"', 'provider = "groq"', ABOVE_WRITER),
    ("agentctl.toml", "127.0.0.1:9", "127.0.0.1:8", ABOVE_WRITER),
    ("agentctl.toml", '["writer", "coder"]', '["writer"]', {"desk", "line"}),
    ("agentctl.toml", 'name = "second"', 'name = "last"', {"line"}),
    ("agentctl.toml", "[[teams]]", 'name = "Coder"\n[[teams]]', {"desk", "line"}),
    ("version_tools.py", "Look a word up.", "Find a word.", {*ABOVE_WRITER, "coder"}),
    ("version_tools.py", "word: str", "word: str | int", {*ABOVE_WRITER, "coder"}),
    ("version_parts/letters.py", "1", "2", {*ABOVE_WRITER, "coder"}),
    ("version_agents.py", "(message)", '(message + "!")', {"coder", "desk", "line"}),
    # Neither an answer nor an approval depends on these.
    ("unused.py", "1", "2", set()),
    ("agentctl.toml", 'id = "fast"', 'id = "fast"\nretries = 5\nprice = { input = 1, output = 1 }',
     set()),
    ("agentctl.toml", '"KEY"', '"OTHER_KEY"', set()),
    ("agentctl.toml", "[[teams]]", 'on_busy = "reject"\ndurable = true\n[[teams]]', set()),
    ("agentctl.toml", "temperature = 0.5, max_tokens = 100", "max_tokens = 100, temperature = 0.5",
     set()),
    ("agentctl.toml", '"Write."', '"Write."\nhistory_runs = 5', set()),
]  # fmt: skip


@pytest.fixture
def first_versions(project: Project) -> dict[str, str | None]:
    """The versions of the components of a project before its first change."""
    return project.versions()


@every_row("file, old, new, expected", CHANGES)
def test_version_changes_with_what_decides_the_answer(
    project: Project,
    first_versions: dict[str, str | None],
    file: str,
    old: str,
    new: str,
    expected: set[str],
) -> None:
    text = (project.folder / file).read_text()
    project.replace(file, old, new)
    changed_components = project.changed(first_versions)
    project.write(file, text)
    assert changed_components == expected


def test_version_is_a_hash_of_twelve_characters(first_versions: dict[str, str | None]) -> None:
    assert {len(version or "") for version in first_versions.values()} == {12}


def test_version_is_the_same_in_another_folder_and_at_another_time(
    project: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before = project.versions()
    moved = tmp_path_factory.mktemp("moved") / "deep"
    shutil.copytree(project.folder, moved)
    os.utime(moved / "version_tools.py", (0, 0))
    sys.path.remove(str(project.folder))
    copied = object.__new__(Project)
    copied.folder = moved
    assert copied.versions() == before


def test_configuration_of_a_version_has_names_and_no_secrets(project: Project) -> None:
    catalog = project.catalog()
    writer = catalog.get("agent", "writer")
    assert writer is not None
    found = describe_version(catalog, writer)
    assert found is not None
    configuration = json.loads(found.configuration)
    assert configuration["model"].keys() == {"endpoint", "model", "provider"}
    assert configuration["settings"] == {"max_tokens": 100, "temperature": 0.5}
    assert configuration["tools"]["look_up"]["description"] == "Look a word up."
    assert configuration["code"].keys() == {
        "version_tools.py", "version_parts/__init__.py", "version_parts/words.py",
        "version_parts/letters.py",
    }  # fmt: skip
    for secret in ("KEY", "127.0.0.1", str(project.folder)):
        assert secret not in found.configuration


def test_version_is_the_same_if_another_thread_parses_meanwhile(project: Project) -> None:
    before = project.versions()
    versions._imports.clear()
    collisions = []

    def collide(phase: str, info: dict[str, int]) -> None:
        # The collector runs within a parse: where other threads get their turn, too.
        if not collisions and sys._getframe(1).f_code is ast.parse.__code__:
            collisions.append(phase)
            ast.parse("A = 1")

    thresholds = gc.get_threshold()
    gc.callbacks.append(collide)
    gc.set_threshold(5)
    try:
        assert project.versions() == before
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(collide)
    assert collisions


def test_module_of_several_agents_is_parsed_once(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed_texts = []
    parse = ast.parse

    def parse_and_note(text: bytes) -> ast.Module:
        parsed_texts.append(text)
        return parse(text)

    monkeypatch.setattr(ast, "parse", parse_and_note)
    versions._imports.clear()
    found_versions = project.versions()

    # The agents, and the team and the workflow with their members, have all files in common.
    assert None not in found_versions.values()
    assert len(parsed_texts) == len(set(parsed_texts)) > 1


@pytest.mark.parametrize(
    "code",
    [
        'import importlib\nimportlib.import_module("version_late")',
        'from importlib import import_module\ndef f():\n    import_module("version_late")',
        'from importlib import import_module as load\nload(name="version_late")',
        'import importlib\nload = importlib.import_module\nload("version_late")',
        'import importlib\nimportlib.import_module(".version_late", "version_parts")',
        '__import__("version_late")',
        'import pkgutil\npkgutil.resolve_name("version_late:VALUE")',
    ],
)
def test_module_that_a_call_imports_counts(project: Project, code: str) -> None:
    """With another content of it, an approved call would be made with code nobody has approved."""
    late = "version_parts/version_late.py" if "parts" in code else "version_late.py"
    project.write(late, "VALUE = 1\n")
    project.write("version_agents.py", f"{code}\n{FILES['version_agents.py']}")
    before = project.versions()
    project.write(late, "VALUE = 2\n")
    after = project.versions()
    assert {name for name in after if after[name] != before[name]} == {"coder", "desk", "line"}


def test_unusable_code_has_no_version(project: Project) -> None:
    project.write("version_agents.py", "raise RuntimeError")
    assert {name for name, version in project.versions().items() if version is None} == {"coder"}


def test_code_of_an_installed_package_counts_by_its_version() -> None:
    assert list(read_code([f"{httpx2.__name__}:AsyncClient"])) == ["package httpx2"]


def test_files_of_agentctl_do_not_count(project: Project) -> None:
    text = "import agentctl.errors\n" + FILES["version_agents.py"]
    project.write("version_agents.py", text)
    before = project.versions()
    project.write("agentctl/__init__.py", "")
    project.write("agentctl/errors.py", "")
    assert project.changed(before) == set()


def test_files_of_code_are_bounded(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MAXIMUM_FILES", 30)
    names = [f"version_part_{number}" for number in range(40)]
    for name in names:
        project.write(f"{name}.py", "")
    text = "".join(f"import {name}\n" for name in names)
    project.write("version_agents.py", text + FILES["version_agents.py"])
    catalog = project.catalog()
    coder = catalog.get("agent", "coder")
    assert coder is not None
    found = describe_version(catalog, coder)
    assert found is not None
    assert len(json.loads(found.configuration)["code"]) == 30
