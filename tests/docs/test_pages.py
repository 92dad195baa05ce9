"""Links, local paths, line lengths and versions of every page."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import agentctl
from tests.kit.documents import ROOT, Page, page, pages
from tests.kit.tables import every_row

every_page = every_row("tested", pages())

DECISIONS = ROOT / "docs/internals/decisions"

LOCAL_PATHS = re.compile(r"(?<![\w.])/(?:(?:work|root|tmp)(?!\w)|home/(?!you\b|me\b))")


@every_page
def test_links_resolve(tested: Page) -> None:
    broken = [link for link in tested.links() if not resolves(tested, link)]
    assert broken == []


def resolves(tested: Page, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (tested.path.parent / path).resolve() if path else tested.path
    if not target.exists():
        return False
    return not anchor or anchor in page(str(target.relative_to(ROOT))).anchors


def test_index_links_every_page() -> None:
    index = page("docs/README.md")
    linked = {(index.path.parent / link.partition("#")[0]).resolve() for link in index.links()}
    decisions = DECISIONS.glob("0*.md")
    wanted = set((ROOT / "docs").rglob("*.md")) - set(decisions) - {index.path}
    assert wanted - linked == set()


def test_index_has_three_doors_of_at_most_eight_pages() -> None:
    parts = re.split(r"^## ", page("docs/README.md").text, flags=re.MULTILINE)[1:]
    titles = [part.partition("\n")[0] for part in parts]
    assert titles == ["Build", "Run", "Debug", "Reference", "Internals"]
    assert [len(re.findall(r"\]\(\S+\)", part)) for part in parts[:3]] == [8, 8, 8]


def test_list_of_decisions_is_complete() -> None:
    text = page("docs/internals/decisions/README.md").text
    there = sorted(path.name for path in DECISIONS.glob("0*.md"))
    listed = re.findall(r"^- (\d+): \[[^\]]+\]\((\S+)\)$", text, re.MULTILINE)
    assert sorted(name for _, name in listed) == there
    assert [int(number) for number, _ in listed] == [int(name[:4]) for _, name in listed]
    assert len(listed) == len(re.findall("^- ", text, re.MULTILINE))


def test_code_names_every_decision() -> None:
    code = "".join(path.read_text() for path in (ROOT / "agentctl").rglob("*.py"))
    named = {int(number) for number in re.findall(r"\bdecisions?\s+(\d{1,3})\b", code)}
    decisions = sorted(DECISIONS.glob("0*.md"))
    assert [path.name for path in decisions if int(path.name[:4]) not in named] == []


def test_decisions_state_no_size_of_code() -> None:
    size = re.compile(r"\b(?:\d[\d,]*|\w+(?:teen|ty)|hundred)\s+lines\b")
    sizes = {
        tested.name: found
        for tested in pages()
        if tested.path.parent.name == "decisions" and (found := size.findall(tested.text))
    }
    assert sizes == {}


@every_page
def test_pages_contain_no_local_paths(tested: Page) -> None:
    own = {str(ROOT), str(Path.home())} - {"/"}
    assert [place for place in own if re.search(rf"(?<![\w.]){place}\b", tested.text)] == []
    assert LOCAL_PATHS.findall(tested.text) == []


@every_page
def test_text_lines_are_short(tested: Page) -> None:
    if tested.path.parent.name == "reference":
        return
    prose = re.sub(r"^```.*?^```$", "", tested.text, flags=re.MULTILINE | re.DOTALL)
    long = [line for line in prose.splitlines() if len(line) > 105 and not line.startswith("|")]
    assert long == []


def test_changelog_has_the_package_version() -> None:
    versions = re.findall(r"^## \[(\d[^\]]*)\]", page("CHANGELOG.md").text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert versions[0] == agentctl.__version__ == project["version"]


def test_pages_name_the_interface_version() -> None:
    for name in ("README.md", "CHANGELOG.md", "docs/api.md"):
        assert agentctl.INTERFACE_VERSION in page(name).text
