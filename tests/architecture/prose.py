"""Words and phrases that the prose of this project avoids (docs/internals/style.md).

`python -m tests.architecture.prose PATH...` lists the places to rewrite, the whole repository
without a path. Checked are:

- docstrings, comments and sentences in strings (help, errors, log texts) of `agentctl` and `docs`,
- docstrings and comments of `tests`, `bench` and `compat`,
- Markdown pages outside code, and comments of TOML, SQL, the Makefile and shell scripts.

Text between backticks is code and is skipped.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

__all__ = ["REPOSITORY", "Offence", "Text", "files", "offences", "texts"]

REPOSITORY = Path(__file__).parents[2]

AVOIDED = {
    # Old words of this project, which a reader of today has to translate.
    r"whoever|whomever": "any caller, the user who",
    r"one's": "your, its, the caller's",
    r"anew": "again",
    r"for the sake of": "for, to",
    r"thereof|therein|hereby|herein|henceforth|aforementioned|forthwith|lest|naught":
        "the plain word",
    # Pictures of things that have a name.
    r"doors?|seams?|buried|leftovers?|salvaged?|patiently": "the term of docs/glossary.md",
    r"(?:through (?:a|the|this|either|which)|operations) port|ports? of operations":
        "operations, backend",
    # Advertisements, and words that tell readers how to feel.
    r"seamless(?:ly)?|effortless(?:ly)?|powerful|blazing(?:ly)?|cutting-edge|state of the art|"
    r"world-class|best-in-class|game-chang(?:er|ing)": "a fact or a figure",
    r"leverag(?:es?|ed|ing)|utili[sz](?:es?|ed|ing)": "use",
    r"delv(?:es?|ed|ing)": "describe, read",
    r"simply|obviously|of course": "nothing: leave it out",
}  # fmt: skip
"""Regular expressions of whole words, and better words.

These are wrong wherever they stand: the old dialect of this project, and a false tone. Any other
word is a matter of its sentence, which no list can judge (docs/internals/style.md "Prose").
"""

QUESTION_WORDS = "What|Whether|Who|Whom|Whose|Which|How|That|Where|Why"
BEGINNING = re.compile(rf"\s*(?:{QUESTION_WORDS})\b(?![^.]*\?)")
"""A noun clause where a docstring or a help text has to begin with a verb or a noun."""

DESCRIPTIONS = {"help", "short_help", "epilog", "description", "summary"}
"""Arguments that users read as a description."""

DECLARATIONS = {"option", "flag", "argument"}
"""Functions whose last positional argument is such a description (`agentctl/cli/parameters.py`)."""

ALLOWED: dict[str, tuple[str, ...]] = {
    "docs/internals/style.md": ("*",),
    "docs/glossary.md": ("*",),
    "tests/architecture/prose.py": ("*",),
    "tests/architecture/test_prose.py": ("*",),
}
"""Words that a file may use, `*` for every word: the pages that name them, and quotations."""

_PATTERNS = [
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), better) for words, better in AVOIDED.items()
]
_INDENT = re.compile(r"(?<=\n)[ \t]+")
_CODE = re.compile(r"``.+?``|`[^`]+`", re.DOTALL)
_FENCED = re.compile(r"^([ ]*)(`{3,}|~{3,}).*?^\1\2[`~]*[ ]*$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\([^)]*\)|https?://\S+")
_TESTING = ("tests", "bench", "compat")
"""Folders whose strings are not shown to users."""

_SUFFIXES = {".py", ".md", ".toml", ".sql"}


class Text(NamedTuple):
    """A piece of prose, and the number of its first line."""

    line: int
    text: str
    kind: Literal["docstring", "help", "other"] = "other"


class Offence(NamedTuple):
    """A place to rewrite."""

    path: str
    line: int
    words: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.words!r} ({self.advice})"


def files(paths: Iterable[Path] = (), root: Path = REPOSITORY) -> Iterator[Path]:
    """Yield the files with prose below these paths, by default those of the repository."""
    for path in paths or [
        *(root / name for name in ("agentctl", "docs", *_TESTING, ".ci/run", "Makefile")),
        *sorted(root.glob("*.md")),
        *sorted(root.glob("*.toml")),
    ]:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
            if file.is_file() and not hidden and (file.suffix in _SUFFIXES or file == path):
                yield file


def offences(file: Path, root: Path = REPOSITORY) -> Iterator[Offence]:
    """Find the avoided words and beginnings of a file below the root of a repository."""
    path = file.resolve().relative_to(root).as_posix()
    allowed = ALLOWED.get(path, ())
    if "*" in allowed:
        return
    for line, text, kind in texts(file, root):
        visible = _INDENT.sub("", _CODE.sub(_blank, text))
        flat = visible.replace("\n", " ")
        if kind != "other" and (match := BEGINNING.match(flat)):
            yield Offence(path, line, match[0].strip(), "begin with a verb or a noun")
        for pattern, better in _PATTERNS:
            for match in pattern.finditer(flat):
                if match[0].lower() not in allowed:
                    place = line + visible.count("\n", 0, match.start())
                    yield Offence(path, place, match[0], better)


def texts(file: Path, root: Path = REPOSITORY) -> Iterator[Text]:
    """Yield the prose of a file."""
    source = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        strings = file.resolve().relative_to(root).parts[0] not in _TESTING
        yield from _of_python(source, strings)
    elif file.suffix == ".md":
        yield Text(1, _LINK.sub(_blank, _FENCED.sub(_blank, source)))
    else:
        marker = "--" if file.suffix == ".sql" else "#"
        comments = [
            (number, line.partition(marker)[2].strip())
            for number, line in enumerate(source.splitlines(), 1)
            if marker in line
        ]
        yield from _joined(comments)


def _of_python(source: str, strings: bool) -> Iterator[Text]:
    if "#" in source:
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        yield from _joined(
            (token.start[0], token.string.lstrip("#: "))
            for token in tokens
            if token.type == tokenize.COMMENT
        )
    nodes = [*ast.walk(ast.parse(source))]  # outer nodes first
    docstrings = {
        id(node.value): node.value
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for docstring in docstrings.values():
        if isinstance(docstring.value, str):
            yield Text(docstring.lineno, docstring.value, "docstring")
    if strings:
        yield from _strings(nodes, set(docstrings))


def _strings(nodes: Sequence[ast.AST], seen: set[int]) -> Iterator[Text]:
    """Yield the strings among nodes that have a space in them, f-strings with `{}` for values."""
    described = {
        id(keyword.value)
        for node in nodes
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg in DESCRIPTIONS
    }
    described |= {
        id(node.args[-1])
        for node in nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args
        if node.func.id in DECLARATIONS
    }
    for node in nodes:
        if id(node) in seen:
            continue
        text = ""
        if isinstance(node, ast.JoinedStr):
            parts = [part for part in node.values if isinstance(part, ast.Constant)]
            seen.update(map(id, parts))
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        if " " in text.strip():
            kind = "help" if id(node) in described else "other"
            yield Text(getattr(node, "lineno", 1), text, kind)


def _joined(comments: Iterable[tuple[int, str]]) -> Iterator[Text]:
    """Join comments on consecutive lines, so that a phrase may be broken between them."""
    first = 0
    block = list[str]()
    for number, comment in comments:
        if block and number != first + len(block):
            yield Text(first, "\n".join(block))
            block = []
        if not block:
            first = number
        block.append(comment)
    if block:
        yield Text(first, "\n".join(block))


def _blank(match: re.Match[str]) -> str:
    """Return as much text without words, so that positions and lines stay the same."""
    return re.sub(r"[^\n]", "\u00b7", match[0])


def main() -> int:
    """Print the offences in the files named on the command line; return the exit code."""
    count = 0
    for file in files([Path(name).resolve() for name in sys.argv[1:]]):
        for offence in sorted(offences(file)):
            print(offence)
            count += 1
    print(f"{count} places to rewrite", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
