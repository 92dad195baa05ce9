"""Generate the pages of `docs/reference` from the code: `python docs/generate.py [--check]`.

With `--check` nothing is written; the exit code is 1 if a page is not current, and stderr names it.
The pages depend on the code only, not on a terminal or an environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
REFERENCE = HERE / "reference"

DOCUMENT = "document.json"
"""The name of the OpenAPI document, which is a file of the package: servers read it."""

PACKAGE_FOLDER = HERE.parent / "agentctl" / "server" / "openapi"

__all__ = ["REFERENCE", "main", "pages", "stale"]


def pages() -> Mapping[str, Callable[[], str]]:
    """Return the function that builds each page, by the name of the page."""
    from pages import (
        cli,
        client,
        configuration,
        errors,
        help_texts,
        man,
        operations,
        programs,
        states,
    )

    return {
        "agentctl.1": man.page,
        "cli.md": cli.page,
        "client.md": client.page,
        "configuration.md": configuration.page,
        DOCUMENT: operations.document,
        "errors.md": errors.page,
        "help.txt": help_texts.page,
        "operations.md": operations.operations_page,
        "programs.md": programs.page,
        "scopes.md": operations.scopes_page,
        "states.md": states.page,
    }


def stale(folder: Path, made: Mapping[str, str]) -> list[str]:
    """Return the names of files in `folder` that are missing, differ from `made`, or are extra."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    differing = [name for name, text in made.items() if _read(folder, name) != text]
    return sorted({*differing, *(there - made.keys())})


def _place(folder: Path, name: str) -> Path:
    return (PACKAGE_FOLDER if name == DOCUMENT else folder) / name


def _label(name: str) -> str:
    folder = "agentctl/server/openapi" if name == DOCUMENT else "docs/reference"
    return f"{folder}/{name}"


def _read(folder: Path, name: str) -> str | None:
    path = _place(folder, name)
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` compare them. Returns the exit code."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate.py [--check]\n")
        return 2
    made = {name: make() for name, make in pages().items()}
    wrong = stale(REFERENCE, made)
    if arguments:
        for name in wrong:
            sys.stderr.write(f"{_label(name)} is not current: run `make docs`\n")
        return 1 if wrong else 0
    REFERENCE.mkdir(exist_ok=True)
    for name in wrong:
        path = _place(REFERENCE, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name in made:
            path.write_text(made[name], encoding="utf-8")
        else:
            path.unlink()
        sys.stderr.write(f"{_label(name)}: {'written' if name in made else 'removed'}\n")
    return 0


if __name__ == "__main__":
    # The pages must not depend on the variables of this machine.
    for variable in [name for name in os.environ if name.startswith(("AGENTCTL_", "JWT_"))]:
        del os.environ[variable]
    sys.exit(main(sys.argv[1:]))
