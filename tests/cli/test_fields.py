"""The option `--fields` of lists and single records, in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctl.cli.show.columns import RUNS
from agentctl.cli.show.output import choose_columns, pick_values
from agentctl.errors import UsageError
from tests.cli.conftest import Agentctl
from tests.cli.local_project import write_config
from tests.kit.tables import every_row

RECORD = {"run_id": "r1", "agent_id": "echo", "status": "ERROR", "error": {"code": "X"}, "extra": 1}


def test_fields_are_columns_or_fields_of_the_document_in_their_order() -> None:
    chosen = choose_columns([RECORD], RUNS, "extra, component,error,extra")
    assert [column.name for column in chosen.tsv] == ["extra", "component", "error"]
    values = pick_values(RECORD, chosen.tsv)
    assert values == {"extra": 1, "component": "echo", "error": {"code": "X"}}
    assert [column.cell(RECORD) for column in chosen.tsv] == ["1", "echo", "X: None"]


@every_row("fields", ["status,nothing", "status,,run_id", ""])
def test_a_wrong_field_is_refused_with_the_allowed_ones(fields: str) -> None:
    with pytest.raises(UsageError) as failure:
        choose_columns([RECORD], RUNS, fields)
    assert "run_id, session_id" in str(failure.value.hint)
    assert "extra" in str(failure.value.hint)


@pytest.fixture
def config(agentctl: Agentctl, tmp_path: Path) -> tuple[str, str]:
    """The option for a configuration whose sessions `s1` and `s2` have a run each."""
    option = ("--config", str(write_config(tmp_path)))
    for session in ("s1", "s2"):
        words = ("--agent", "echo", "--message", "hi", "--session", session)
        started = agentctl("runs", "start", *words, *option)
        assert started.code == 0, started.stderr
    return option


def test_fields_in_every_format(agentctl: Agentctl, config: tuple[str, str]) -> None:
    def output(*words: str) -> str:
        done = agentctl(*words, "--fields", "session_id,component", *config)
        assert done.code == 0, done.stderr
        return done.stdout

    both = ("sessions", "list", "--sort-by", "created_at", "--sort-order", "asc")
    rows = [{"session_id": name, "component": "echo"} for name in ("s1", "s2")]
    assert output(*both) == "session_id\tcomponent\ns1\techo\ns2\techo\n"

    page = json.loads(output(*both, "-o", "json"))
    assert page["data"] == rows
    assert page["meta"]["total_count"] == 2
    assert [json.loads(line) for line in output(*both, "-o", "jsonl").splitlines()] == rows

    table = [["SESSION", "ID", "COMPONENT"], ["s1", "echo"], ["s2", "echo"]]
    for form in ("table", "wide"):
        assert [line.split() for line in output(*both, "-o", form).splitlines()] == table

    assert json.loads(output("sessions", "get", "s1", "-o", "json")) == rows[0]
    shown = output("sessions", "get", "s1", "-o", "table").split()
    assert shown == ["session", "id", "s1", "component", "echo"]
    assert json.loads(output("sessions", "runs", "s1", "-o", "json")) == rows[:1]


@every_row(
    "words, reason",
    [
        ("runs list --fields status,nothing", "--fields has no field 'nothing'"),
        ("runs list --fields status -o name", "no meaning with -o name"),
        ("sessions get s1 --fields user_id -o text", "no meaning with -o text"),
    ],
)
def test_fields_without_a_meaning_are_refused(
    agentctl: Agentctl, config: tuple[str, str], words: str, reason: str
) -> None:
    refused = agentctl(*words.split(), *config)
    assert (refused.code, refused.stdout) == (2, "")
    assert reason in refused.stderr
