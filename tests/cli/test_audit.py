"""`agentctl audit`."""

from __future__ import annotations

import getpass
import itertools
import json
import os
import signal
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo
from tests.cli.local_project import in_database, running_command, wait_for_line, write_config
from tests.cli.proxy import proxied
from tests.kit.conditions import PATIENCE

_numbers = itertools.count()

HEADING = "seq\tat\tprincipal\tvia\toperation\tresource\toutcome\tstatus\treason\trequest_id\tcount"


@pytest.fixture
def session(demo: Demo) -> str:
    """A session with one run, which was started over HTTP."""
    name = f"audited-{os.getpid()}-{next(_numbers)}"
    demo.run(name, "hello")
    return name


def _listed(run: Agentctl, *args: str) -> list[dict[str, Any]]:
    ended = run("audit", "list", "-o", "jsonl", *args)
    assert ended.code == 0, ended.stderr
    return [json.loads(line) for line in ended.lines]


def test_list_shows_the_last_entries_with_caller(on_demo: Agentctl, session: str) -> None:
    assert on_demo("sessions", "rename", session, "Rome").code == 0
    assert on_demo("sessions", "rename", "nowhere", "Rome").code == 5
    failed, renamed = _listed(on_demo, "--limit", "2", "--operation", "rename_session")
    assert (failed["outcome"], failed["status"], failed["reason"]) == ("failed", 404, "NOT_FOUND")
    assert (renamed["resource"], renamed["outcome"]) == (f"session:{session}", "allowed")
    assert (renamed["principal"], renamed["via"]) == (f"local:{getpass.getuser()}", "local")
    started = _listed(on_demo, "--operation", "create_agent_run", "--principal", "ada")
    assert any(f"session:{session}," in row["resource"] for row in started)


def test_the_tsv_heading_is_fixed(on_demo: Agentctl, session: str) -> None:
    heading, row = on_demo("audit", "list", "--limit", "1").lines
    assert heading == HEADING
    assert len(row.split("\t")) == len(HEADING.split("\t"))
    (seq,) = on_demo("audit", "list", "--limit", "1", "-o", "name").lines
    assert int(seq) >= int(row.split("\t")[0])
    page = json.loads(on_demo("audit", "list", "--limit", "1", "-o", "json").raw)
    assert page.keys() == {"data", "meta"}


def test_list_continues_at_the_cursor(on_demo: Agentctl, session: str) -> None:
    for name in ("a", "b", "c"):
        on_demo("sessions", "rename", session, name)
    first = on_demo("audit", "list", "--operation", "rename_session", "--limit", "2", "-o", "name")
    note = first.stderr.splitlines()[-1]
    assert note.startswith("more entries exist; next page: --cursor ")
    cursor = ("--cursor", note.rpartition(" ")[2])
    second = on_demo(
        *("audit", "list", "--operation", "rename_session", "--limit", "1", "-o", "name", *cursor)
    )
    numbers = [int(line) for line in first.lines + second.lines]
    assert numbers == sorted(set(numbers), reverse=True)
    assert len(numbers) == 3


def test_list_filters_and_rejects_wrong_filters(on_demo: Agentctl, session: str) -> None:
    assert _listed(on_demo, "--since", "1h")
    assert _listed(on_demo, "--principal", "nobody at all") == []
    assert _listed(on_demo, "--since", "0s", "--principal", "nobody") == []
    empty = on_demo("audit", "list", "--principal", "nobody", "-o", "table")
    assert (empty.code, empty.stdout, empty.stderr) == (0, "", "no results\n")
    for wrong in (
        ("--outcome", "lost"),
        ("--since", "yesterday"),
        ("--since", "12"),
        ("--limit", "0"),
        ("--cursor", "x"),
    ):
        assert on_demo("audit", "list", *wrong).code == 2, wrong


def test_a_table_omits_empty_columns(terminal: Terminal, demo: Demo, session: str) -> None:
    here = ("--outcome", "allowed", "--config", str(demo.config))
    seen = terminal("audit", "list", "--operation", "create_agent_run", "--limit", "3", *here)
    head, row, *_ = seen.screen.splitlines()
    assert head.split()[:4] == ["AT", "PRINCIPAL", "OUTCOME", "OPERATION"]
    assert "REASON" not in head
    assert "allowed" in row


def test_export_writes_all_entries_newest_first(
    on_demo: Agentctl, session: str, tmp_path: Path
) -> None:
    for name in "abc":
        on_demo("sessions", "rename", session, name)
    only = ("--operation", "rename_session")
    exported = on_demo("audit", "export", *only)
    rows = [json.loads(line) for line in exported.lines]
    assert [row["seq"] for row in rows] == sorted((row["seq"] for row in rows), reverse=True)
    assert rows[:3] == _listed(on_demo, *only, "--limit", "3")
    assert exported.stderr == ""
    dashed = on_demo("audit", "export", *only, "--to-file", "-")
    assert (dashed.code, dashed.raw) == (0, exported.raw)
    file = tmp_path / "audit.jsonl"
    written = on_demo("audit", "export", *only, "--to-file", str(file))
    assert (written.code, written.stdout) == (0, "")
    assert written.stderr.splitlines()[-1] == f"wrote {len(rows)} entries to {file}"
    assert file.read_bytes() == exported.raw
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = on_demo("audit", "export", *only, "--to-file", str(file))
    assert (again.code, file.read_bytes()) == (6, exported.raw)


def test_export_reads_more_than_a_page(agentctl: Agentctl, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    here = ("--config", str(config))
    assert agentctl("runs", "start", "--agent", "echo", "-m", "x", *here).code == 0
    in_database(config, _MANY)
    exported = agentctl("audit", "export", *here)
    numbers = [json.loads(line)["seq"] for line in exported.lines]
    assert numbers == list(range(len(numbers), 0, -1))
    assert len(numbers) == 1_235


_MANY = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1234)
    INSERT INTO audit_log (at, principal, via, operation, outcome)
    SELECT 1700000000000000 + i, 'ann', 'http', 'rename_session', 'allowed' FROM n
"""


def test_a_failed_export_leaves_no_file(agentctl: Agentctl, tmp_path: Path) -> None:
    config = write_config(tmp_path)
    here = ("--config", str(config))
    file = tmp_path / "audit.jsonl"
    assert agentctl("audit", "export", *here, "--to-file", str(file)).code == 7
    assert not file.exists()
    nowhere = agentctl("audit", "export", *here, "--to-file", str(tmp_path / "no" / "file"))
    assert nowhere.code == 2
    assert "cannot be written" in nowhere.stderr
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "target")
    assert agentctl("audit", "export", *here, "--to-file", str(dangling)).code == 6
    assert not (tmp_path / "target").exists()


def test_reading_needs_the_audit_scope(demo: Demo, agentctl: Agentctl) -> None:
    minted = ("token", "mint", "--config", str(demo.config), "--sub", "eve", "--scope")
    there = ("--url", demo.url)
    for scope, code in (("audit:read", 0), ("sessions:read", 4)):
        token = {"AGENTCTL_TOKEN": agentctl(*minted, scope).stdout.strip()}
        for command in (("list",), ("export",)):
            ended = agentctl("audit", *command, *there, env=token)
            assert ended.code == code, ended.stderr
            assert ("audit:read" in ended.stderr) == (code == 4)
    token = {"AGENTCTL_TOKEN": agentctl(*minted, "sessions:read").stdout.strip()}
    assert agentctl("audit", "tail", *there, env=token).code == 4


def test_tail_shows_new_entries_until_ctrl_c(
    demo: Demo, environment: dict[str, str], agentctl: Agentctl, session: str, tmp_path: Path
) -> None:
    here = ("--config", str(demo.config))
    for name in "ab":
        agentctl("sessions", "rename", session, name, *here)
    log = tmp_path / "tail.log"
    tail = ("audit", "tail", "-n", "2", "--operation", "rename_session", "-o", "jsonl", *here)
    with running_command(*tail, environment=environment, log=log) as process:
        assert process.stdout is not None
        before = [json.loads(process.stdout.readline()) for _ in range(2)]
        for name in "cd":
            demo.run(session, name)  # of another operation
            agentctl("sessions", "rename", session, name, *here)
        after = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert process.stdout.read() == b""
    assert log.read_text() == ""
    numbers = [row["seq"] for row in before + after]
    assert numbers == sorted(numbers)
    assert {row["operation"] for row in before + after} == {"rename_session"}
    assert {row["resource"] for row in before + after} == {f"session:{session}"}


def test_tail_with_no_entries_writes_the_tsv_heading(
    environment: dict[str, str], agentctl: Agentctl, tmp_path: Path
) -> None:
    here = ("--config", str(write_config(tmp_path)))
    start = ("runs", "start", "--agent", "echo", "-m", "x", "--session", "s1", *here)
    assert agentctl(*start).code == 0
    tail = ("audit", "tail", "-n", "0", *here)
    with running_command(*tail, environment=environment, log=tmp_path / "log") as command:
        assert command.stdout.readline().decode() == f"{HEADING}\n"
        assert agentctl(*start).code == 0
        row = command.stdout.readline().decode()
        assert "create_agent_run\tagent:echo,session:s1,run:" in row
        command.terminate()
        assert command.wait(PATIENCE) == 128 + signal.SIGTERM


def test_tail_continues_when_the_server_is_back(
    demo: Demo, environment: dict[str, str], session: str, tmp_path: Path
) -> None:
    log = tmp_path / "tail.log"
    variables = environment | {"AGENTCTL_TOKEN": demo.token}
    with ExitStack() as stack:
        with proxied(demo.url) as proxy:
            tail = ("audit", "tail", "-n", "1", "-o", "jsonl", "--url", proxy.url)
            command = stack.enter_context(running_command(*tail, environment=variables, log=log))
            before = json.loads(command.stdout.readline())
        wait_for_line(log, "retrying in")
        demo.run(session, "x")
        with proxied(demo.url, port=proxy.port):
            after = json.loads(command.stdout.readline())
            command.terminate()
            assert command.wait(PATIENCE) == 128 + signal.SIGTERM
    assert before["operation"] == after["operation"] == "create_agent_run"
    assert before["seq"] < after["seq"]
