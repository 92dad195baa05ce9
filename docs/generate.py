"""Makes the pages of `docs/reference` from the code: `python docs/generate.py [--check]`.

With `--check` nothing is written; the exit code is 1 when a page is not what the code says, and
stderr names it. The pages depend on the code alone, not on a terminal or an environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCE = HERE / "reference"

__all__ = ["REFERENCE", "main", "pages", "stale"]


def pages() -> Mapping[str, Callable[[], str]]:
    """The pages by name, and what makes each."""
    from pages import cli, configuration, failures, interface

    return {
        "cli.md": cli.page,
        "configuration.md": configuration.page,
        "errors.md": failures.page,
        "openapi.json": interface.document,
        "operations.md": interface.operations_page,
        "scopes.md": interface.scopes_page,
    }


def stale(folder: Path, made: Mapping[str, str]) -> list[str]:
    """The names of files in `folder` that are missing, differ from `made`, or are none of it."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    differing = [
        name
        for name, text in made.items()
        if name not in there or (folder / name).read_text(encoding="utf-8") != text
    ]
    return sorted({*differing, *(there - made.keys())})


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` compare them. Returns the exit code."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate.py [--check]\n")
        return 2
    made = {name: make() for name, make in pages().items()}
    wrong = stale(REFERENCE, made)
    if arguments:
        for name in wrong:
            sys.stderr.write(f"docs/reference/{name} is not what the code says: run `make docs`\n")
        return 1 if wrong else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in wrong:
        path = REFERENCE / name
        if name in made:
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
        sys.stderr.write(f"docs/reference/{name}: {'written' if name in made else 'removed'}\n")
    return 0


if __name__ == "__main__":
    # The pages say nothing of this machine: neither its variables nor its files are looked at.
    for variable in [name for name in os.environ if name.startswith(("AGENTCTL_", "JWT_"))]:
        del os.environ[variable]
    sys.exit(main(sys.argv[1:]))
