"""`llms.txt`: the index of the documentation for language models."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_index_has_the_form_of_llms_txt_and_its_links_resolve() -> None:
    lines = (ROOT / "llms.txt").read_text().splitlines()
    assert lines[0] == "# agentctl"
    assert lines[2].startswith("> ")
    assert [line for line in lines if line.startswith("## ")][-1] == "## Optional"

    entries = [line for line in lines if line.startswith("- ")]
    links = [link for entry in entries for link in re.findall(r"\]\(([^)]+)\)", entry)]
    assert len(links) >= 20
    assert [link for link in links if not (ROOT / link).is_file()] == []
    assert all("): " in entry for entry in entries)
