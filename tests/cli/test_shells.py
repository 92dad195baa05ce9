"""Completion in the shells themselves: a person types the beginning of a word, and TAB."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.local_project import write_config
from tests.cli.test_pages import read_session
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.process import base_environment

COMPLETIONS = {
    "agentctl sess": "agentctl sessions ",
    "agentctl sessions get d": "agentctl sessions get d1 ",
    "agentctl token mint --scope agent_os:a": "agentctl token mint --scope agent_os:admin ",
}
"""The line before TAB, and after it: a command, an id and a word with a colon, which divides words
in bash. Which words are offered is the subject of `test_completion.py`."""

PREPARE = {
    "bash": 'eval "$(_AGENTCTL_COMPLETE=source_bash agentctl)"',
    "zsh": "autoload -Uz compinit; compinit -u -D; "
    'eval "$(_AGENTCTL_COMPLETE=source_zsh agentctl)"',
}
START = {"bash": ["bash", "--norc", "--noprofile", "-i"], "zsh": ["zsh", "-f", "-i"]}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a user with a session; PWD is the folder to work in."""
    folder = tmp_path_factory.mktemp("shells")
    write_config(folder)
    (folder / "sessions.json").write_text(json.dumps([read_session()]))
    variables = base_environment() | {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder / ".config"),
        "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
        "TERM": "dumb",
        "LANG": "C.UTF-8",
        "COLUMNS": "200",
        "PWD": str(folder),
    }
    imported = run_command(
        "sessions", "import", "sessions.json", environment=variables, folder=folder
    )
    assert imported.code == 0
    return variables


class _Typist:
    """A shell at a terminal."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self._screen, terminal = os.openpty()
        command = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(terminal), *words]
        self._process = subprocess.Popen(
            command, env=environment, cwd=environment["PWD"], start_new_session=True
        )
        self._terminal = terminal

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._screen)
        os.close(self._terminal)

    def type(self, text: str, awaited: str) -> str:
        """Type a text and return the output after it, as soon as that contains a text."""
        os.write(self._screen, text.encode())
        seen = b""
        deadline = time.monotonic() + PATIENCE
        while awaited.encode() not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([self._screen], [], [], 0.5)[0]:
                seen += os.read(self._screen, 65536)
        return seen.decode(errors="replace")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completes_the_line(shell: str, environment: dict[str, str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}: apt install {shell}")
    typist = _Typist(START[shell], environment)
    try:
        typist.type(f"PS1='$ '; {PREPARE[shell]}; echo rea''dy\n", "ready")
        for before, after in COMPLETIONS.items():
            typist.type(f"{before}\t", after[len(before) :])
            # The line is a comment now, so that it is not executed.
            typist.type("\x01: \x05; echo do''ne\n", "done")
    finally:
        typist.close()


def test_fish_completes_the_line(environment: dict[str, str]) -> None:
    if shutil.which("fish") is None:
        pytest.skip("needs fish: apt install fish")
    asked = "; ".join(f"complete -C '{before}'" for before in COMPLETIONS)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"_AGENTCTL_COMPLETE=source_fish agentctl | source; {asked}"],
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    assert done.stderr == ""
    offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert offered == [after.split()[-1] for after in COMPLETIONS.values()]


def test_url_before_the_word_selects_the_target(environment: dict[str, str]) -> None:
    """bash divides a URL at its colons; the command must still not work locally."""
    words = ["agentctl", "sessions", "get", "--url", "http", ":", "//127.0.0.1", ":", "1", "d"]
    completed = run_command(
        environment=environment
        | {
            "_AGENTCTL_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        },
        folder=Path(environment["PWD"]),
    )
    assert (completed.stdout, completed.stderr) == ("", "")
