"""The check of the prose, which `make lint` executes: what it finds, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.prose import offences


@pytest.mark.parametrize(
    ("prose", "words"),
    [
        ("Whoever holds the token may read.", ["Whoever"]),
        ("What is left of a run.", ["What"]),
        ("The run is started\nanew.", ["anew"]),
        ("A copy for the\n    sake of speed.", ["for the sake of"]),
        ("A powerful way to utilize models.", ["powerful", "utilize"]),
        ("The caller is told what the run costs.", []),
        ("A slow reader falls behind the writer, whatever it does.", []),
        ("Return the status, or `anew` if the run is repeated.", []),
        ("The value given for a key of its own is not looked at.", []),
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
        "# it begins anew\n"
        "# for whoever asks\n"
        "NAME = 'anew'\n"
        "TEXT = f'{NAME} and anew'\n"
        "option(help='Who it is')\n"
        "flag('--all', 'Who it is')\n"
        "def read():\n"
        "    '''Read `whoever`.\n\n"
        "    Leverage it.\n"
        "    '''\n"
    )
    found = sorted((offence.line, offence.words) for offence in offences(file, tmp_path))
    assert found == [
        (1, "anew"),
        (2, "whoever"),
        (4, "anew"),
        (5, "Who"),
        (6, "Who"),
        (10, "Leverage"),
    ]
