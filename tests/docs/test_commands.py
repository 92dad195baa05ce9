"""What the pages tell a reader to type works, and shows what they say that it shows."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import Command, Page, page, pages
from tests.docs.shell import Shell
from tests.process import start_server

URL = "http://127.0.0.1:7777"
BINARIES = "/home/you/agentctl/.venv/bin"
FOLDER = "/home/you/agentctl/.agentctl-demo"

NOT_RUN = {
    "make demo": "installs for minutes; the tests start the same server by the same command",
    "make test": "is what runs these tests",
    "agentctl serve": "runs until Ctrl-C; every page here is run against such a server",
    "agentctl serve --config my-server/agentctl.toml": "likewise",
    "agentctl --install-completion": "changes the settings of the shell that starts it",
}
"""The lines that no test runs, and why."""

DEMO_PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/api.md",
    "docs/cli.md",
    "docs/databases.md",
)
OTHER_PAGES = ("docs/authorization.md",)

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{6})?Z")
_STARTED = re.compile(rf"started run ({_UUID.pattern})")
_RUN_ID = re.compile(r"(?<![$\w])RUN_ID(?![\w=])")


@dataclass(frozen=True)
class Demo:
    """A demo server: its URL, its folder, and the lines that it printed."""

    url: str
    folder: Path
    printed: list[str]

    @property
    def export(self) -> str:
        """The line that puts agentctl on the PATH."""
        return next(line for line in self.printed if line.startswith("export PATH="))

    def general(self, text: str) -> str:
        """A text of this server as the pages have it: their folder and their port."""
        text = text.replace(str(self.folder), FOLDER).replace(self.url, URL)
        return text.replace(str(Path(sys.executable).parent), BINARIES)


@contextmanager
def demo_server(folder: Path) -> Iterator[Demo]:
    """What `make demo` starts, on a free port and in another folder."""
    options = ("--demo", "--port", "0", "--demo-dir", str(folder))
    with start_server(*options, log=folder.parent / "demo.log") as server:
        said = server.wait_for("runs start")
        yield Demo(server.url, folder, said.splitlines())


def normal(text: str) -> str:
    """Text without what differs from one time to the next: ids, times, the width of columns."""
    text = _TIME.sub("<time>", _UUID.sub("<id>", text))
    return re.sub(r"[ \t]+", " ", text).strip()


def missing(shown: tuple[str, ...], seen: str) -> str | None:
    """The first line of `shown` that is not in `seen`, below the line before it."""
    rest = [normal(line) for line in seen.splitlines()]
    for line in map(normal, shown):
        at = next((index for index, candidate in enumerate(rest) if line in candidate), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None


def run_page(tested: Page, shell: Shell, demo: Demo | None) -> None:
    """Type every line of the page, in order, and compare what is to be seen."""
    run_id = ""
    for command in tested.commands():
        if command.text in NOT_RUN:
            continue
        text = _RUN_ID.sub(run_id, command.text)
        if demo is not None:
            is_export = text.startswith("export PATH=")
            text = demo.export if is_export else text.replace(URL, demo.url)
        code, seen = shell.run(text)
        if found := _STARTED.search(seen):
            run_id = found[1]
        general = seen if demo is None else demo.general(seen)
        check(tested, command, code, general)


def check(tested: Page, command: Command, code: int, seen: str) -> None:
    """A line whose output begins with an error or a refusal fails; every other one succeeds."""
    where = f"{tested.name}:{command.line}: {command.text}\n{seen}"
    fails = bool(command.shown) and command.shown[0].startswith(("error:", "401:", "403:"))
    assert (code != 0) == fails, f"exit code {code}: {where}"
    assert missing(command.shown, seen) is None, f"{missing(command.shown, seen)!r} not in {where}"


@pytest.mark.parametrize("name", DEMO_PAGES)
def test_the_lines_of_a_page_work_against_the_demo(name: str, tmp_path: Path) -> None:
    tested = page(name)
    if "curl " in tested.text and shutil.which("curl") is None:
        pytest.skip("this page is about curl, which is not installed")
    with demo_server(tmp_path / "demo") as demo, Shell(tmp_path / "shell", {}) as shell:
        if not any(command.text.startswith("export PATH=") for command in tested.commands()):
            assert shell.run(demo.export)[0] == 0
            token = "agentctl token mint --sub me --scope agent_os:admin --yes"
            assert shell.run(f"export AGENTCTL_TOKEN=$({token})")[0] == 0
        run_page(tested, shell, demo)


@pytest.mark.parametrize("name", OTHER_PAGES)
def test_the_lines_of_a_page_work_by_themselves(name: str, tmp_path: Path) -> None:
    with Shell(tmp_path / "shell", {}) as shell:
        binaries = Path(sys.executable).parent
        assert shell.run(f"export PATH='{binaries}':\"$PATH\"") == (0, "")
        run_page(page(name), shell, None)


def test_no_page_has_lines_that_nothing_runs() -> None:
    with_lines = {tested.name for tested in pages() if tested.commands()}
    assert with_lines == {*DEMO_PAGES, *OTHER_PAGES}
    typed = {command.text for tested in pages() for command in tested.commands()}
    assert typed >= NOT_RUN.keys()


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    with demo_server(tmp_path / "demo") as demo:
        printed = demo.general("\n".join(demo.printed)).strip()
    assert page("README.md").blocks("text")[0].text.strip() == printed
