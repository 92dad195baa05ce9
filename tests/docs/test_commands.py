"""The commands of the pages work and print the output that the pages show."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tests.docs.pages import Command, Page, page, pages
from tests.docs.pictures import PICTURES, write_picture
from tests.docs.shell import Shell
from tests.process import start_server

pytestmark = pytest.mark.slow

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

DEMO_PAGES = (
    "README.md",
    "docs/api.md",
    "docs/cli.md",
    "docs/databases.md",
    "docs/memory.md",
    "docs/models.md",
    "docs/openai.md",
    "docs/retention.md",
)
CONTINUED = {"README.md": "docs/quickstart.md"}
"""Pages that continue another one, in its terminal."""

GUIDES = (
    "docs/guides/explain-a-403.md",
    "docs/guides/session-cost.md",
    "docs/guides/stop-an-agent.md",
    "docs/guides/have-a-person-approve-a-tool.md",
    "docs/guides/rotate-the-signing-key.md",
    "docs/guides/follow-a-team.md",
    "docs/guides/run-on-a-schedule.md",
)
PAGES_WITHOUT_SERVER = ("docs/authorization.md",)
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
        yield Demo(server.url, folder, server.wait_for("runs start"), postgres)


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


def run_commands(tested: Page, shell: Shell, demo: Demo | None) -> None:
    """Execute every command of the page, in order, and compare the output."""
    run_id = ""
    shown: dict[int, str] = {}
    for command in tested.commands():
        if command.text in NOT_EXECUTED:
            continue
        text = _RUN_ID.sub(run_id, command.text)
        if demo is not None:
            is_export = text.startswith("export PATH=")
            text = demo.export if is_export else text.replace(URL, demo.url)
            text = text.replace(POSTGRES, demo.postgres)
        code, output = shell.run(text)
        if found := _STARTED.search(output):
            run_id = found[1]
        output = output if demo is None else demo.as_documented(output)
        check(tested, command, code, output)
        shown[command.line] = f"$ {command.text}\n{output}"
    if PICTURES in os.environ:
        for picture, lines in tested.terminal_pictures():
            write_picture(picture, "".join(shown[line] for line in lines))


def check(tested: Page, command: Command, code: int, output: str) -> None:
    """Compare the result of a command with the page.

    The exit code is 0 unless the page shows an error or a denial as the first line of the output.
    """
    place = f"{tested.name}:{command.line}: {command.text}\n{output}"
    fails = bool(command.output) and command.output[0].startswith(("error:", "401:", "403:"))
    assert (code != 0) == fails, f"exit code {code}: {place}"
    missing = first_missing_line(command.output, output)
    assert missing is None, f"{missing!r} is not in {place}"


@pytest.fixture
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
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """One demo for all pages: a person tries them one after the other."""
    with start_demo(tmp_path_factory.mktemp("pages") / "demo") as demo:
        yield demo


@pytest.mark.parametrize("name", DEMO_PAGES)
def test_commands_of_a_page_work_against_the_demo(
    name: str, tmp_path: Path, function: str, demo: Demo, request: pytest.FixtureRequest
) -> None:
    tested = page(name)
    own: AbstractContextManager[Demo] = nullcontext(demo)
    if any(POSTGRES in command.text for command in tested.commands()):
        # The demo serves nothing more after its database has moved to PostgreSQL.
        own = start_demo(tmp_path / "demo", request.getfixturevalue("empty_database"))
    if "curl " in tested.text and shutil.which("curl") is None:
        pytest.skip("needs curl: apt install curl")
    with own as demo, Shell(tmp_path / "shell", {}, function) as shell:
        if not any(command.text.startswith("export PATH=") for command in tested.commands()):
            assert shell.run(demo.export)[0] == 0
            token = "agentctl token mint --sub me --scope agent_os:admin --yes"
            assert shell.run(f"export AGENTCTL_TOKEN=$({token})")[0] == 0
        if name == "README.md":
            assert tested.blocks("text")[0].text.strip() == demo.as_documented(demo.output).strip()
        run_commands(tested, shell, demo)
        if name in CONTINUED:
            run_commands(page(CONTINUED[name]), shell, demo)


@pytest.mark.parametrize("name", PAGES_WITHOUT_SERVER)
def test_commands_of_a_page_work_without_a_server(name: str, tmp_path: Path, function: str) -> None:
    with Shell(tmp_path / "shell", {}, function) as shell:
        binaries = Path(sys.executable).parent
        assert shell.run(f"export PATH='{binaries}':\"$PATH\"") == (0, "")
        run_commands(page(name), shell, None)


def test_commands_of_a_page_work_with_its_agent(tmp_path: Path) -> None:
    tested, binaries = page(PAGE_WITH_AGENT), Path(sys.executable).parent
    code = next(block.text for block in tested.blocks("python") if "def price(" in block.text)
    with Shell(tmp_path, {"PATH": f"{binaries}:{os.defpath}"}) as shell:
        (tmp_path / "work" / "my_agents.py").write_text(code)
        (tmp_path / "work" / "agentctl.toml").write_text(
            '[[databases]]\nid = "main"\nurl = "sqlite:///main.db"\n\n'
            '[[agents]]\nid = "price"\nobject = "my_agents:price"\n'
        )
        run_commands(tested, shell, None)


def test_commands_of_the_guides_work_against_one_demo(
    tmp_path: Path, function: str, demo: Demo
) -> None:
    variables = {"NO_COLOR": "", "COLUMNS": "90"}
    for number, name in enumerate(GUIDES):
        with Shell(tmp_path / f"shell{number}", variables, function) as shell:
            assert shell.run(demo.export)[0] == 0
            token = "agentctl token mint --sub me --scope agent_os:admin --yes"
            assert shell.run(f"export AGENTCTL_TOKEN=$({token})")[0] == 0
            run_commands(page(name), shell, demo)


@pytest.mark.parametrize("name", GUIDES)
def test_every_guide_has_a_picture_of_its_commands(name: str) -> None:
    ((picture, lines),) = page(name).terminal_pictures()
    assert lines, "a picture follows a block of commands"
    text = picture.read_text(encoding="utf-8")
    assert len(text) < 40_000
    assert "http" not in text.replace("http://www.w3.org/", "").replace("http://127.0.0.1", "")


def test_every_page_with_commands_is_tested() -> None:
    with_commands = {tested.name for tested in pages() if tested.commands()}
    assert with_commands == {
        *DEMO_PAGES,
        *CONTINUED.values(),
        *GUIDES,
        *PAGES_WITHOUT_SERVER,
        PAGE_WITH_AGENT,
        PAGE_WITH_POSTGRES,
    }
    commands = {command.text for tested in pages() for command in tested.commands()}
    assert commands >= NOT_EXECUTED.keys()
