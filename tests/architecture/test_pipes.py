"""The event loop gets no ends of pipes."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agentctl"


def test_package_gives_no_pipe_to_the_event_loop() -> None:
    """uvloop 0.23 closes the descriptor of a pipe that it was given, and then its file object.

    Another thread may have got the same number for a file of its own in between: a database lost a
    file in about one of a hundred ends of a program beside it. A socket is closed once.
    """
    calls = ("connect_read_pipe", "connect_write_pipe")
    found = [
        f"{path.relative_to(PACKAGE)}: {call}"
        for path in PACKAGE.rglob("*.py")
        for call in calls
        if call in path.read_text()
    ]
    assert found == []
