"""`agentctl config check` with agents in code: what cannot be imported, where, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.config.extras import build_install_command
from tests.cli.conftest import Agentctl
from tests.cli.projects import make_project


def check(agentctl: Agentctl, home: Path, reference: str, **files: str) -> tuple[int, str, str]:
    """Check a configuration with one agent; return the exit code, the problem and the hint."""
    project = make_project(home, rest=f'[[agents]]\nid = "code"\nobject = "{reference}"\n')
    for name, text in files.items():
        path = project.parent / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    ended = agentctl("config", "check")
    problem, _, hint = ended.stderr.partition("\n\n")
    return ended.code, problem, hint.removeprefix("hint: ").strip()


IMPORT = build_install_command("no-such-library")


@pytest.mark.parametrize(
    ("files", "problem", "hint"),
    [
        (
            {"code_one": "import json\n\nimport no_such_library\n"},
            "code_one.py, line 3: ModuleNotFoundError: No module named 'no_such_library'",
            f"install the package: {IMPORT}; or put no_such_library.py next to the configuration",
        ),
        (
            {"code_one": "import code_two\n", "code_two": "\nimport yaml_missing.parts\n"},
            "code_two.py, line 2: ModuleNotFoundError: No module named 'yaml_missing'",
            f"install the package: {build_install_command('yaml-missing')}; ",
        ),
        (
            {"code_one": "import json.no_such_part\n"},
            "code_one.py, line 1: ModuleNotFoundError: No module named 'json.no_such_part'",
            "correct code_one.py, line 1",
        ),
        (
            {"code_one": "x = 1\nfrom pydantic import no_such_name\n"},
            "code_one.py, line 2: ImportError: cannot import name 'no_such_name' from 'pydantic'",
            "install a version of pydantic that has this name",
        ),
        (
            {"code_one": "def half(:\n    pass\n"},
            "code_one.py, line 1: SyntaxError: invalid syntax",
            "correct code_one.py, line 1",
        ),
        (
            {"code_one": "import code_two\n", "code_two": "x = [\n"},
            "code_two.py, line 1: SyntaxError: '[' was never closed",
            "correct code_two.py, line 1",
        ),
        (
            {"code_one": "import json\n\nagent = json.loads('')\n"},
            "code_one.py, line 3: JSONDecodeError: Expecting value",
            "correct code_one.py, line 3",
        ),
        (
            {"code_one": "from code_two import absent\n", "code_two": ""},
            "code_one.py, line 1: ImportError: cannot import name 'absent' from 'code_two'",
            "correct code_one.py, line 1",
        ),
    ],
    ids=[
        "package",
        "package of another file",
        "part",
        "name",
        "syntax",
        "syntax of another file",
        "value",
        "own name",
    ],
)
def test_import_that_fails_names_its_place_and_what_to_do(
    agentctl: Agentctl,
    home: Path,
    forgotten_modules: None,
    files: dict[str, str],
    problem: str,
    hint: str,
) -> None:
    code, shown, advice = check(agentctl, home, "code_one:agent", **files)
    assert code == 2
    assert (
        f"cannot use the object 'code_one:agent': its module cannot be imported ({problem}" in shown
    )
    assert advice.startswith(hint)
    assert "an Agent of pydantic-ai" not in shown + advice


CLASS = "class Agent:\n    {} __call__(self, message): ...\n\nagent = Agent()\n"
CALLED = "call it in a function: async def agent(message, context): return"
PAGE = "for agents of other libraries see docs/other-libraries.md"


@pytest.mark.parametrize(
    ("files", "problem", "hint"),
    [
        (
            {"code_one": "def agent():\n    import no_such_library\n"},
            "the function failed (code_one.py, line 2: ModuleNotFoundError: No module named",
            f"install the package: {IMPORT}; or put no_such_library.py next to the configuration",
        ),
        (
            {"code_one": "import os\n\ndef agent():\n    return os.environ['NO_SUCH_KEY']\n"},
            "the function failed (code_one.py, line 4: KeyError: 'NO_SUCH_KEY')",
            "set the environment variable NO_SUCH_KEY, or correct code_one.py, line 4",
        ),
        (
            {
                "code_one": "from code_two import build\ndef agent():\n    return build()\n",
                "code_two": "def build():\n    raise RuntimeError('no connection')\n",
            },
            "the function failed (code_two.py, line 2: RuntimeError: no connection)",
            "correct code_two.py, line 2",
        ),
        (
            {"code_one": "import sys\ndef agent():\n    sys.exit('usage: agent')\n"},
            "the function failed (code_one.py, line 3: SystemExit: usage: agent)",
            "correct code_one.py, line 3",
        ),
        (
            {
                "code_one": "import pathlib, sys\nfolder = pathlib.Path(__file__).parent\n"
                "sys.path.insert(0, str(folder / 'site-packages'))\nimport code_library\n",
                "site-packages__code_library": "raise ImportError('pip install code-extra')\n",
            },
            "(code_one.py, line 4: ImportError: pip install code-extra)",
            "install what code_library needs: its message names the package",
        ),
        (
            {"code_one": "async def agent(context, message):\n    return message\n"},
            "its parameters are (context, message): the message is the first one",
            "write (message, context), or annotate context: agentctl.RunContext",
        ),
        (
            {"code_one": CLASS.format("async def")},
            "it is an object of the type Agent, which is not an agent",
            f"{CALLED} await NAME(message); {PAGE}",
        ),
        (
            {"code_one": CLASS.format("def")},
            "it is an object of the type Agent, which is not an agent",
            f"{CALLED} NAME(message); {PAGE}",
        ),
        (
            {
                "code_one": "import functools\nasync def call(message, style): ...\n"
                "agent = functools.partial(call, style='brief')\n"
            },
            "it is an object of the type partial, which is not an agent",
            f"{CALLED} await NAME(message); {PAGE}",
        ),
        ({"code_one": "agent = 7\n"}, "which is not an agent", "an agent is an Agent of"),
    ],
    ids=[
        "module",
        "variable",
        "error",
        "exit",
        "library",
        "swapped",
        "asynchronous object",
        "object",
        "partial",
        "other",
    ],
)
def test_object_that_cannot_be_an_agent_has_a_hint(
    agentctl: Agentctl,
    home: Path,
    forgotten_modules: None,
    files: dict[str, str],
    problem: str,
    hint: str,
) -> None:
    code, shown, advice = check(agentctl, home, "code_one:agent", **files)
    assert (code, problem in shown) == (2, True), shown
    assert advice.startswith(hint)
    assert ("an Agent of pydantic-ai" in advice) == hint.startswith("an agent is")
    assert PAGE in advice or "other libraries" not in hint


def test_runnable_of_langchain_has_a_hint(
    agentctl: Agentctl, home: Path, forgotten_modules: None
) -> None:
    text = (
        "from langchain_core.runnables import RunnableLambda\nagent = RunnableLambda(str) | str\n"
    )
    code, shown, advice = check(agentctl, home, "code_one:agent", code_one=text)
    assert code == 2
    assert "it is an object of the type RunnableSequence, which is not an agent" in shown
    assert advice.startswith(f"{CALLED} await NAME.ainvoke(message); {PAGE}")


def test_misspelled_name_has_a_suggestion(
    agentctl: Agentctl, home: Path, forgotten_modules: None
) -> None:
    text = "async def support(message):\n    return message\n"
    _, shown, hint = check(agentctl, home, "code_one:suport", code_one=text)
    assert "the module code_one has no suport" in shown
    assert hint == "did you mean code_one:support?"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [("code_book.01_basic:team", 0), ("02_tools:team", 0), ("02_tools:1team", 2)],
)
def test_module_name_begins_with_a_digit(
    agentctl: Agentctl, home: Path, forgotten_modules: None, reference: str, expected: int
) -> None:
    text = "async def team(message):\n    return message\n"
    files = {"code_book__01_basic": text, "02_tools": text}
    code, shown, _ = check(agentctl, home, reference, **files)
    assert code == expected, shown
    if expected:
        assert "package.module:name" in shown


@pytest.fixture
def forgotten_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget the modules of a test, and the folders that were added to the path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("code_", "02_tools")):
            del sys.modules[name]
