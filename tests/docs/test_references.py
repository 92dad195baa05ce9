"""References in code, tests and pages: documents, headings, case ids and decisions exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from tests.kit.documents import ROOT, page

SOURCES = ("agentctl", "tests", "bench", "compat", "docs")
SUFFIXES = {".py", ".md", ".sql", ".toml"}
REFERENCE = ROOT / "docs" / "reference"
WRITTEN_BY_TESTS = {"docs/reference/old.md", "models.md", "sessions.md"}

WRITTEN_BY_COMMANDS = {"AGENTS.md", "SKILL.md", "contents.md", "index.md"}
"""The files that `agentctl init`, `agentctl help skill` and `make site` write."""

DOCUMENT = re.compile(r"(?<![\w./-])(?<!/ \")(?P<name>(?:\.\./)*\w[\w./-]*\.md)\b")
SECTION = re.compile(r"(?P<name>docs/[\w/-]+\.md)[`,]*\s+\\?[\"“](?P<title>[^\"”\\]+)\\?[\"”]")
CASE = re.compile(r"\b[ACDFJKLRT]\d{2}\b")
PACKAGES = {path.name for path in (ROOT / "agentctl").iterdir() if path.is_dir()}
MODULE = re.compile(
    rf"(?<![\w./-])(?:agentctl|tests|bench|compat|docs|{'|'.join(sorted(PACKAGES))})/[\w/.-]*\w\.(?:py|toml|sql|txt|json)\b"
)
DECISION = re.compile(r"\bdecisions/(\d{4})|\bdecisions?\s+(\d{1,3})\b", re.IGNORECASE)


@cache
def sources() -> dict[str, str]:
    """The texts that are checked, by path from the top of the project."""
    folders = [ROOT / name for name in SOURCES]
    files = [*ROOT.glob("*.md"), *(file for each in folders for file in each.rglob("*"))]
    names = {str(file.relative_to(ROOT)): file for file in sorted(files)}
    return {
        name: file.read_text(encoding="utf-8")
        for name, file in names.items()
        if file.suffix in SUFFIXES and "__pycache__" not in file.parts
        if name != "tests/docs/test_references.py"
    }


def found(pattern: re.Pattern[str], suffix: str = "") -> Iterator[tuple[str, re.Match[str]]]:
    """Every match of a pattern in the files with a suffix, with its place, `file:line`."""
    for name, text in sources().items():
        if not name.endswith(suffix):
            continue
        for match in pattern.finditer(text):
            yield f"{name}:{count_lines(text, match.start())}", match


def found_documents() -> Iterator[tuple[str, str]]:
    """Every name of a document in the files, with its place, `file:line`.

    The pattern would look for a name at each letter, so it gets the few lines that can have one.
    """
    for name, text in sources().items():
        end = 0
        while (place := text.find(".md", end)) >= 0:
            start = text.rfind("\n", 0, place) + 1
            end = text.find("\n", place)
            if end < 0:
                end = len(text)
            for match in DOCUMENT.finditer(text, start, end):
                yield f"{name}:{count_lines(text, start)}", match["name"]


def count_lines(text: str, place: int) -> int:
    """Return the number of the line of a place in a text."""
    return text.count("\n", 0, place) + 1


def is_document(place: str, name: str) -> bool:
    """Return True if a file name in a source leads to a document of the project."""
    source = ROOT / place.partition(":")[0]
    bases = [ROOT, source.parent]
    if source.is_relative_to(ROOT / "docs") and source.suffix == ".py":
        bases.append(REFERENCE)
    paths = [(base / name).resolve() for base in bases]
    return any(path.is_file() and path.is_relative_to(ROOT) for path in paths)


def headings(name: str) -> set[str]:
    """The headings of a page."""
    prose = re.sub(r"^```.*?^```$", "", page(name).text, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"^#+ (.+)$", prose, re.MULTILINE))


def cases() -> set[str]:
    """The ids of the cases in `docs/internals/security-cases.md`."""
    text = page("docs/internals/security-cases.md").text
    return set(re.findall(r"^\| ([A-Z]\d{2}) \|", text, re.MULTILINE))


def test_documents_are_in_the_repository() -> None:
    wrong = [
        f"{place}: {name}"
        for place, name in found_documents()
        if name not in WRITTEN_BY_TESTS | WRITTEN_BY_COMMANDS and not is_document(place, name)
    ]
    assert wrong == []


def test_modules_named_in_pages_exist() -> None:
    wrong = [
        f"{place}: {match[0]}"
        for place, match in found(MODULE, ".md")
        if not any((base / match[0]).is_file() for base in (ROOT, ROOT / "agentctl"))
    ]
    assert wrong == []


def test_quoted_headings_exist() -> None:
    wrong = [
        f"{place}: {match['name']} {title!r}"
        for place, match in found(SECTION)
        if (title := " ".join(match["title"].split())) not in headings(match["name"])
    ]
    assert wrong == []


def test_case_ids_are_listed() -> None:
    known = cases()
    assert len(known) > 100
    wrong = [f"{place}: {match[0]}" for place, match in found(CASE) if match[0] not in known]
    assert wrong == []


def test_decisions_exist() -> None:
    known = {int(path.name[:4]) for path in (ROOT / "docs/internals/decisions").glob("0*.md")}
    wrong = [
        f"{place}: {match[0]}"
        for place, match in found(DECISION)
        if int(match[1] or match[2]) not in known
    ]
    assert wrong == []


def test_reports_wrong_references() -> None:
    place = "agentctl/errors.py:1"
    assert is_document(place, "docs/contract.md")
    assert not is_document(place, "contract.md")
    assert not is_document(place, "../../contract.md")
    assert SECTION.search('docs/contract.md\n    "Errors"')
    assert "Errors" in headings("docs/contract.md")
    assert "J12" in cases()
