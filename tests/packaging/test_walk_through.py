"""The page "Deployment" as a new administrator follows it: its commands, on a new machine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.identity.provider import needs_provider, run_identity_provider
from tests.identity.test_console import log_in
from tests.kit.browser import CHROMIUM, expect, open_browser, open_context
from tests.kit.certificates import create_certificate
from tests.kit.conditions import PATIENCE
from tests.kit.documents import page
from tests.packaging.machine import Machine
from tests.packaging.programs import needs_packaging_mode
from tests.packaging.test_release import build

pytestmark = [needs_packaging_mode]

NAME = "agents.example.com"
ISSUER = "https://id.example.org"
PROVIDER_PORT = 9000
CLIENTS = (
    {
        "client_id": "app",
        "client_secret": "secret",
        "redirect_uris": ["https://app.example.com/signed-in"],
    },
    {
        "client_id": "reports",
        "client_secret": "secret",
        "grant_types": ["client_credentials"],
        "redirect_uris": [],
        "response_types": [],
    },
    {
        "client_id": "agentctl-console",
        "token_endpoint_auth_method": "none",
        "redirect_uris": [f"https://{NAME}/{page}" for page in ("console", "chat")],
    },
)
AGENTCTL = "/opt/agentctl/bin/agentctl"
ONLINE = ("Install", "TLS")
"""The sections whose commands download packages."""


def list_commands(section: str) -> list[str]:
    """Return the blocks of commands of a section of the page."""
    found = re.search(
        rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)",
        page("docs/deployment.md").text,
        re.MULTILINE | re.DOTALL,
    )
    assert found is not None, section
    return re.findall(r"^```text\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the files of a release in /root/release, and certificates of a new authority.

    The commands of the page are executed in its order, so each test needs those before it.
    """
    folder = tmp_path_factory.mktemp("machine")
    machine = Machine(folder)
    try:
        build(machine.root / "root/release", "--no-bom", "--no-guide")
        with (machine.root / "etc/hosts").open("a") as hosts:
            hosts.write(f"127.0.0.1 {NAME} id.example.org\n")
        place = machine.root / "etc/ssl/agentctl"
        place.mkdir()
        certificate = create_certificate(folder, NAME, "id.example.org")
        for name in ("fullchain.pem", "key.pem"):
            shutil.copyfile(certificate, place / name)
        trusted = machine.root / "usr/local/share/ca-certificates"
        trusted.mkdir(exist_ok=True)
        _, _, text = certificate.read_text().partition("-----BEGIN CERTIFICATE")
        (trusted / "local.crt").write_text(f"-----BEGIN CERTIFICATE{text}")
        machine.run("update-ca-certificates")
        yield machine
    finally:
        machine.close()


def follow(machine: Machine, section: str) -> str:
    """Execute the commands of a section and return their output."""
    online = section in ONLINE
    if online:
        machine.run("apt-get -qq update", online=True)
    return "".join(machine.run(block, online=online) for block in list_commands(section))


def test_release_is_installed_on_a_new_machine(machine: Machine) -> None:
    output = follow(machine, "Install")
    assert re.search(r"^agentctl \d", output, re.MULTILINE), output


def test_own_agent_is_configured(machine: Machine) -> None:
    assert "is valid: 1 agent" in follow(machine, "Configuration")
    # The private key is not readable by the server.
    assert machine.run("stat -c %a%U /etc/agentctl/keys/signing.pem") == "600root\n"


def test_systemd_starts_the_server(machine: Machine) -> None:
    follow(machine, "systemd")
    state = machine.run("systemctl show -p ActiveState,StatusText,User agentctl.service")
    assert "ActiveState=active" in state
    assert "User=agentctl" in state
    # A connection waits for a server that starts again.
    started = time.monotonic()
    machine.run("systemctl restart --no-block agentctl; curl -sSf http://127.0.0.1:7777/health")
    print(f"restart to the first answer: {time.monotonic() - started:.2f} s")


def test_first_run_is_made_behind_tls(machine: Machine) -> None:
    follow(machine, "TLS")
    machine.run("systemctl reload-or-restart nginx")
    output = follow(machine, "First run")
    assert "ada, message 1: hello" in output, output


@pytest.fixture(scope="module")
def provider(machine: Machine) -> Iterator[None]:
    """An identity provider at `ISSUER`, with TLS."""
    (machine.root / "etc/nginx/conf.d/id.conf").write_text(
        "server { listen 443 ssl; server_name id.example.org;\n"
        "ssl_certificate /etc/ssl/agentctl/fullchain.pem;\n"
        "ssl_certificate_key /etc/ssl/agentctl/key.pem;\n"
        f"location / {{ proxy_pass http://127.0.0.1:{PROVIDER_PORT};\n"
        "proxy_set_header Host $host; proxy_set_header X-Forwarded-Proto https; } }\n"
    )
    rights = {"scopes": ["agents:read", "agents:assistant:run", "sessions:read"]}
    started = run_identity_provider(
        CLIENTS,
        users={"grace": rights, "reports": rights},
        audience=f"https://{NAME}",
        issuer=ISSUER,
        port=PROVIDER_PORT,
        prefix=machine.enter_network(),
    )
    with started:
        machine.run("systemctl reload nginx")
        yield


@needs_provider
@pytest.mark.usefixtures("provider")
def test_token_of_an_identity_provider_starts_a_run(machine: Machine) -> None:
    (table,) = re.findall(
        r"^```toml\n(\[authorization\]\n.*?)^```",
        page("docs/deployment.md").text,
        re.MULTILINE | re.DOTALL,
    )
    file = machine.root / "etc/agentctl/agentctl.toml"
    text = re.sub(
        r"^\[authorization\]\n.*?(?=^\[)", f"{table}\n", file.read_text(), flags=re.M | re.S
    )
    file.write_text(text)
    assert "no problems" in follow(machine, "Users of an identity provider")
    shutil.copyfile(Path(__file__).with_name("sign_in.py"), machine.root / "root/sign_in.py")
    token = machine.run(f"/opt/agentctl/bin/python /root/sign_in.py {ISSUER} grace").strip()
    command = f"{AGENTCTL} runs start --agent assistant -m hello --url https://{NAME}"
    assert "grace, message 1: hello" in machine.run(command, variables={"AGENTCTL_TOKEN": token})
    # A program gets its token with its own credentials.
    fields = f"grant_type=client_credentials&resource=https://{NAME}"
    answer = json.loads(machine.run(f"curl -sSf -u reports:secret -d '{fields}' {ISSUER}/token"))
    variables = {"AGENTCTL_TOKEN": answer["access_token"]}
    assert "reports, message 1: hello" in machine.run(command, variables=variables)
    refused = f"{AGENTCTL} sessions delete x --yes --url https://{NAME}"
    assert "sessions:delete" in machine.run(refused, variables=variables, check=False)


@pytest.fixture(scope="module")
def browser(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser of this machine in the network of the new one."""
    if CHROMIUM is None:
        pytest.skip("needs chromium: apt install chromium")
    program = tmp_path_factory.mktemp("browser") / "chromium"
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*machine.enter_network(), CHROMIUM])} "$@"\n')
    program.chmod(0o755)
    hosts = ", ".join(f"MAP {name} 127.0.0.1" for name in (NAME, "id.example.org"))
    options = (f"--host-resolver-rules={hosts}", "--no-proxy-server", "--ignore-certificate-errors")
    with open_browser(program, *options) as opened:
        yield opened


@needs_provider
@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("place", "button"), [("console#/agents/agents/assistant", "Start"), ("chat", "Send")]
)
def test_person_signs_in_at_the_provider(browser: Browser, place: str, button: str) -> None:
    shown = open_context(browser).new_page()
    shown.goto(f"https://{NAME}/{place}")
    log_in(shown, "grace", "id.example.org")
    shown.fill("[data-message]", "hello again")
    shown.click(f"button:text-is('{button}')")
    expect(shown.locator(".answer")).to_contain_text("grace, message 1: hello again")
    shown.context.close()


@needs_provider
@pytest.mark.usefixtures("provider")
def test_backup_and_checklist_find_no_problem(machine: Machine) -> None:
    follow(machine, "Backup")
    machine.run("systemctl start agentctl-backup@main.service")
    output = follow(machine, "Checklist")
    assert "newest backup of the database main" in output
    assert output.endswith("no problems\n"), output


def test_rating_of_the_running_unit_is_that_of_the_page(machine: Machine) -> None:
    output = machine.run("systemd-analyze security --no-pager agentctl.service")
    rated = re.search(r"exposure level for agentctl.service: ([\d.]+)", output)
    assert rated is not None, output
    assert f"rates them {rated[1]}" in page("docs/deployment.md").text


def test_two_instances_restart_without_a_pause(machine: Machine) -> None:
    asking = (
        "while [ ! -e /run/enough ]; do"
        " curl -sS -o /dev/null http://127.0.0.1:7777/health || echo refused; done"
    )
    command = [*machine.enter(), "sh", "-c", asking]
    # The commands of the page restart the socket once; from then on no connection is refused.
    follow(machine, "Two instances")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as asked:
        for instance in (1, 2, 1, 2):
            machine.run(f"systemctl restart agentctl@{instance}")
        machine.run("touch /run/enough")
        assert asked.communicate(timeout=PATIENCE)[0] == b""
    states = machine.run("systemctl is-active agentctl@1 agentctl@2 agentctl.socket")
    assert states.split() == ["active"] * 3
