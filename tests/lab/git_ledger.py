"""The ledger of the kill test: the commits that the real program `mcp-server-git` has made."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from tests.kit.conditions import wait_for


class GitLedger:
    """A git repository. Each payment is a commit whose message is unique.

    Args:
        folder: an empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        for words in (
            ("init", "-q"),
            ("config", "user.name", "ledger"),
            ("config", "user.email", "ledger@example.org"),
            ("commit", "-q", "--allow-empty", "-m", "begin"),
        ):
            self._git(*words)

    def count(self) -> Counter[str]:
        """Return the number of commits by message."""
        return Counter(self._git("log", "--format=%s").split("\n")[:-1])

    def wait_until_quiet(self, alive: set[int]) -> None:
        """Wait until no program of a killed server works on the ledger.

        A program that a dead server has started may end its last call.

        Args:
            alive: process ids of the servers that live.
        """
        problem = "a program of a killed server did not end"
        wait_for(lambda: not self._find_orphans(alive), problem=problem)

    def _find_orphans(self, alive: set[int]) -> list[int]:
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes()
                status = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if str(self.folder).encode() in words and b"mcp-server-git" in words:
                parents[int(entry.name)] = int(status[1])

        # The parent of a program is its guard, which the server has started.
        return [
            process_id
            for process_id, parent in parents.items()
            if parents.get(parent, parent) not in alive
        ]

    def _git(self, *words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(self.folder), *words], capture_output=True, text=True, check=True
        )
        return done.stdout
