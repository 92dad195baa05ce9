"""The steps of docs/extending.md name the files in which their examples occur."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, page

SECTION = re.compile(r"^## (?P<title>.+)\n\n(?P<text>(?:.*\n)*?)(?=## |\Z)", re.MULTILINE)
EXAMPLE = re.compile(r"^Example: `(?P<name>[^`]+)`", re.MULTILINE)
STEP = re.compile(r"^\d+\. `(?P<file>[^`]+)`", re.MULTILINE)
NOT_STEPS = {
    "agentctl/interface/requests/approvals.py": {"created_before"},
    "agentctl/store/repositories/approvals.py": {"created_before"},
    "agentctl/interop/agentos/backend.py": {"summarize_session"},
    "agentctl/interop/agentos/server/session_endpoints.py": {"created_before"},
    "agentctl/service/audit.py": {"keep_days"},
    "agentctl/service/personal_data.py": {"keep_days"},
    "agentctl/admin/doctor/databases.py": {"check_clock"},
    "agentctl/telemetry/spans.py": {'"mistral"'},
}
"""Files with the name of an example for another reason."""


def sections() -> dict[str, str]:
    text = page("docs/extending.md").text + "\n"
    return {match["title"]: match["text"] for match in SECTION.finditer(text)}


def files_with(name: str) -> set[str]:
    """Return the files of the package that contain a name."""
    pattern = re.compile(rf"(?<![\w]){re.escape(name)}(?!\w)")
    suffixes = {".py", ".toml", ".json"}
    files = [file for file in (ROOT / "agentctl").rglob("*") if file.suffix in suffixes]
    return {
        str(file.relative_to(ROOT))
        for file in files
        if pattern.search(file.read_text(encoding="utf-8"))
    }


@pytest.mark.parametrize("title", sections())
def test_steps_name_the_files_of_the_example(title: str) -> None:
    text = sections()[title]
    example = EXAMPLE.search(text)
    assert example is not None
    name = example["name"]
    excepted = {file for file, names in NOT_STEPS.items() if name in names}
    steps = STEP.findall(text)
    assert set(steps) == files_with(name) - excepted
    assert steps[0].startswith("agentctl/")
