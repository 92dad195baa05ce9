"""The check of the prose, which `make lint` executes: what it finds, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.prose import offences


@pytest.mark.parametrize(
    ("prose", "words"),
    [
        ("Whoever holds the token may read.", ["Whoever"]),
        ("What is left of a run.", ["What", "What is"]),
        ("The client is told\nof the end.", ["told"]),
        ("The row behind the\nlast one.", ["behind"]),
        ("A task of its\n    own.", ["of its own"]),
        ("Return True if the token holds.", ["token holds"]),
        ("Run the server behind a reverse proxy.", []),
        ("A slow reader falls behind.", []),
        ("The lock that a process holds.", []),
        ("Return the status, or `told` if the run has ended.", []),
        ("A retry may make a request twice.", []),
        ("What is a component?", []),
    ],
)
def test_the_words_that_are_found(prose: str, words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(f'"""{prose}"""\n')
    assert [offence.words for offence in offences(file, tmp_path)] == words


def test_the_texts_of_a_module_that_are_read(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "# it is told\n"
        "# to whoever asks\n"
        "NAME = 'told'\n"
        "TEXT = f'{NAME} was told'\n"
        "option(help='Who it is')\n"
        "flag('--all', 'Who it is')\n"
        "def read():\n"
        "    '''Read `whoever`.\n\n"
        "    Beside it.\n"
        "    '''\n"
    )
    found = sorted((offence.line, offence.words) for offence in offences(file, tmp_path))
    assert found == [
        (1, "told"),
        (2, "whoever"),
        (4, "told"),
        (5, "Who"),
        (6, "Who"),
        (10, "Beside"),
    ]
