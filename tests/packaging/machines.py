"""Run README's first steps on the systems that people have: `make test-machines`.

Each system is installed in a temporary folder, with its own Python: Debian 12 and
13, and Ubuntu's current release. Needs root, the Debian package mmdebstrap, and for Ubuntu the
package ubuntu-keyring. With `--check`, `make check` is run there, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.packaging.machine import create_debian

ROOT = Path(__file__).parents[2]
KEYRING = Path("/usr/share/keyrings/ubuntu-archive-keyring.gpg")
PACKAGES = "ca-certificates,make,python3,python3-venv"
RUN_SECONDS = 3_600.0


class System(NamedTuple):
    """A release of a distribution.

    Attributes:
        suite: its name in the archive.
        mirror: the archive, if it is not that of this machine.
    """

    suite: str
    mirror: str | None = None


SYSTEMS = {
    "debian-12": System("bookworm"),
    "debian-13": System("trixie"),
    "ubuntu": System(
        "resolute",
        f"deb [signed-by={KEYRING}] http://archive.ubuntu.com/ubuntu resolute main universe",
    ),
}

STEPS = """
set -eu
mount -t proc proc /proc
cd /root/agentctl
python3 --version
make demo >/root/demo 2>&1 &
until grep -q 'agentctl console' /root/demo; do
    kill -0 $! 2>&- || { cat /root/demo; exit 1; }
    sleep 0.5
done
sed -n '/^export/p; /^agentctl agents/p; /^agentctl runs/p' /root/demo >/root/steps
test "$(wc -l </root/steps)" -eq 4
. /root/steps
"""
"""`make demo`, and what it prints to paste into another terminal."""


def run_steps(system: System, *, check: bool) -> int:
    """Run the steps on a new system and return their exit code; print their output."""
    if system.mirror and not KEYRING.exists():
        pytest.skip("needs the keys of Ubuntu: apt install ubuntu-keyring")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        create_debian(root, PACKAGES, system.suite, system.mirror)
        (root / "root/agentctl").mkdir()
        files = subprocess.run(
            ["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "x", "-C", root / "root/agentctl"], input=files.stdout, check=True)
        for name in ("etc/resolv.conf", "etc/hosts"):
            (root / name).write_bytes(Path("/", name).read_bytes())
        steps = STEPS + ("make check\n" if check else "")
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--root={root}"]
        environment = {"HOME": "/root", "LANG": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        done = subprocess.run(
            [*enter, "sh", "-c", steps], env=environment, timeout=RUN_SECONDS, check=False
        )
        return done.returncode


def main() -> int:
    """Run the steps on each system, print the result of each, return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SYSTEM", help=", ".join(SYSTEMS))
    parser.add_argument("--check", action="store_true", help="run `make check`, too")
    given = parser.parse_args()
    results = {}
    for name in given.names or SYSTEMS:
        begun = time.monotonic()
        try:
            code = run_steps(SYSTEMS[name], check=given.check)
            seconds = time.monotonic() - begun
            results[name] = f"failed: {code}" if code else f"passed in {seconds:.0f} s"
        except pytest.skip.Exception as missing:
            results[name] = f"not tested: {missing}"
    for name, result in results.items():
        print(f"{name:12} {result}")
    return int(any(result.startswith("failed") for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
