"""The pages "I have a … agent": each command in two terminals, with a scripted model.

AGENTCTL_TEST_PACKAGING installs the package as the pages do, from an index, and prints the seconds.
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import httpx2
import pytest

from tests.docs.shell import Shell
from tests.docs.test_commands import KIND_PAGES, URL, find_mistake
from tests.kit.conditions import wait_for
from tests.kit.documents import ROOT, page
from tests.kit.environments import find_adk
from tests.kit.ports import find_free_port
from tests.kit.scripted_models import Answer, ScriptedModels, models

__all__ = ["models"]


INSTALL = re.compile(r"python3 -m venv|\. env/bin/activate|pip install")
"""Commands that need minutes and an index."""

ANSWERS: list[Answer] = [[("get_weather", {"city": "Paris"})], "It's always sunny in Paris!"]
CONFIG = page(KIND_PAGES[0]).blocks("toml")[0].text
IS_INSTALLED = "AGENTCTL_TEST_PACKAGING" in os.environ


def is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/ready").status_code == 200
    except httpx2.TransportError:
        return False


@pytest.mark.parametrize("name", KIND_PAGES)
def test_agent_of_the_page_answers_as_printed(
    name: str, tmp_path: Path, models: ScriptedModels
) -> None:
    tested = page(name)
    models.begin({"*": ANSWERS})
    url = f"http://127.0.0.1:{find_free_port()}"
    is_adk = name == "docs/guides/adk.md"
    python = find_adk()[0] if is_adk else sys.executable
    variables = {
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "GOOGLE_GEMINI_BASE_URL": models.url,
        "AGENTCTL_SERVER__PORT": url.rpartition(":")[2],
        "AGENTCTL_CONFIG": "/another/agentctl.toml",
        "OPENAI_BASE_URL": f"{models.url}/v1",
    }
    with Shell(tmp_path / "one", variables) as one, Shell(tmp_path / "two", variables) as two:
        folder = tmp_path / "one" / "work"
        (tmp_path / "one" / "home" / "agentctl").symlink_to(ROOT)
        (folder / "weather.py").write_text(tested.blocks("python")[0].text)
        assert two.run(f"cd {folder}")[0] == 0
        shell = one
        began = time.monotonic()
        steps = 0
        try:
            for command in tested.commands():
                if INSTALL.match(command.text) and not IS_INSTALLED:
                    continue
                if command.text == "agentctl serve":
                    start = "agentctl serve 2> server.log & echo $! > server.pid"
                    assert one.run(start)[0] == 0
                    wait_for(lambda: is_ready(url))
                    shell = two
                else:
                    code, output = shell.run(command.text.replace(URL, url))
                    mistake = find_mistake(tested, command, code, output.replace(url, URL))
                    assert mistake is None, mistake
                steps += 1
            print(f"{name}: {steps} commands, {time.monotonic() - began:.0f} s")
        finally:
            ended, output = one.run("kill $(cat server.pid); wait $(cat server.pid)")
        assert ended == 0, output
        assert CONFIG in (folder / "agentctl.toml").read_text()
        assert not is_ready(url)


def test_pages_differ_in_library_and_agent_only() -> None:
    assert {page(name).blocks("toml")[0].text for name in KIND_PAGES} == {CONFIG}
