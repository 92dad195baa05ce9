"""Fetch PgBouncer from Debian 13 for a system whose own package is older: no root, no installation.

`python -m tests.poolers.fetch` unpacks the package and its libraries, with those of the C library,
below `.peers/pgbouncer`, and writes a script that starts the program with them. It changes nothing
of the system, and does nothing if a PgBouncer of the minimum version is there.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.kit.conditions import PATIENCE
from tests.poolers.pgbouncer import FOLDER, find_pgbouncer, read_version

PACKAGES = (
    "pgbouncer", "libc6", "libevent-2.1-7t64", "libssl3t64", "libcares2", "libpam0g",
    "libsystemd0", "libaudit1", "libcap-ng0", "libcap2", "libzstd1", "zlib1g",
)  # fmt: skip

SOURCE = "deb [signed-by={key}] http://deb.debian.org/debian trixie main\n"

KEY = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

SCRIPT = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")/root
libraries=$(dirname "$(find "$here" -name 'libc.so.6' | head -n 1)")
exec "$libraries/{loader}" --library-path "$libraries" "$here/usr/sbin/pgbouncer" "$@"
"""


def main() -> int:
    """Fetch the program. Return 0 also if it cannot be had: its tests are skipped then."""
    if find_pgbouncer():
        return 0
    try:
        fetch()
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(FOLDER, ignore_errors=True)
        print(f"PgBouncer 1.21 or later cannot be fetched ({error}); its tests are skipped")
    return 0


def fetch() -> None:
    """Download and unpack the packages.

    Raises:
        OSError: there is no apt-get, no dpkg-deb, or no key of Debian.
        subprocess.SubprocessError: a package cannot be had.
    """
    if not KEY.exists():
        raise FileNotFoundError(f"no {KEY}")
    state = FOLDER / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text(SOURCE.format(key=KEY))
    options = [
        f"Dir::Etc::sourcelist={state}/sources.list",
        "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State={state}",
        f"Dir::State::status={state}/status",
        f"Dir::Cache={state}/cache",
        "APT::Sandbox::User=root",
        "Acquire::Retries=0",
        "Acquire::http::Timeout=10",
    ]
    arguments = [part for option in options for part in ("-o", option)]
    _run("apt-get", "-qq", *arguments, "update")
    _run("apt-get", "-qq", *arguments, "download", *PACKAGES)
    for package in FOLDER.glob("*.deb"):
        _run("dpkg-deb", "-x", str(package), str(FOLDER / "root"))
        package.unlink()
    shutil.rmtree(state)
    loader = next((FOLDER / "root").rglob("ld-linux*.so.*")).name
    program = FOLDER / "pgbouncer"
    program.write_text(SCRIPT.format(loader=loader))
    program.chmod(0o755)
    if read_version(str(program)) == (0,):
        raise OSError("the program does not start on this machine")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, cwd=FOLDER, timeout=PATIENCE, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
