"""The reference is current and complete."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from agentctl.auth.policy import POLICY
from agentctl.cli.commands.help import EXIT_CODES
from agentctl.cli.root import app
from agentctl.config.tables import ENTRY_TABLES, list_sections
from agentctl.records.authorization import KNOWN_SCOPES
from tests.kit.documents import ROOT, page, pages

CODE = ROOT / "agentctl"
PROGRAM = ROOT / "docs" / "generate.py"
REFERENCE = ROOT / "docs" / "reference"
VARIABLE = re.compile(r"\b(?:AGENTCTL_(?!TEST_|SECTION__)[A-Z]+(?:_[A-Z]+)*|JWT_[A-Z_]+)\b")


def sources(*folders: str) -> str:
    found = [path for folder in folders for path in sorted((CODE / folder).rglob("*.py"))]
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


def copy_reference(folder: Path) -> Path:
    """Copy the pages, change one and add another one; return their folder."""
    reference = folder / "docs" / "reference"
    reference.mkdir(parents=True)
    for path in REFERENCE.iterdir():
        (reference / path.name).write_bytes(path.read_bytes())
    with (reference / "scopes.md").open("a") as stale:
        stale.write("more\n")
    (reference / "old.md").write_text("")
    return reference


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, which takes the present pages as those that it builds: that takes seconds.

    `make lint` builds all pages, and compares them.
    """
    spec = importlib.util.spec_from_file_location("generate", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    built = {path.name: path.read_text(encoding="utf-8") for path in REFERENCE.iterdir()}
    pages = {name: functools.partial(str, text) for name, text in built.items()}
    monkeypatch.setattr(module, "pages", lambda: pages)
    return module


def test_stale_pages_are_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Any
) -> None:
    reference = copy_reference(tmp_path)
    monkeypatch.setattr(program, "REFERENCE", reference)
    assert program.main([]) == 0
    made, current = (
        {path.name: path.read_bytes() for path in folder.iterdir()}
        for folder in (reference, REFERENCE)
    )
    assert made == current


def test_check_names_stale_pages(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    program: Any,
) -> None:
    assert program.main(["--check"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(program, "REFERENCE", copy_reference(tmp_path))
    assert program.main(["--check"]) == 1
    named = [line.split()[0] for line in capsys.readouterr().err.splitlines()]
    assert named == ["docs/reference/old.md", "docs/reference/scopes.md"]


def test_every_option_is_documented() -> None:
    options = set(re.findall(r'"(--[a-z][a-z-]+)"', sources("cli")))
    assert {"--url", "--scope", "--dry-run"} <= options
    text = page("docs/reference/cli.md").text
    assert {option for option in options if f"`{option}`" not in text} == set()


def test_every_command_is_documented() -> None:
    text = page("docs/reference/cli.md").text
    root: Any = typer.main.get_command(app)
    names = [name for group in root.commands.values() for name in getattr(group, "commands", ())]
    assert {"mint", "start", "cancel"} <= set(names)
    assert [name for name in names if f" {name}\n" not in text] == []


@pytest.mark.parametrize("table", [*list_sections(), *ENTRY_TABLES])
def test_every_configuration_key_is_documented(table: str) -> None:
    text = page("docs/reference/configuration.md").text
    heading = f"[{table}]" if table in list_sections() else f"[[{table}]]"
    sections = re.split(r"\n(?=##+ )", text)
    titles = (f"## {heading}\n", f"### {heading}\n", f"### More of {heading}\n")
    section = "\n".join(each for each in sections if each.startswith(titles))
    keys = [field.name for field in dataclasses.fields({**list_sections(), **ENTRY_TABLES}[table])]
    assert [key for key in keys if f"| `{key}` |" not in section] == []
    if table in list_sections():
        assert f"AGENTCTL_{table.upper()}__{keys[0].upper()}" in section


def test_keys_that_most_deployments_set_come_first() -> None:
    common, _, advanced = page("docs/reference/configuration.md").text.partition("\n## Advanced\n")
    rows = [line for line in common.splitlines() if line.startswith("| `")]
    assert 50 <= len(rows) <= 90
    assert "| `port` |" in common
    assert "| `listen_url` |" in advanced


def test_every_error_code_is_documented() -> None:
    codes = re.findall(r'\b(?:error_code: ClassVar\[str\] = |code=)"([A-Z_]+)"', sources(""))
    assert len(codes) > 20
    text = page("docs/reference/errors.md").text
    assert [code for code in codes if f"`{code}`" not in text] == []


def test_every_run_error_code_is_documented() -> None:
    codes = re.findall(r'(?:failed|RunFailure)\(\s*"([A-Z_]+)"', sources("runs", "runtime"))
    assert "RUN_TIMEOUT" in codes
    text = page("docs/reference/errors.md").text
    assert [code for code in codes if f"`{code}`" not in text] == []


def test_every_operation_is_documented() -> None:
    text = page("docs/reference/operations.md").text
    assert [name for name in POLICY if f"| `{name}` |" not in text] == []


def test_every_scope_is_documented() -> None:
    text = page("docs/reference/scopes.md").text
    assert [scope for scope in KNOWN_SCOPES if f"## {scope}\n" not in text] == []


def test_every_variable_is_documented() -> None:
    text = "\n".join(each.text for each in pages())
    variables = set(VARIABLE.findall(sources("cli", "config", "remote", "server")))
    assert {"AGENTCTL_TOKEN", "JWT_JWKS_FILE"} <= variables
    assert {name for name in variables if name not in text} == set()


def test_exit_codes_match_the_error_classes() -> None:
    numbers = set(re.findall(r"\bexit_code(?:: ClassVar\[int\] = |=)(\d+)", sources("")))
    assert {str(code) for code in EXIT_CODES} == numbers | {"0", "130"}
