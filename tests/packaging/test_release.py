"""The files of a release: the same bytes for a commit, and complete without the clone."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
from pathlib import Path

import pytest

from tests.clients.service import serving
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment, start_server
from tests.packaging.programs import PACKAGING, needs_packaging_mode

ROOT = PACKAGING.parent
BUILD_TOOLS = ROOT / ".dist/bin/python"


def build(folder: Path, *options: str, python: str = sys.executable, umask: str = "022") -> Path:
    """Build a release of HEAD into a new folder."""
    command = shlex.join([python, str(PACKAGING / "build.py"), "--out", str(folder), *options])
    done = subprocess.run(
        ["sh", "-c", f"umask {umask}; {command}"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return folder


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release without the bill of materials."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the history of the project: git clone")
    return build(tmp_path_factory.mktemp("release") / "dist", "--no-bom", "--no-guide")


def read_folder(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def install(wheel: Path, folder: Path, *, packages: str | None) -> Path:
    """Install a wheel into a new environment, and return the folder of its programs.

    Args:
        packages: a folder in which the dependencies are installed already; None installs them.
    """
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    pip += ["--python", str(python), "install"]
    if packages is None:
        command = [*pip, "--require-hashes", "-r", str(wheel.parent / "requirements.lock")]
        subprocess.run(command, check=True)
    else:
        site = sysconfig.get_path("purelib", vars={"base": str(folder)})
        Path(site, "dependencies.pth").write_text(f"{packages}\n")
    subprocess.run([*pip, "--no-deps", "--no-compile", str(wheel)], check=True)
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel, and with the packages of the tests."""
    wheel = next(release.glob("agentctl-*.whl"))
    folder = tmp_path_factory.mktemp("installed") / "environment"
    return install(wheel, folder, packages=sysconfig.get_path("purelib"))


def run(
    programs: Path, home: Path, *arguments: str, token: str = ""
) -> subprocess.CompletedProcess[bytes]:
    environment = {"PATH": os.defpath, "HOME": str(home), "USER": "you", "AGENTCTL_TOKEN": token}
    command = [str(programs / "agentctl"), *arguments]
    return subprocess.run(command, cwd=home, env=environment, capture_output=True, check=False)


@needs_packaging_mode
def test_two_builds_are_the_same_bytes(release: Path, tmp_path: Path) -> None:
    again = build(tmp_path / "again", "--no-bom", "--no-guide", umask="077")
    assert read_folder(again) == read_folder(release)
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=release, check=True)


def test_build_replaces_no_file(release: Path) -> None:
    command = [sys.executable, str(PACKAGING / "build.py"), "--out", str(release)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 1
    assert done.stderr.decode().startswith(f"error: {release} is not empty")


def test_source_archive_has_the_files_of_the_commit(release: Path) -> None:
    with tarfile.open(next(release.glob("*.tar.gz"))) as content:
        entries = content.getmembers()
    names = {entry.name.partition("/")[2] for entry in entries}
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-tree", "-r", "--name-only", "HEAD"],
        check=True,
        capture_output=True,
    )
    assert names == {"PKG-INFO", *listed.stdout.decode().splitlines()}
    assert {(entry.uid, entry.gid, entry.uname) for entry in entries} == {(0, 0, "")}
    assert len({entry.mtime for entry in entries}) == 1


def test_package_of_the_typescript_client_can_be_imported(release: Path, tmp_path: Path) -> None:
    (archive,) = release.glob("agentctl-client-*.tgz")
    with tarfile.open(archive) as content:
        content.extractall(tmp_path / "node_modules", filter="data")
    package = tmp_path / "node_modules" / "agentctl-client"
    (tmp_path / "node_modules" / "package").rename(package)
    described = json.loads((package / "package.json").read_text())
    assert archive.name == f"agentctl-client-{described['version']}.tgz"
    assert next(release.glob("*.whl")).name.split("-")[1] == described["version"]
    names = {file.name for file in package.iterdir()}
    assert names == {"package.json", "LICENSE", "agentctl.js", "agentctl.d.ts", "api.d.ts"}
    assert f"  {archive.name}\n" in (release / "SHA256SUMS").read_text()
    if (node := shutil.which("node")) is None:
        pytest.skip("needs node: apt install nodejs")
    (tmp_path / "program.mjs").write_text(
        'import { Client } from "agentctl-client";'
        'console.log(typeof new Client("http://127.0.0.1").agents.stream);'
    )
    done = subprocess.run([node, "program.mjs"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout == b"function\n"


def serve_and_look_around(programs: Path, home: Path) -> None:
    """Start the demo of an installation and use what the wheel has besides modules."""
    env = base_environment() | {"HOME": str(home), "PATH": os.defpath}
    demo = home / "demo"
    options = ("--demo", "--port", "0", "--demo-dir", str(demo))
    program = [str(programs / "agentctl")]
    with start_server(*options, log=home / "log", environment=env, program=program) as server:
        for path in ("/console", "/docs", "/openapi.json", "/health"):
            with urllib.request.urlopen(server.url + path) as response:
                assert response.status == 200, path
        mint = ("token", "mint", "--sub", "me", "--scope", "user")
        minted = run(programs, home, *mint, "--config", str(demo / "agentctl.toml"))
        token = minted.stdout.decode().strip()
        start = ("runs", "start", "--agent", "echo", "-m", "hi", "--session", "s1")
        started = run(programs, home, *start, "--url", server.url, token=token)
        assert started.stdout == b"hi\n", started.stderr
    manual = programs.parent / "share/man/man1/agentctl.1"
    assert ".TH AGENTCTL 1" in manual.read_text()
    completion = run(programs, home, "--show-completion", "bash")
    assert b"complete " in completion.stdout, completion.stderr


def test_installed_wheel_serves_the_demo_without_the_clone(programs: Path, tmp_path: Path) -> None:
    where = [str(programs / "python"), "-P", "-c", "import agentctl; print(agentctl.__file__)"]
    imported = subprocess.run(where, check=True, capture_output=True, cwd=tmp_path)
    assert imported.stdout.decode().startswith(str(programs.parent))
    serve_and_look_around(programs, tmp_path)


@needs_packaging_mode
def test_locked_installation_serves_the_demo(release: Path, tmp_path: Path) -> None:
    """A clean environment from the package index, in which hints install missing packages."""
    programs = install(
        next(release.glob("agentctl-*.whl")), tmp_path / "environment", packages=None
    )
    subprocess.run([str(programs / "python"), "-m", "ensurepip"], check=True)
    refused = run(programs, tmp_path, "serve", "--demo", "--reload", "--port", "0")
    assert b"watchfiles" in refused.stderr
    follow_hint(refused.stderr.decode().partition("hint: ")[2], programs)
    serve_and_look_around(programs, tmp_path)
    with start_server(
        *("--demo", "--reload", "--port", "0"),
        log=tmp_path / "reload.log",
        environment={"PATH": os.defpath, "HOME": str(tmp_path)},
        program=[str(programs / "agentctl")],
    ) as server:
        server.wait_for("reload: for development")


def follow_hint(hint: str, programs: Path) -> None:
    """Execute the command of a hint, which installs into the environment of the program."""
    assert "agentctl" not in hint.replace(str(programs), ""), "an index has another such package"
    subprocess.run(shlex.split(hint), check=True)


TALK = """
import sys
from agentctl.client import Client

with Client(sys.argv[1], token=sys.argv[2]) as client:
    print("".join(event.text for event in client.runs.stream(agent="echo", message="Hello")))
"""


@needs_packaging_mode
def test_client_is_installed_without_the_server(
    release: Path, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    """A clean environment from the package index, with the client alone."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    python = str(folder / "bin/python")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    wheel = str(next(release.glob("agentctl_client-*.whl")))
    subprocess.run([*pip, "install", "--quiet", wheel], check=True)
    listed = subprocess.run([*pip, "list", "--format=json"], check=True, capture_output=True)
    names = {package["name"] for package in json.loads(listed.stdout)}
    assert names >= {"agentctl-client", "httpx2", "orjson", "typing_extensions"}
    assert not names & {"agentctl", "fastapi", "uvicorn", "typer", "pydantic", "apsw", "rich"}
    (home := tmp_path / "home").mkdir()
    with serving(home, model_endpoint) as service:
        talk = [python, "-P", "-c", TALK, service.url, service.token()]
        done = subprocess.run(talk, check=True, capture_output=True, cwd=tmp_path)
    assert done.stdout == b"Hello\n"


@needs_packaging_mode
@pytest.mark.parametrize("installer", ["uv tool", "pipx"])
def test_hints_work_for_installers_of_programs(
    release: Path, tmp_path: Path, installer: str
) -> None:
    tools = ROOT / ".peers/installers/bin"
    if not tools.exists():
        pytest.skip("needs pipx and uv: make .peers/installers/.installed")
    path = f"{tmp_path}/bin:{tools}:{os.environ['PATH']}"
    places = {name: str(tmp_path / name) for name in ("PIPX_HOME", "UV_TOOL_DIR")}
    places |= {name: str(tmp_path / "bin") for name in ("PIPX_BIN_DIR", "UV_TOOL_BIN_DIR")}
    env = os.environ | places | {"PATH": path, "HOME": str(tmp_path), "NO_COLOR": "1"}
    wheel = str(next(release.glob("agentctl-*.whl")))
    install = [*installer.split(), "install", "--python", sys.executable, wheel]
    subprocess.run(install, env=env, check=True, capture_output=True)
    refused = ["agentctl", "serve", "--demo", "--reload", "--port", "0"]
    done = subprocess.run(refused, cwd=tmp_path, env=env, capture_output=True, check=False)
    hint = done.stderr.decode().partition("hint: ")[2]
    assert "watchfiles" in hint, done.stderr
    subprocess.run(shlex.split(hint), env=env, check=True, capture_output=True)
    with start_server(
        *refused[2:], log=tmp_path / "log", environment=env, program=["agentctl"]
    ) as server:
        server.wait_for("reload: for development")


@needs_packaging_mode
def test_source_archive_builds_the_same_wheel(release: Path, tmp_path: Path) -> None:
    with tarfile.open(next(release.glob("*.tar.gz"))) as content:
        epoch = str(int(content.getmembers()[0].mtime))
        content.extractall(tmp_path, filter="data")
    tree = next(tmp_path.iterdir())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "."]
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(["sh", "-c", f"umask 022; {shlex.join(command)}"], cwd=tree, env=env, check=True)
    wheel = next(release.glob("agentctl-*.whl"))
    assert (tree / wheel.name).read_bytes() == wheel.read_bytes()


@needs_packaging_mode
def test_bill_of_materials_names_every_package(tmp_path: Path) -> None:
    if not BUILD_TOOLS.exists():
        pytest.skip("needs the tools that build a release: make .dist/.installed")
    built = build(tmp_path / "a", python=str(BUILD_TOOLS))
    assert read_folder(build(tmp_path / "b", python=str(BUILD_TOOLS))) == read_folder(built)
    (file,) = built.glob("*.cdx.json")
    validate = (
        "import sys; from cyclonedx.schema import SchemaVersion as V;"
        "from cyclonedx.validation.json import JsonStrictValidator as S;"
        "sys.exit(S(V.V1_6).validate_str(open(sys.argv[1]).read()))"
    )
    subprocess.run([str(BUILD_TOOLS), "-c", validate, str(file)], check=True)
    bill = json.loads(file.read_text())
    urls = {component["purl"] for component in bill["components"]}
    lock = (built / "requirements.lock").read_text().splitlines()
    pinned = {line.split()[0].replace("==", "@") for line in lock if line[:1].isalnum()}
    assert urls >= {f"pkg:pypi/{package}" for package in pinned}
    assert any(url.startswith("pkg:npm/preact@") for url in urls)
    assert bill["dependencies"][0]["dependsOn"] == sorted(urls)
