"""`agentctl memories`."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.kit.tables import every_row

_numbers = itertools.count()


@pytest.fixture
def user() -> str:
    """A user without memories."""
    return f"user-{next(_numbers)}"


def _add(on_demo: Agentctl, user: str, text: str, *options: str) -> str:
    added = on_demo("memories", "add", text, "--user", user, *options, "-o", "name")
    assert added.code == 0, added.stderr
    assert f"added memory {added.lines[0]}" in added.stderr
    return added.lines[0]


def test_a_memory_is_added_edited_and_deleted(on_demo: Agentctl, user: str) -> None:
    memory_id = _add(on_demo, user, "Likes tea", "--topic", "food", "--topic", "drinks")
    record = json.loads(on_demo("memories", "get", memory_id, "-o", "json").raw)
    assert (record["memory"], record["topics"], record["user_id"]) == (
        "Likes tea",
        ["food", "drinks"],
        user,
    )
    assert on_demo("memories", "list", "--topics", "--user", user).lines == ["drinks", "food"]
    on_demo("memories", "edit", memory_id, "--text", "Likes coffee")
    on_demo("memories", "edit", memory_id, "--no-topics")
    found = on_demo("memories", "list", "--user", user, "-o", "jsonl")
    assert [(each["memory"], each["topics"]) for each in map(json.loads, found.lines)] == [
        ("Likes coffee", [])
    ]
    assert on_demo("memories", "delete", memory_id, "--yes").code == 0
    missing = on_demo("memories", "get", memory_id)
    assert (missing.code, missing.stdout) == (5, "")
    assert "memory not found" in missing.stderr


def test_list_searches_words_and_every_topic(on_demo: Agentctl, user: str) -> None:
    first = _add(on_demo, user, "Takes the NIGHT train to Rome")
    second = _add(on_demo, user, "Trains for a marathon", "--topic", "sport", "--topic", "fun")

    def search(*options: str) -> list[str]:
        return on_demo("memories", "list", "--user", user, *options, "-o", "name").lines

    assert search("--search", "night train") == [first]
    assert search("--search", "train", "--topic", "sport") == [second]
    assert search("--topic", "sport", "--topic", "food") == []


def test_text_is_read_from_stdin(agentctl: Agentctl, demo: Demo, user: str) -> None:
    added = agentctl(
        *("memories", "add", "-", "--user", user, "-o", "json", "--config", str(demo.config)),
        input=b"Likes \xc3\xa9clairs\n",
    )
    assert json.loads(added.raw)["memory"] == "Likes éclairs"


@every_row(
    "words, said",
    [
        ("delete", "give a MEMORY_ID, or --all and --user"),
        ("delete --all", "--all and --user need each other"),
        ("delete --user ada", "--all and --user need each other"),
        ("delete 019a9f2e --all --user ada", "give MEMORY_ID, or --all and --user"),
        ("list --topics --search tea", "--topics has no other filter than --user"),
    ],
)
def test_wrong_combinations_are_refused(
    agentctl: Agentctl, demo: Demo, words: str, said: str
) -> None:
    ended = agentctl("memories", *words.split(), "--config", str(demo.config))
    assert (ended.code, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {said}")


def test_delete_all_deletes_the_memories_of_one_user(on_demo: Agentctl, user: str) -> None:
    other = f"{user}-other"
    for text in ("one", "two", "three"):
        _add(on_demo, user, text)
    kept = _add(on_demo, other, "one")
    refused = on_demo("memories", "delete", "--all", "--user", user)
    assert refused.code == 2
    assert "--yes" in refused.stderr
    assert len(on_demo("memories", "list", "--user", user, "-o", "name").lines) == 3
    deleted = on_demo("memories", "delete", "--all", "--user", user, "--yes")
    assert "deleted 3 memories" in deleted.stderr
    assert on_demo("memories", "list", "--user", user, "-o", "name").lines == []
    assert on_demo("memories", "list", "--user", other, "-o", "name").lines == [kept]
    audit = on_demo(
        "audit", "list", "--operation", "delete_memories", "-o", "jsonl", "--limit", "1"
    )
    assert json.loads(audit.lines[0])["resource"] == f"user:{user}"


def test_an_export_can_be_imported_twice(on_demo: Agentctl, user: str, tmp_path: Path) -> None:
    for text in ("one", "two, with\na line feed", "three 🫖"):
        _add(on_demo, user, text, "--topic", "numbers")
    file = tmp_path / "memories.jsonl"
    assert on_demo("memories", "export", "--user", user, "--to-file", str(file)).code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert on_demo("memories", "export", "--user", user).raw == file.read_bytes()
    assert on_demo("memories", "export", "--to-file", str(file)).code == 6
    copy = f"{user}-copy"
    first = on_demo("memories", "import", str(file), "--user", copy)
    assert "imported 3 memories, skipped 0" in first.stderr
    again = on_demo("memories", "import", str(file), "--user", copy)
    assert "imported 0 memories, skipped 3" in again.stderr
    exported = [
        [json.loads(line) for line in on_demo("memories", "export", "--user", name).lines]
        for name in (user, copy)
    ]
    assert [[(each["memory"], each["topics"]) for each in records] for records in exported] == [
        [(text, ["numbers"]) for text in ("one", "two, with\na line feed", "three 🫖")]
    ] * 2


@every_row("line", ["{", "[]", '{"memory": 1}', '{"memory": "x", "topics": "y"}', '{"topics": []}'])
def test_a_file_with_a_wrong_line_imports_nothing(
    on_demo: Agentctl, user: str, tmp_path: Path, line: str
) -> None:
    file = tmp_path / "memories.jsonl"
    file.write_text('{"memory": "fine"}\n' + line + "\n")
    refused = on_demo("memories", "import", str(file), "--user", user)
    assert refused.code == 2
    assert "line 2 is not a memory" in refused.stderr
    assert on_demo("memories", "list", "--user", user, "-o", "name").lines == []


@every_row(
    "arguments, message",
    [
        (["edit", "x"], "nothing to change"),
        (["edit", "x", "--topic", "a", "--no-topics"], "cannot be used together"),
        (["edit", "x", "--text", "y"], "memory not found"),
        (["delete", "x", "--yes"], "memory not found"),
        (["add", " "], "memory must be"),
        (["add", "x", "--topic", "a,b"], "without a comma"),
        (["list", "--search", "!"], "search_content must"),
        (["import", "/nowhere"], "cannot be read"),
    ],
)
def test_wrong_input_is_explained(on_demo: Agentctl, arguments: list[str], message: str) -> None:
    refused = on_demo("memories", *arguments)
    assert refused.code in (2, 5)
    assert message in refused.stderr
    assert refused.stdout == ""


def test_a_terminal_shows_a_table(terminal: Terminal, demo: Demo) -> None:
    seen = terminal("memories", "list", "--user", "nobody", "--config", str(demo.config))
    assert seen.code == 0
    assert "no memories" in seen.screen
