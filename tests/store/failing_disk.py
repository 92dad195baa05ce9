"""Write to a file on a disk that fails at times: `python -m tests.store.failing_disk FILE`.

Every write and every flush of the file and its log fails while the disk is broken. Print the result
of each write, and the stored rows at the end.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import apsw

from agentctl import errors
from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_session

broken = {"write": False, "sync": False}


class _Disk(apsw.VFS):
    def __init__(self) -> None:
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802 - SQLite's name
        return _File(name, flags)


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802
        self._refuse("write")
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._refuse("sync")
        super().xSync(flags)

    @staticmethod
    def _refuse(what: str) -> None:
        if broken[what]:
            raise apsw.IOError


def main(path: Path) -> None:
    database = open_sqlite("main", path, create=True)
    results: dict[str, str] = {}
    for what in ("write", "sync"):
        for state in (False, True, True, False):
            broken[what] = state
            name = f"s{len(results)}"
            results[name] = "kept"
            try:
                database.write_blocking(sessions.create(a_session(name)))
            except errors.Unavailable as failure:
                results[name] = failure.detail
            assert (database.read_blocking(sessions.get("s0", EVERYONE))) is not None
    database.close_blocking()
    again = open_sqlite("main", path, create=False)
    there = [
        name for name in results if again.read_blocking(sessions.get(name, EVERYONE)) is not None
    ]
    again.close_blocking()
    sys.stdout.write(json.dumps({"results": results, "there": there}))


if __name__ == "__main__":
    disk = _Disk()
    main(Path(sys.argv[1]))
