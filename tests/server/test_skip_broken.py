"""`serve --skip-broken`: the server starts without the components whose code cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.kit.conditions import PATIENCE
from tests.kit.process import start_server

GOOD = """import threading, time

print("a line of the module")
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()


async def agent(message):
    return f"echo {message}"
"""

CONFIG = """
[authorization]
enabled = false
[[databases]]
id = "main"
url = "sqlite:///a.db"
[[agents]]
id = "good"
object = "good_code:agent"
[[agents]]
id = "broken"
object = "broken_code:agent"
[[agents]]
id = "tooled"
model = "fast"
tools = ["absent_code:tool"]
[[models]]
id = "fast"
provider = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "x"
api_key_env = ""
[[teams]]
id = "group"
model = "fast"
members = ["good", "broken"]
[[teams]]
id = "outer"
model = "fast"
members = ["group"]
[[workflows]]
id = "steps"
steps = [{ name = "one", agent = "good" }, { name = "two", team = "outer" }]
[[workflows]]
id = "kept"
steps = [{ name = "one", agent = "good" }]
"""


APPLICATION = """import agentctl

app = agentctl.create_app("agentctl.toml")


@app.get("/word")
def get_word() -> str:
    return "own"
"""


def write_project(folder: Path) -> None:
    """Write a configuration with good and broken agents."""
    (folder / "agentctl.toml").write_text(CONFIG)
    (folder / "good_code.py").write_text(GOOD)
    (folder / "broken_code.py").write_text("raise RuntimeError('no key')\n")


def test_application_starts_without_broken_components(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "front.py").write_text(APPLICATION)
    options = ("--app", "front:app", "--skip-broken", "--port", "0")

    with start_server(*options, log=tmp_path / "server.log") as server:
        with httpx2.Client(base_url=server.url, timeout=PATIENCE) as client:
            word = client.get("/word").json()
            ready = client.get("/ready")
            info = client.get("/info").json()
            names = [
                sorted(each["id"] for each in client.get(f"/{kind}").json())
                for kind in ("agents", "teams", "workflows")
            ]
            run = client.post("/agents/good/runs", data={"message": "hi", "stream": "false"})
            missing = client.post("/agents/broken/runs", data={"message": "hi"})
        said = server.log_text

    assert word == "own"
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert ready.json()["checks"]["components"] == "degraded"
    assert (info["agent_count"], info["left_out_count"]) == (1, 5)
    assert names == [["good"], [], ["kept"]]
    assert (run.json()["content"], missing.status_code) == ("echo hi", 404)
    assert "LEFT OUT: agent broken: The agent broken cannot use the object" in said
    assert "broken_code.py, line 1: RuntimeError: no key" in said
    assert "LEFT OUT: agent tooled: " in said
    assert "LEFT OUT: team outer: it needs the team group, which is left out" in said
    assert "LEFT OUT: workflow steps: it needs the team outer, which is left out" in said
    assert said.count("agent broken is left out: ") == 1
