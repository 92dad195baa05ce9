"""Commands that install an extra from where this package came."""

from __future__ import annotations

import json
import shlex
import sys
from importlib import metadata
from pathlib import Path

import pytest

from agentctl.config import extras
from agentctl.config.extras import build_extra_command
from agentctl.config.providers import PROVIDERS
from tests.kit.documents import ROOT

REQUIREMENTS = [
    "httptools>=0.8",
    'mcp<3,>=2.3; extra == "mcp"',
    'pydantic-ai-slim[openai]<3,>=2.68; extra == "pydantic-ai"',
    'watchfiles<2,>=1.1 ; extra == "reload"',
]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put metadata of the package first on the path, and return their folder."""
    folder = tmp_path / "site" / "agentctl-9.dist-info"
    folder.mkdir(parents=True)
    lines = ["Metadata-Version: 2.4", "Name: agentctl", "Version: 9"]
    lines += [f"Requires-Dist: {requirement}" for requirement in REQUIREMENTS]
    (folder / "METADATA").write_text("\n".join([*lines, "", ""]))
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.setattr(sys, "executable", "/opt/my env/bin/python")
    return folder


def split(extra: str) -> list[str]:
    python, *arguments = shlex.split(build_extra_command(extra))
    assert (python, arguments[:3]) == ("/opt/my env/bin/python", ["-m", "pip", "install"])
    return arguments[3:]


@pytest.mark.parametrize("editable", [True, False])
def test_extra_of_a_folder_is_installed_from_it(installed: Path, editable: bool) -> None:
    clone = installed.parents[1] / "a clone"
    clone.mkdir()
    source = {"url": clone.as_uri(), "dir_info": {"editable": True} if editable else {}}
    (installed / "direct_url.json").write_text(json.dumps(source))
    assert split("mcp") == ["-e"] * editable + [f"{clone}[mcp]"]
    clone.rmdir()
    assert split("mcp") == ["mcp<3,>=2.3"]


@pytest.mark.parametrize("source", [None, {"url": "file:///a.whl", "archive_info": {}}])
def test_extra_of_a_wheel_is_its_requirements(
    installed: Path, source: dict[str, object] | None
) -> None:
    if source is not None:
        (installed / "direct_url.json").write_text(json.dumps(source))
    assert split("mcp") == ["mcp<3,>=2.3"]
    assert split("reload") == ["watchfiles<2,>=1.1"]
    assert split("pydantic-ai") == ["pydantic-ai-slim[openai]<3,>=2.68"]


def test_clone_without_installation_is_installed(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_PACKAGE", "agentctl-absent")
    assert split("mcp") == ["-e", f"{ROOT}[mcp]"]


def test_environment_without_pip_uses_uv(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda _: None)
    command = shlex.split(build_extra_command("mcp"))
    assert command[:5] == ["uv", "pip", "install", "--python", "/opt/my env/bin/python"]


def test_container_is_built_again(
    installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    (tmp_path / extras.IMAGE_MARK).touch()
    command = shlex.split(build_extra_command("pydantic-ai"))
    assert command[:4] == ["buildah", "build", "--format", "docker"]
    assert "EXTRAS=pydantic-ai-slim[openai]<3,>=2.68" in command
    text = (ROOT / command[command.index("-f") + 1]).read_text()
    assert f"touch /opt/agentctl/{extras.IMAGE_MARK}" in text
    assert "ARG EXTRAS" in text


def test_every_extra_that_a_hint_names_exists() -> None:
    named = {traits.extra for traits in PROVIDERS.values() if traits.extra}
    named |= {"adk", "agno", "keyring", "langgraph", "mcp", "metrics", "openai-agents"}
    named |= {"otel", "prices", "pydantic-ai", "reload", "s3"}
    provided = metadata.metadata("agentctl").get_all("Provides-Extra") or []
    assert named == set(provided) - {"test"}
