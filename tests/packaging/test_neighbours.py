"""The page of the libraries in the same environment, without the package index."""

from __future__ import annotations

import re

from tests.packaging.neighbours import LIBRARIES, PAGE, Row, explain, format_page, read_bounds


def read_rows() -> list[list[str]]:
    """Return the table of the page: library, extra, release alone, release with agentctl."""
    lines = PAGE.read_text().splitlines()
    rows = [line[1:-1].split("|") for line in lines if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def read_same() -> dict[str, str]:
    """Return the extras of the libraries with the same release, by library."""
    pattern = r"^(?:No extra|Extra `(.+)`): ([^:]+?)\.$"
    found = re.findall(pattern, PAGE.read_text(), re.MULTILINE)
    return {
        release.split()[0]: extra for extra, listed in found for release in re.split(r",\s", listed)
    }


def test_page_has_each_library() -> None:
    rows = {row[0]: row[1] for row in read_rows()}
    assert read_same() | rows == LIBRARIES
    assert len(read_same()) + len(rows) == len(LIBRARIES) >= 45


def test_page_explains_each_different_release() -> None:
    differing = {row[0] for row in read_rows()}
    assert all(row[2] != row[3] for row in read_rows())
    explained = [line for line in PAGE.read_text().splitlines() if line.startswith("- ")]
    assert {line[2:].partition(":")[0] for line in explained} == differing


def test_page_has_the_current_bounds_of_agentctl() -> None:
    text = " ".join(PAGE.read_text().split())
    cited = [part.split()[0].rstrip(".") for part in text.split("agentctl requires ")[1:]]
    assert set(cited) <= set(read_bounds().values())


def test_conflict_names_who_bounds_the_dependency() -> None:
    failure = """error: No solution found when resolving dependencies
      cause: Because prefect>=3.9.1 depends on fastapi>=0.139.0,<0.151 and agentctl depends on
         prefect==3.9.1, we can conclude that agentctl depends on fastapi>=0.139.0,<0.151.
         And because agentctl depends on fastapi>=0.163,<1, we can conclude that your requirements
         are unsatisfiable."""
    reason = "`fastapi`: prefect>=3.9.1 requires >=0.139.0,<0.151, agentctl requires >=0.163,<1"
    assert explain(failure, {"fastapi": ">=0.163,<1"}) == reason
    assert explain("  no\n index", {"fastapi": ">=0.163,<1"}) == "no index"


def test_different_release_is_listed_with_its_reason() -> None:
    rows = [Row("a", "", "2", "2", ""), Row("b", "mcp", "3", None, "`c`: pinned")]
    page = format_page(rows, "2026-11-24")
    assert "Of 2 libraries, 1 have the same release" in page
    assert "No extra: a 2.\n" in page
    assert "| b | mcp | 3 | none |\n" in page
    assert "- b: `c`: pinned.\n" in page
