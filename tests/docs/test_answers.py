"""Ten questions of users: each is answered two clicks from the README."""

from __future__ import annotations

import re

import pytest

from tests.kit.documents import ROOT, Page, page

QUESTIONS = {
    "behind nginx": ("docs/deployment.md", "nginx -t"),
    "rotate the signing key": ("docs/guides/rotate-the-signing-key.md", "keys rotate"),
    "got 403": ("docs/guides/explain-a-403.md", "auth explain"),
    "back up the database": ("docs/databases.md", "agentctl db backup FILE"),
    "run two servers": ("docs/postgresql.md", "servers"),
    "everything of a user": ("docs/cli.md", "runs cancel"),
    "React app": ("docs/ai-sdk.md", "useChat"),
    "OpenTelemetry": ("docs/traces.md", "otel"),
    "a session cost": ("docs/guides/session-cost.md", "usage"),
    "upgrade": ("docs/upgrade.md", "db migrate"),
}
"""The words of a row of the page, and what the linked page must have."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_question_is_answered_two_clicks_from_the_readme(question: str) -> None:
    assert "docs/answers.md" in page("README.md").links()
    answers = page("docs/answers.md")
    rows = [line for line in answers.text.splitlines() if line.startswith("| ")]
    [row] = [line for line in rows if question in line.split("|")[1]]

    wanted, words = QUESTIONS[question]
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", row)
    linked = {str((answers.path.parent / target).resolve().relative_to(ROOT)) for target in targets}
    assert wanted in linked
    assert words in Page(wanted).text
