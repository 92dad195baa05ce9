"""A stranger with an identity provider reaches an approval with the commands of the page."""

from __future__ import annotations

from pathlib import Path

from tests.identity.first_hour import walk_through
from tests.identity.provider import needs_provider
from tests.kit.browser import needs_browser
from tests.kit.documents import page

pytestmark = [*needs_browser, needs_provider]


def test_steps_are_those_of_the_page(tmp_path: Path) -> None:
    steps = walk_through(tmp_path).steps
    section = page("docs/internals/measurements.md").text.partition("## The first hour")[2]
    assert f" {len(steps)} steps" in section.partition("##")[0].replace("\n", " ")
