"""The event loop gets no ends of pipes."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "agentctl"


def test_package_gives_no_pipe_to_the_event_loop() -> None:
    """uvloop 0.23 closes the number of a pipe that it was given, and then closes its file.

    Another thread may have got the number for a file of its own in between: with 3 of 400 ends of a
    program beside a database, the database lost a file. A socket is closed once.
    """
    calls = ("connect_read_pipe", "connect_write_pipe")
    found = [
        f"{path.relative_to(PACKAGE)}: {call}"
        for path in PACKAGE.rglob("*.py")
        for call in calls
        if call in path.read_text()
    ]
    assert found == []
