"""The commands of the pages work and print the output that the pages show."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.docs.pictures import PICTURES, write_picture
from tests.docs.shell import Shell
from tests.kit.documents import Command, Page, page, pages
from tests.kit.process import start_server

URL = "http://127.0.0.1:7777"
BINARIES = "/home/you/agentctl/.venv/bin"
FOLDER = "/home/you/agentctl/.agentctl-demo"
POSTGRES = "postgresql://agentctl@db/agentctl"
"""The empty database that the pages name."""

NOT_EXECUTED = {
    "make demo": "installs for minutes; the tests start the same server with the same command",
    "agentctl serve --config my-server/agentctl.toml": "runs until Ctrl-C",
    "agentctl --install-completion": "changes the settings of the shell that starts it",
}
"""Commands that no test executes, with the reason."""

GUIDES = (
    "docs/guides/explain-a-403.md",
    "docs/guides/session-cost.md",
    "docs/guides/stop-an-agent.md",
    "docs/guides/halt-an-agent.md",
    "docs/guides/have-a-person-approve-a-tool.md",
    "docs/guides/rotate-the-signing-key.md",
    "docs/guides/follow-a-team.md",
    "docs/guides/run-on-a-schedule.md",
)
SEQUENCE = (
    "README.md",
    "docs/quickstart.md",
    "docs/authorization.md",
    *GUIDES,
    "docs/guides/send-a-message.md",
    "docs/cli.md",
    "docs/api.md",
    "docs/databases.md",
    "docs/memory.md",
    "docs/files.md",
    "docs/retention.md",
    "docs/models.md",
    "docs/openai.md",
    "docs/python.md",
)
"""Pages in the order in which a person reads them, in one terminal and with one demo."""

STEPS = 197
"""The commands of these pages that a person executes, at least."""

KIND_PAGES = tuple(
    f"docs/guides/{kind}.md"
    for kind in ("function", "pydantic-ai", "langgraph", "agno", "openai-agents", "adk")
)
"""Tested by `test_kind_pages`."""

PAGE_WITH_AGENT = "docs/python.md"
PAGE_WITH_POSTGRES = "docs/guides/recover-postgresql.md"
"""Tested by `test_recover_postgresql`."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{6})?Z")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_STARTED = re.compile(rf"started run ({_UUID.pattern})")
_RUN_ID = re.compile(r"(?<![$\w])RUN_ID(?![\w=])")


@dataclass(frozen=True)
class Demo:
    """A demo server: its URL, its folder, its output, and the URL of an empty database."""

    url: str
    folder: Path
    output: str
    postgres: str

    @property
    def export(self) -> str:
        """The command that puts agentctl on the PATH."""
        return next(line for line in self.output.splitlines() if line.startswith("export PATH="))

    def as_documented(self, text: str) -> str:
        """Replace the folders and the port of this server by those of the pages."""
        text = text.replace(str(self.folder), FOLDER).replace(self.url, URL)
        text = text.replace(self.postgres, POSTGRES)
        return text.replace(str(Path(sys.executable).parent), BINARIES)


@contextmanager
def start_demo(folder: Path, postgres: str = POSTGRES) -> Iterator[Demo]:
    """Start the server of `make demo` on a free port and in another folder."""
    options = ("--demo", "--port", "0", "--demo-dir", str(folder))
    with start_server(*options, log=folder.parent / "demo.log") as server:
        yield Demo(server.url, folder, server.wait_for("agentctl console --sub me"), postgres)


def normalize(text: str) -> str:
    """Replace ids and times, remove colors, and collapse the width of columns."""
    text = _TIME.sub("<time>", _UUID.sub("<id>", _STYLE.sub("", text)))
    return re.sub(r"[ \t]+", " ", text).strip()


def first_missing_line(expected: tuple[str, ...], output: str) -> str | None:
    """Return the first expected line that is not in the output, after the line before it."""
    rest = [normalize(line) for line in output.splitlines()]
    for line in map(normalize, expected):
        at = next((index for index, candidate in enumerate(rest) if line in candidate), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None


def run_commands(tested: Page, terminal: Terminal) -> list[str]:
    """Execute every command of the page, in order, and return the mistakes of the page."""
    demo = terminal.demo
    run_id = ""
    mistakes = []
    shown: dict[int, str] = {}
    for command in tested.commands():
        if command.text in NOT_EXECUTED:
            continue
        text = _RUN_ID.sub(run_id, command.text).replace(FOLDER, str(demo.folder))
        text = demo.export if text.startswith("export PATH=") else text.replace(URL, demo.url)
        code, output = terminal.shell.run(text.replace(POSTGRES, demo.postgres))
        if found := _STARTED.search(output):
            run_id = found[1]
        output = demo.as_documented(output)
        if (mistake := find_mistake(tested, command, code, output)) is not None:
            mistakes.append(mistake)
        shown[command.line] = f"$ {command.text}\n{output}"
        terminal.steps += 1
    if PICTURES in os.environ:
        for picture, lines in tested.terminal_pictures():
            write_picture(picture, "".join(shown[line] for line in lines))
    return mistakes


def check(tested: Page, command: Command, code: int, output: str) -> None:
    """Compare the result of a command with the page."""
    mistake = find_mistake(tested, command, code, output)
    assert mistake is None, mistake


def find_mistake(tested: Page, command: Command, code: int, output: str) -> str | None:
    """Return how the result of a command differs from the page, or None.

    The exit code is 0 unless the page shows an error or a denial as the first line of the output.
    """
    place = f"{tested.name}:{command.line}: {command.text}\n{output}"
    fails = bool(command.output) and command.output[0].startswith(("error:", "401:", "403:"))
    if (code != 0) != fails:
        return f"exit code {code}: {place}"
    missing = first_missing_line(command.output, output)
    return None if missing is None else f"{missing!r} is not in {place}"


@dataclass
class Terminal:
    """The second terminal of a person: a shell, the demo that it uses, and the steps so far."""

    shell: Shell
    demo: Demo
    steps: int = 0


@pytest.fixture(scope="module")
def empty_database(postgres_url: str) -> Iterator[str]:
    """The URL of a new PostgreSQL database."""
    name = f"moved_{uuid4().hex}"
    server, _, query = postgres_url.partition("?")

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(postgres_url)
        await connection.execute(statement)
        await connection.close()

    asyncio.run(execute(f"CREATE DATABASE {name}"))
    yield f"{server.rpartition('/')[0]}/{name}" + (f"?{query}" if query else "")
    asyncio.run(execute(f"DROP DATABASE {name} WITH (FORCE)"))


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory, empty_database: str) -> Iterator[Terminal]:
    """One demo and one shell for all pages: a person tries them one after the other."""
    folder = tmp_path_factory.mktemp("pages")
    variables = {"NO_COLOR": "", "COLUMNS": "120"}
    work = folder / "shell" / "work"
    blocks = page(PAGE_WITH_AGENT).blocks("python")
    with (
        start_demo(folder / "demo", empty_database) as demo,
        Shell(folder / "shell", variables) as shell,
    ):
        (work / "my_agents.py").write_text(
            next(block.text for block in blocks if "def price(" in block.text)
        )
        (work / "agentctl.toml").write_text(
            '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n\n'
            '[[agents]]\nid = "price"\nobject = "my_agents:price"\n'
        )
        for line in demo.output.splitlines():
            if line.startswith("export "):
                assert shell.run(line)[0] == 0
        yield Terminal(shell, demo)


@pytest.mark.parametrize("name", SEQUENCE)
def test_commands_of_the_pages_work_one_page_after_the_other(name: str, terminal: Terminal) -> None:
    tested = page(name)
    if "curl " in tested.text and shutil.which("curl") is None:
        pytest.skip("needs curl: apt install curl")
    if name == "README.md":
        printed = terminal.demo.as_documented(terminal.demo.output)
        assert tested.blocks("text")[0].text.strip() == printed.strip()
    # The pictures of the guides have this width.
    assert terminal.shell.run(f"COLUMNS={90 if name in GUIDES else 120}")[0] == 0
    steps = terminal.steps
    mistakes = run_commands(tested, terminal)
    assert mistakes == [], f"{len(mistakes)} of {terminal.steps - steps} steps are wrong"


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_has_a_picture_of_its_commands(name: str) -> None:
    ((picture, lines),) = page(name).terminal_pictures()
    assert lines, "a picture follows a block of commands"
    text = picture.read_text(encoding="utf-8")
    assert len(text) < 40_000
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "")


def test_every_page_with_commands_is_tested() -> None:
    with_commands = {tested.name for tested in pages() if tested.commands()}
    assert with_commands == {*SEQUENCE, *KIND_PAGES, PAGE_WITH_POSTGRES}
    commands = {command.text for tested in pages() for command in tested.commands()}
    assert commands >= NOT_EXECUTED.keys()
    steps = [each for name in SEQUENCE for each in page(name).commands()]
    assert len([each for each in steps if each.text not in NOT_EXECUTED]) >= STEPS
