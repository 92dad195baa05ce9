"""The container file and the compose file: what they say, and a container that serves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import yaml

from tests.cli.demo import serving
from tests.kit.conditions import PATIENCE
from tests.kit.ports import find_free_port, wait_for_port
from tests.kit.postgres_server import run_postgres_server
from tests.kit.process import base_environment
from tests.packaging.machine import create_debian
from tests.packaging.programs import PACKAGING, needs_packaging_mode, require_program
from tests.packaging.test_release import ROOT, build
from tests.packaging.test_walk_through import list_commands

FOLDER = PACKAGING / "container"
CHECK = ROOT / ".dist/bin/check-jsonschema"
PINNED = re.compile(r"docker\.io/library/[a-z]+:[\w.-]+@sha256:[0-9a-f]{64}")
BUILD, RUN, COMPOSE = range(3)
"""The blocks of commands in the section "Containers" of the page."""

PODMAN = """#!/bin/sh
# A private view of cgroups, and bounds that need no privilege: containers start in containers, too.
if [ -z "$PRIVATE" ]; then PRIVATE=1 exec unshare --mount "$0" "$@"; fi
[ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ] ||
    {{ umount -R -l /sys/fs/cgroup; mount -t cgroup2 none /sys/fs/cgroup; }}
command=$1
shift
[ "$command" != run ] || set -- --network host --cgroups=disabled \\
    --ulimit nofile={limit}:{limit} --ulimit nproc=4096:4096 $OPTIONS "$@"
exec {podman} "$command" "$@"
"""

BUILDAH = """#!/bin/sh
command=$1
shift
exec {buildah} "$command" --isolation chroot --build-arg BASE={base} "$@"
"""


def read_compose() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return services


def read_instruction(name: str) -> str:
    """Return the last instruction of a name in the container file."""
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", "")
    return re.findall(rf"^{name} (.*)$", text, re.MULTILINE)[-1].strip()


def test_images_are_pinned_by_digest() -> None:
    base = re.search(r"^ARG BASE=(.*)$", (FOLDER / "Containerfile").read_text(), re.MULTILINE)
    assert base is not None
    images = [service.get("image", "") for service in read_compose().values()]
    others = [image for image in images if image and not image.startswith("agentctl:")]
    provider = (FOLDER / "sign-in" / "Containerfile").read_text()
    for image in (base[1], *re.findall(r"^FROM (.*)$", provider, re.MULTILINE), *others):
        assert PINNED.fullmatch(image), image


def test_container_has_no_rights() -> None:
    assert read_instruction("USER") == "10001:10001"
    assert read_instruction("VOLUME") == "/data"
    service = read_compose()["agentctl"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_trial_of_the_sign_in_is_optional_and_on_this_machine() -> None:
    trial = {name: each for name, each in read_compose().items() if "profiles" in each}
    assert {name: each["profiles"] for name, each in trial.items()} == {
        "sign-in": ["sign-in"], "identity": ["sign-in"]
    }  # fmt: skip
    server = trial["sign-in"]
    provider = trial["identity"]
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert "ports" not in provider
    assert provider["network_mode"] == "service:sign-in"
    for service in trial.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
    (mounted,) = server["volumes"]
    assert (FOLDER / mounted.partition(":")[0]).is_file()
    assert (FOLDER / provider["build"]["context"] / provider["build"]["dockerfile"]).is_file()


@needs_packaging_mode
def test_compose_file_has_the_schema_of_the_specification() -> None:
    if not CHECK.exists():
        pytest.skip("needs check-jsonschema: make .dist/.installed")
    command = [str(CHECK), "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()


@needs_packaging_mode
def test_health_check_reports_a_server_that_is_gone(tmp_path: Path) -> None:
    command = json.loads(read_instruction("HEALTHCHECK").partition("CMD ")[2])
    with serving(tmp_path / "demo") as demo:
        port = demo.url.rpartition(":")[2]
        env = base_environment() | {"AGENTCTL_SERVER__PORT": port}
        assert subprocess.run(command, env=env, check=False).returncode == 0
    done = subprocess.run(command, env=env, check=False, capture_output=True)
    assert done.returncode == 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The files of a release, its folder `packaging`, and the image; programs are in `bin`."""
    podman = require_program("podman", "podman")
    buildah = require_program("buildah", "buildah")
    folder = tmp_path_factory.mktemp("container") / "release"
    create_debian(folder.parent / "base.tar", "python3,python3-venv,ca-certificates")
    base = f"localhost/agentctl-test-{os.getpid()}"
    subprocess.run(
        [podman, "import", "--quiet", str(folder.parent / "base.tar"), base],
        check=True,
        capture_output=True,
    )
    build(folder, "--no-bom", "--no-guide")
    shutil.copytree(PACKAGING, folder / "packaging")
    programs = folder / "bin"
    programs.mkdir()
    limit = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    texts = {
        "podman": PODMAN.format(podman=podman, limit=limit),
        "buildah": BUILDAH.format(buildah=buildah, base=base),
    }
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    try:
        follow(folder, BUILD)
        yield folder
    finally:
        for image in ("agentctl:0.2.1", base):
            subprocess.run([podman, "rmi", "--force", image], check=False, capture_output=True)


def follow(folder: Path, block: int, **variables: str) -> str:
    """Execute one block of commands of the page."""
    return run(folder, list_commands("Containers")[block], **variables)


def run(folder: Path, script: str, **variables: str) -> str:
    env = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        ["sh", "-euc", script],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    output = done.stdout.decode()
    assert done.returncode == 0, f"{script}\n{output}"
    return output


def wait_until_healthy(port: int, folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=PATIENCE):
                return
        except OSError:
            assert time.monotonic() < deadline, run(folder, "podman logs agentctl")
            time.sleep(0.1)


def inspect(folder: Path) -> dict[str, Any]:
    """Return what Podman knows about the container `agentctl`."""
    found = json.loads(run(folder, "podman inspect --type container agentctl"))
    return dict(found[0])


def check_confinement(container: dict[str, Any]) -> None:
    """Check the user, the rights and the file system of the process of a container."""
    assert container["Config"]["User"] == "10001:10001"
    process = Path(f"/proc/{container['State']['Pid']}")
    assert process.stat().st_uid == 10001
    status = (process / "status").read_text()
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    root = process / "root"
    assert os.statvfs(root).f_flag & os.ST_RDONLY
    assert (root / "data/agentctl.db").stat().st_uid == 10001


MINT = """
podman run --rm --volume ./conf:/etc/agentctl:ro agentctl:0.2.1 \\
    token mint --sub ada --scope user 2>/dev/null
"""


@needs_packaging_mode
def test_container_serves_an_own_agent(folder: Path) -> None:
    port = find_free_port()
    started, _, checked = list_commands("Containers")[RUN].partition("podman healthcheck")
    options = f"--env AGENTCTL_SERVER__PORT={port} --env AGENTCTL_METRICS__LISTEN="
    try:
        run(folder, started, OPTIONS=options)
        wait_until_healthy(port, folder)
        run(folder, f"podman healthcheck{checked}")
        check_confinement(inspect(folder))

        token = run(folder, MINT).strip()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/agents/assistant/runs",
            data=b"message=hello&session_id=s&stream=false",
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as response:
            assert json.load(response)["content"] == "ada, message 1: hello"

        run(folder, "podman stop --time 60 agentctl")
        assert inspect(folder)["State"]["ExitCode"] == 0
    finally:
        run(folder, "podman rm --force --volumes agentctl; podman volume rm --force agentctl")


def list_options(service: dict[str, Any], port: int) -> list[str]:
    """Return the options of `podman run` that do the same as a service of the compose file."""
    variables = service["environment"] | {
        "AGENTCTL_SERVER__PORT": str(port),
        "AGENTCTL_METRICS__LISTEN": "",
    }
    return [
        *(f"--env {name}={value}" for name, value in variables.items()),
        *(f"--volume {volume}" for volume in service["volumes"]),
        *(f"--volume ./{name}:/run/secrets/{name}:ro" for name in service["secrets"]),
        *(f"--tmpfs {path}" for path in service["tmpfs"]),
        *(f"--cap-drop {name}" for name in service["cap_drop"]),
        *(f"--security-opt {name}" for name in service["security_opt"]),
        "--read-only --add-host postgres:127.0.0.1 --name agentctl --detach",
    ]


def replace_addresses(place: Path, ports: dict[str, int]) -> None:
    """Let the files of the example name processes of this machine."""
    postgres = f"postgres:{ports['postgres']}"
    replace_in(place / "conf/agentctl.toml", "postgres:5432", postgres)
    replace_in(place / "pgpass", "postgres:5432", postgres)
    site = f"https://localhost:{ports['https']} {{\n\ttls internal"
    replace_in(place / "Caddyfile", "agentctl:7777", f"127.0.0.1:{ports['agentctl']}")
    replace_in(place / "Caddyfile", "agents.example.com {", site)


@needs_packaging_mode
def test_services_of_the_compose_file_work_together(folder: Path) -> None:
    """The container with PostgreSQL and Caddy, which are processes of this machine here.

    Options, variables, mounts and commands are those of the compose file.
    """
    caddy = require_program("caddy", "caddy")
    run(folder, "[ -d conf ] || install -d -o 10001 -g 10001 conf")
    follow(folder, COMPOSE)
    place = folder / "packaging/container"
    for file in ("pgpass", "password"):
        assert stat.S_IMODE((place / file).stat().st_mode) == 0o600

    service = read_compose()["agentctl"]
    ports = {name: find_free_port() for name in ("postgres", "agentctl", "https")}
    replace_addresses(place, ports)
    settings = ["listen_addresses='127.0.0.1'", f"port={ports['postgres']}"]
    with run_postgres_server(settings=settings) as postgres:
        asyncio.run(create_user(postgres.url, ports["postgres"], (place / "password").read_text()))
        options = " ".join(list_options(service, ports["agentctl"]))
        try:
            run(folder, f"cd {place}; podman run {options} {service['image']}")
            wait_until_healthy(ports["agentctl"], folder)
            ask_through_caddy(caddy, place, ports["https"])
        finally:
            run(folder, "podman rm --force --volumes agentctl; podman volume rm --force data")


def replace_in(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


async def create_user(url: str, port: int, password: str) -> None:
    """Create what the image of PostgreSQL creates, with a password for connections by TCP."""
    connection = await asyncpg.connect(url, port=port)
    try:
        (file,) = await connection.fetchrow("SHOW hba_file")
        path = Path(file)
        path.write_text(f"host all all 127.0.0.1/32 scram-sha-256\n{path.read_text()}")
        await connection.execute(f"CREATE USER agentctl PASSWORD '{password}'")
        await connection.execute("CREATE DATABASE agentctl OWNER agentctl")
        await connection.execute("SELECT pg_reload_conf()")
    finally:
        await connection.close()


def ask_through_caddy(caddy: str, place: Path, port: int) -> None:
    """Request `/health` with TLS, with a certificate of the authority of Caddy."""
    head = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (place / "Caddyfile").write_text(head + (place / "Caddyfile").read_text())
    command = [caddy, "run", "--config", str(place / "Caddyfile"), "--adapter", "caddyfile"]
    env = base_environment() | {"HOME": str(place), "XDG_DATA_HOME": str(place / "certificates")}
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=place, env=env, stdout=log, stderr=log)
    try:
        wait_for_port(port, process, (place / "log").read_text)
        authority = place / "certificates/caddy/pki/authorities/local/root.crt"
        curl = ["curl", "-sSf", "--retry", "20", "--retry-all-errors", "--retry-delay", "1"]
        url = f"https://localhost:{port}/health"
        done = subprocess.run(
            [*curl, "--cacert", str(authority), url], capture_output=True, check=False
        )
        assert done.stdout == b'{"status":"ok"}', done.stderr.decode()
    finally:
        process.terminate()
        process.wait(PATIENCE)
