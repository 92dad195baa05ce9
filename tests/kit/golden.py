"""Golden pages: files with the output that users see.

AGENTCTL_TEST_WRITE=1 writes the files instead of a comparison; the diff shows what has changed.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["check_golden"]


def check_golden(file: Path, text: str) -> None:
    """Compare a text with a file, or write the file with AGENTCTL_TEST_WRITE."""
    if os.environ.get("AGENTCTL_TEST_WRITE"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8"), (
        f"{file.name} has changed: AGENTCTL_TEST_WRITE=1 writes it"
    )
