"""Completion of ids and names, as a shell requests it."""

from __future__ import annotations

import itertools

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo

_numbers = itertools.count()


def complete(agentctl: Agentctl, line: str, shell: str = "bash", **variables: str) -> list[str]:
    """Return what a shell offers for the last word of a command line."""
    env = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
        "_TYPER_COMPLETE_ARGS": line,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_AGENTCTL_COMPLETE": f"complete_{shell}",
    }
    done = agentctl(env=env | variables)
    assert done.stderr == ""
    return done.lines


def test_ids_of_a_server_and_of_its_database_are_completed(agentctl: Agentctl, demo: Demo) -> None:
    session = f"completed-{next(_numbers)}"
    run_id = demo.run(session, "hello")
    for door in (f"--config {demo.config}", f"--url {demo.url}"):
        token = {"AGENTCTL_TOKEN": demo.token}
        assert complete(agentctl, f"agentctl sessions get {door} {session}", **token) == [session]
        assert run_id in complete(agentctl, f"agentctl runs get {door} {run_id[:13]}", **token)
        assert complete(agentctl, f"agentctl teams get {door} ", **token) == ["duo"]
        started = complete(agentctl, f"agentctl runs start {door} --agent e", **token)
        assert started == ["echo"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scopes_and_contexts_are_completed(agentctl: Agentctl, shell: str) -> None:
    assert agentctl("context", "add", "prod", "--url", "http://127.0.0.1:1").code == 0
    assert "prod" in "\n".join(complete(agentctl, "agentctl context use p", shell))
    scopes = "\n".join(complete(agentctl, "agentctl token mint --scope agents", shell))
    assert "run" in scopes


def test_completion_never_fails(agentctl: Agentctl) -> None:
    for door in ("--url http://127.0.0.1:1", "--config nowhere.toml", "--context nowhere"):
        assert "".join(complete(agentctl, f"agentctl runs get {door} ")) == ""
