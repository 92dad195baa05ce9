"""docs/own-parts.md names every part that does the work of a library, with its three proofs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.sources import PACKAGE, Module, modules

PAGE = PACKAGE.parent / "docs" / "own-parts.md"

BLOCKS = {
    "apsw", "asyncpg", "base64", "binascii", "bisect", "concurrent", "cryptography", "ctypes",
    "email", "fcntl", "gzip", "hashlib", "heapq", "hmac", "html", "httptools", "ipaddress", "jwt",
    "multiprocessing", "pty", "queue", "select", "selectors", "signal", "socket", "ssl", "struct",
    "subprocess", "termios", "threading", "unicodedata", "urllib", "zipfile", "zlib",
}  # fmt: skip
"""Packages that parts are built of."""

BASES = re.compile(r"\.(?:\w*Protocol|BaseTransport)$|ToolsProtocol$")
"""Base classes of transports and protocols."""

STANDARDS = re.compile(r"RFC (?!3339\b)\d+|W3C|WHATWG|OpenID Connect")
MOST_PATTERNS = 3
"""A module with more compiled patterns is a parser."""

USES: dict[str, tuple[str, ...]] = {
    "one digest of a text or a file": (
        "admin.file_checks", "cli.archives", "cli.commands.files",
        "cli.commands.sessions.change", "cli.show.answer",
        "interop.mcp.handshake", "interop.pages.request", "records.approvals",
        "records.sessions", "runs.life.repeats", "runtime.mcp.definitions",
        "runtime.components.catalog", "runtime.components.versions",
        "runtime.runners.replay", "runtime.components.versions",
        "runtime.transcript.requests", "service.family", "service.session_documents",
        "store.blobs", "store.copying.tables", "store.sqlite.backup",
        "store.sqlite.backup_bytes",
    ),
    "parts of URLs and of query strings, and addresses, by urllib and ipaddress": (
        "auth.explain.credential", "cli.commands.api", "config.checks", "config.databases",
        "config.extras", "interop.agentos.database.source", "interop.agentos.server.operation",
        "records.hosts", "remote.address", "remote.connection",
        "server.origins", "server.routes", "service.audit_log", "service.authorization",
        "telemetry.spans",
        "admin.doctor.configuration", "admin.doctor.databases",
        "store.repositories.personal_data",
    ),
    "calls of apsw and asyncpg, on the connections of the parts": (
        "store.copying.postgres", "store.copying.sqlite",
        "store.postgres.inspect", "store.sqlite.backup_folder",
        "store.sqlite.inspect", "store.sqlite.restore", "store.sqlite.schema",
    ),
    "classes of exceptions, and the errors that follow": (
        "remote.failures", "store.postgres.failures",
    ),
    "a lock, a thread or a future, no pool of its own": (
        "cli.commands.keys", "cli.commands.login", "client.calls", "work.run_scope",
        "runs.workers.worker",
        "runtime.models.answering", "runtime.runners.langgraph_callbacks", "server.app",
        "store.threads", "store.totals", "store.uploads", "telemetry.tracer",
    ),
    "threads, tasks and processes that code of users starts: no library follows them": (
        "work.child_processes", "work.event_loop", "work.origins", "work.start_hooks",
        "work.started_work",
    ),
    "signals of a program": (
        "cli.commands.chat", "cli.request_options", "store.sqlite.backup",
    ),
    "a lock of a file by one call of flock": (
        "auth.keys.files", "cli.contexts", "cli.sign_ins", "runs.workers.liveness",
    ),
    "one child process at a time, which is killed at its limit": (
        "cli.show.transcript.pages", "runtime.json_schema",
    ),
    "the end of an archive by one call of zipfile": ("store.media_types",),
    "a process that loads code of users, and ends": ("server.processes.broken",),
    "bytes in JSON as base64": (
        "cli.show.tokens", "runtime.files", "runtime.runners.hidden_files",
        "runtime.runners.langgraph_journal", "server.given_files", "service.paging",
    ),
    "the names and texts of a standard in messages, explanations and fields": (
        "auth.explain.checks", "config.settings", "errors", "interop.agui.face",
        "interface.requests.files", "interop.mcp.face", "runtime.json_schema",
        "server.app",
        "store.repositories.events",
    ),
    "own formats, which no library reads": (
        "auth.tokens.account_tokens", "cli.durations",
        "cli.report", "records.text", "store.database",
    ),
    "a search in a sorted list by bisect": ("runs.workers.liveness",),
    "widths and forms of characters by unicodedata": (
        "cli.show.terminal", "records.memories", "store.search",
    ),
    "files of the console and of the documentation, compressed once": (
        "server.openapi.pages", "server.routes.console",
    ),
    "the address of the listener, handed to uvicorn": ("server.processes.serve",),
}  # fmt: skip
"""Modules that use building blocks and are no part: what for."""


class Part(NamedTuple):
    """A row of the page."""

    name: str
    modules: tuple[str, ...]
    lines: int
    library: str
    decision: str
    figure: str
    test: str

    @property
    def proofs(self) -> tuple[str, str, str]:
        return self.decision, self.figure, self.test


@cache
def read_parts() -> list[Part]:
    """Return the rows of the section "Kept"."""
    section = PAGE.read_text(encoding="utf-8").partition("\n## Kept\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    return [
        Part(name, tuple(re.findall(r"`([^`]+)`", paths)), int(lines), *others)
        for name, paths, lines, *others in rows[2:]
    ]


def list_differential_tests() -> list[str]:
    """Return the files of all differential tests, relative to the project."""
    return sorted({name for part in read_parts() for name in find_links(part.test, "../")})


def find_links(cell: str, start: str) -> list[str]:
    return re.findall(rf"\]\({re.escape(start)}([^)]+)\)", cell)


def list_signs(module: Module) -> Iterator[str]:
    """Yield the reasons to take a module for a part."""
    yield from {item.name.partition(".")[0] for item in module.imports} & BLOCKS
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            yield from (name for base in node.bases if BASES.search(name := ast.unparse(base)))
    yield from sorted(set(STANDARDS.findall(module.text)))
    if module.text.count("re.compile(") > MOST_PATTERNS:
        yield "many patterns"


def name_of(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def test_every_candidate_is_a_part_or_has_a_reason() -> None:
    candidates = {
        module.name.partition(".")[2]: signs
        for module in modules()
        if (signs := sorted(set(list_signs(module))))
    }
    parts = {name_of(path) for part in read_parts() for path in part.modules}
    used = {name for names in USES.values() for name in names}
    assert {name: signs for name, signs in candidates.items() if name not in parts | used} == {}
    assert used - candidates.keys() == set(), "these modules use no building block any more"
    assert used & parts == set()


def test_modules_are_in_one_row_each() -> None:
    named = [path for part in read_parts() for path in part.modules]
    assert len(named) == len(set(named))
    assert [path for path in named if not (PACKAGE / path).is_file()] == []


@pytest.mark.parametrize("part", read_parts(), ids=lambda part: part.name)
def test_lines_of_a_part_are_current(part: Part) -> None:
    texts = [(PACKAGE / path).read_text(encoding="utf-8") for path in part.modules]
    lines = sum(text.count("\n") for text in texts)
    assert abs(lines - part.lines) <= max(30, lines * 0.15), f"{part.name} has {lines} lines"


@pytest.mark.parametrize("part", read_parts(), ids=lambda part: part.name)
def test_part_has_a_decision_a_figure_and_a_differential_test(part: Part) -> None:
    docs = PAGE.parent
    project = PACKAGE.parent
    (page,) = find_links(part.decision, "")
    assert page.startswith("decisions/")
    (command,) = re.findall(r"`([^`]+)`", part.figure)
    assert (project / Path(*command.split("."))).with_suffix(".py").is_file()
    text = " ".join((docs / page).read_text(encoding="utf-8").split())
    assert f"python -m {command}" in text
    assert find_links(part.test, "../")
    assert all((project / name).is_file() for name in find_links(part.test, "../"))


def test_a_new_socket_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text('"""RFC 9999."""\nimport socket, asyncio\n\nclass A(asyncio.Protocol): ...\n')
    assert set(list_signs(Module("own", path))) == {"socket", "asyncio.Protocol", "RFC 9999"}
