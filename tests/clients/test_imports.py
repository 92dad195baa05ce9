"""The client without the server: its modules import each other and three libraries."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.process import without_coverage

PROGRAM = """
import importlib, os, pkgutil, sys

PARTS = ("client", "errors", "extensions", "interface", "records", "remote")
LIBRARIES = {"httpx2", "orjson", "typing_extensions"}
OF_THEM = {"anyio", "h11", "httpcore2", "idna", "sniffio", "truststore"}

class Forbid:
    def find_spec(self, name, path=None, target=None):
        top, _, rest = name.partition(".")
        if top == "agentctl":
            if not rest or rest.split(".")[0] in PARTS:
                return None
        elif top in LIBRARIES | OF_THEM | set(sys.stdlib_module_names):
            return None
        elif top.startswith("_sysconfigdata"):  # of the standard library, named by the platform
            return None
        raise ImportError(f"{name} is no part of the client")

sys.meta_path.insert(0, Forbid())
import agentctl
import agentctl.client as client

for part in PARTS:
    module = importlib.import_module(f"agentctl.{part}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"agentctl.{part}."):
        importlib.import_module(found.name)
assert "httpx2" not in sys.modules  # an application that imports the client starts without it
with client.Client("http://127.0.0.1:1", retries=0) as opened:
    try:
        opened.runs.start(agent="a", message="x")
    except agentctl.errors.NotConnected as failure:
        print(failure.cause)
"""


def test_client_imports_no_module_of_the_server() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=without_coverage({}),
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "no server listens at http://127.0.0.1:1\n"), (
        done.stderr
    )
