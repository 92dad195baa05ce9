"""Vendored libraries are the published ones, and the console stays small."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.tables import every_row
from tests.kit.vendored import FOLDERS, ROOT, read_manifest, read_vendored

CONSOLE = ROOT / "agentctl/server/console"

MAXIMUM_BYTES = 440_000
MAXIMUM_COMPRESSED_BYTES = 152_000

FIRST_FILES = (
    (("pages/sessions.js",), 14, 141_000, 48_500),
    (("pages/overview.js",), 15, 165_000, 57_000),
    (("pages/transcript.js", "app/markdown.js", "app/files.js"), 21, 252_000, 84_500),
)
"""The modules that the first list, the overview and a transcript load beside the first one, and the
most files, bytes and compressed bytes that they cost; decision 56 has these numbers."""

IMPORT = re.compile(r'(?:\bfrom|^import)\s*"(\.[^"]+)"', re.MULTILINE)
"""An import that a module needs before it runs."""


def assets() -> list[Path]:
    return [
        file
        for file in CONSOLE.rglob("*")
        if file.suffix in (".js", ".mjs", ".css", ".html", ".svg")
    ]


@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_vendored_files_have_the_hashes_of_the_manifest(folder: Path) -> None:
    packages = read_manifest(folder)
    expected = {
        name: file for package in packages.values() for name, file in package["files"].items()
    }
    for name, file in expected.items():
        assert hashlib.sha256(read_vendored(folder / name)).hexdigest() == file["sha256"], name
    licences = (folder / "LICENSES").read_text()
    assert all(f"{name} {package['version']}" in licences for name, package in packages.items())
    assert {file.name for file in folder.iterdir()} == {*expected, "LICENSES", "vendor.json"}


def test_files_of_the_console_are_small() -> None:
    sizes = [(len(file.read_bytes()), len(gzip.compress(file.read_bytes()))) for file in assets()]
    assert sum(plain for plain, _ in sizes) < MAXIMUM_BYTES
    assert sum(compressed for _, compressed in sizes) < MAXIMUM_COMPRESSED_BYTES


@pytest.mark.parametrize(
    "word", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
)
def test_own_files_use_no_dangerous_interface(word: str) -> None:
    for file in assets():
        if file.parent.name != "vendor":
            assert word not in file.read_text(), file.name


def test_only_saved_views_outlive_the_tab() -> None:
    used = [file.name for file in assets() if "localStorage" in file.read_text()]
    assert used == ["filters.js"]


@every_row("modules, count, plain, compressed", FIRST_FILES)
def test_first_pages_load_few_files(
    modules: Sequence[str], count: int, plain: int, compressed: int
) -> None:
    paths = ["index.html", "app/app.css", "app/icon.svg", "app/main.js", *modules]
    loaded = dict[Path, bytes]()
    waiting = [CONSOLE / path for path in paths]
    while waiting:
        file = waiting.pop()
        if file in loaded:
            continue
        loaded[file] = file.read_bytes()
        if file.suffix in (".js", ".mjs"):
            names = IMPORT.findall(loaded[file].decode())
            waiting += [(file.parent / name).resolve() for name in names]

    sizes = (
        len(loaded),
        sum(len(data) for data in loaded.values()),
        sum(len(gzip.compress(data)) for data in loaded.values()),
    )
    limits = (count, plain, compressed)
    assert all(size <= limit for size, limit in zip(sizes, limits, strict=True)), sizes
