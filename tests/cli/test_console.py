"""`agentctl console` opens a link that signs in once, or prints a token, and only the token."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from tests.kit.command import run_command
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.threaded_server import serve_in_thread


def deploy(folder: Path, extra: str = "") -> Deployment:
    return create_deployment(folder, "http://127.0.0.1:9/v1", extra=extra)


def test_token_is_printed_and_the_page_is_named(tmp_path: Path) -> None:
    deployment = deploy(tmp_path)
    config = ("--config", str(deployment.path))
    done = run_command(
        "console", "--sub", "me", "--no-open", *config, environment={}, folder=tmp_path
    )
    assert done.code == 0
    principal = deployment.principal(done.stdout.strip())
    assert principal.subject == "me"
    assert not principal.admin
    assert "sessions:read" in principal.scopes
    assert "/console" in done.stderr
    assert done.stdout.strip() not in done.stderr


def test_browser_gets_no_token_in_the_url(tmp_path: Path) -> None:
    deployment = deploy(tmp_path)
    config = ("--config", str(deployment.path), "--url", "https://agents.example.com/")
    with patch("webbrowser.open", return_value=False) as opened:
        done = run_command("console", "--sub", "me", *config, environment={}, folder=tmp_path)
    opened.assert_called_once_with("https://agents.example.com/console")
    assert "open the page yourself" in done.stderr


def test_admin_scope_needs_a_confirmation(tmp_path: Path) -> None:
    config = ("--config", str(deploy(tmp_path).path), "--no-open")
    scope = ("console", "--scope", "agent_os:admin")
    assert run_command(*scope, *config, environment={}, folder=tmp_path).code == 2
    assert run_command(*scope, "--yes", *config, environment={}, folder=tmp_path).code == 0


def test_disabled_console_is_reported(tmp_path: Path) -> None:
    config = ("--config", str(deploy(tmp_path, "[console]\nenabled = false\n").path))
    done = run_command("console", *config, environment={}, folder=tmp_path)
    assert done.code == 2
    assert done.stdout == ""
    assert "the console is disabled" in done.stderr


def test_browser_gets_a_link_that_signs_in_once(tmp_path: Path) -> None:
    deployment = deploy(tmp_path)
    with serve_in_thread(deployment) as host:
        config = ("--config", str(deployment.path), "--url", host.url)
        with patch("webbrowser.open", return_value=True) as opened:
            done = run_command("console", "--sub", "me", *config, environment={}, folder=tmp_path)
        ((link,), _) = opened.call_args
        page, _, code = link.partition("#link=")
        body = {"code": code}
        key = {"Agentctl-Console-Key": "k" * 43}
        token = host.client.post("/console/sign-in/link", json=body, headers=key).json()["token"]
    assert (done.code, done.stdout) == (0, "")
    assert page == f"{host.url}/console"
    assert code not in done.stderr
    assert deployment.principal(token).subject == "me"


def test_link_is_named_if_no_browser_can_be_started(tmp_path: Path) -> None:
    deployment = deploy(tmp_path)
    with serve_in_thread(deployment) as host:
        config = ("--config", str(deployment.path), "--url", host.url, "--chat")
        with patch("webbrowser.open", return_value=False) as opened:
            done = run_command("console", "--sub", "me", *config, environment={}, folder=tmp_path)
    assert opened.call_args.args[0].startswith(f"{host.url}/chat#link=")
    assert f"this link signs in once, within a minute: {host.url}/chat#link=" in done.stderr
    assert done.stdout == ""


def test_token_is_not_sent_over_plain_http_to_another_machine(tmp_path: Path) -> None:
    deployment = deploy(tmp_path)
    config = ("--config", str(deployment.path), "--url", "http://agents.example.com")
    with patch("webbrowser.open", return_value=True) as opened:
        done = run_command("console", "--sub", "me", *config, environment={}, folder=tmp_path)
    opened.assert_called_once_with("http://agents.example.com/console")
    assert "A token is not sent over plain http to another machine" in done.stderr
    assert deployment.principal(done.stdout.strip()).subject == "me"


def test_disabled_chat_is_reported(tmp_path: Path) -> None:
    config = ("--config", str(deploy(tmp_path, "[console]\nchat = false\n").path), "--chat")
    done = run_command("console", *config, environment={}, folder=tmp_path)
    assert (done.code, done.stdout) == (2, "")
    assert "the chat is disabled" in done.stderr
