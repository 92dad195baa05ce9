"""Numbers and versions that pages and project files state equal those of the code."""

from __future__ import annotations

import json
import re

import agentctl
from agentctl.config.providers import PROVIDERS
from agentctl.config.tables import list_sections
from tests.kit.documents import ROOT, pages

NUMBERS = [
    "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen",
    "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "twenty-one",
]  # fmt: skip


def stated(pattern: str) -> dict[str, set[int]]:
    """Return the numbers in words that match a pattern of one group, by the name of the page."""
    words = "|".join(NUMBERS)
    return {
        tested.name: {NUMBERS.index(word) + 7 for word in numbers}
        for tested in pages()
        if (numbers := re.findall(pattern.replace("N", f"({words})"), tested.text))
    }


def test_pages_state_the_number_of_environment_tables() -> None:
    numbers = stated(r"first\s+N\s+tables")
    assert numbers.keys() >= {"CONTRIBUTING.md"}
    sample = (ROOT / "sample-config.toml").read_text()
    assert f"first {NUMBERS[len(list_sections()) - 7]} tables" in sample
    assert set().union(*numbers.values()) == {len(list_sections())}


def test_pages_state_the_number_of_model_providers() -> None:
    numbers = stated(r"\bN\s+(?:model\s+)?providers")
    assert "README.md" in numbers
    assert set().union(*numbers.values()) == {len(PROVIDERS.keys() - {"demo"})}


def test_no_text_installs_the_package_from_an_index() -> None:
    programs = r"(?:pip install|pipx|uvx|uv tool)(?: -\S+| install| run)*"
    command = re.compile(rf"""{programs} ['"]?agentctl\b(?!-[\d.*]+-py3)""")
    assert command.search("pip install --upgrade 'agentctl[mcp]'")
    folders = (ROOT / "docs", ROOT / "agentctl")
    files = [*ROOT.glob("*.*"), *(file for folder in folders for file in folder.rglob("*.*"))]
    suffixes = {".1", ".json", ".md", ".py", ".toml", ".txt"}
    texts = [file for file in files if file.suffix in suffixes]
    assert [str(file) for file in texts if command.search(file.read_text())] == []


def test_examples_of_the_interface_have_the_package_version() -> None:
    [file] = (ROOT / "agentctl").rglob("openapi/examples.json")
    responses = json.loads(file.read_text())["responses"]
    versions = {responses[name]["version"] for name in ("get_api", "get_info")}
    assert versions == {agentctl.__version__}
