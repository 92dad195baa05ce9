"""docs/internals/extending.md names every file in which an example occurs."""

from __future__ import annotations

import re
from functools import cache

import pytest

from tests.kit.documents import ROOT, page

SECTION = re.compile(r"^## (?P<title>.+)\n\n(?P<text>(?:.*\n)*?)(?=## |\Z)", re.MULTILINE)
EXAMPLE = re.compile(r"^Example: `([^`]+)`(?: and its library, `([^`]+)`)?", re.MULTILINE)
STEP = re.compile(r"^\d+\. `(?P<file>[^`]+)`", re.MULTILINE)
FILE = re.compile(r"`(agentctl/[^`]+\.(?:py|toml|json))`")


def sections() -> dict[str, str]:
    text = page("docs/internals/extending.md").text + "\n"
    return {match["title"]: match["text"] for match in SECTION.finditer(text)}


@cache
def read_package() -> dict[str, str]:
    """Return the text of each file of the package, except the one that `make docs` writes."""
    suffixes = {".py", ".toml", ".json"}
    written = ROOT / "agentctl" / "server" / "openapi" / "document.json"
    return {
        str(file.relative_to(ROOT)): file.read_text(encoding="utf-8")
        for file in (ROOT / "agentctl").rglob("*")
        if file.suffix in suffixes and file != written
    }


def files_with(name: str) -> set[str]:
    """Return the files of the package with a name."""
    pattern = re.compile(rf"(?<![\w]){re.escape(name)}(?!\w)")
    # To look for the text first takes a hundredth of the time.
    return {file for file, text in read_package().items() if name in text and pattern.search(text)}


@pytest.mark.parametrize("title", sections())
def test_section_names_the_files_of_the_example(title: str) -> None:
    text = sections()[title]
    example = EXAMPLE.search(text)
    assert example is not None
    of_example = {file for name in example.groups() if name for file in files_with(name)}

    steps = set(STEP.findall(text))
    assert steps
    assert steps - of_example == set(), "a step names a file without the example"
    assert of_example - set(FILE.findall(text)) == set(), "files that a newcomer has to find"
