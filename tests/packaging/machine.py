"""A machine with Debian and systemd, in namespaces of this one, for the commands of a page.

It has its own file system, processes and network: ports 80 and 443 are free, and nothing
outside of its folder changes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.kit.conditions import PATIENCE
from tests.packaging.programs import require_program

RELEASE = "trixie"
_PACKAGES = "systemd,systemd-sysv,dbus,ca-certificates,curl,iproute2"

_ENTER = """set -e
mkdir -p "$0/cgroup"
mount -t cgroup2 none "$0/cgroup"
mkdir "$0/cgroup/$1"
echo $$ > "$0/cgroup/$1/cgroup.procs"
exec unshare --mount --pid --fork --cgroup --net --uts --ipc --propagation private \\
    sh -c "$2" "$0/root"
"""
"""Arguments: the folder, the name of the cgroup, the script `_BOOT`."""

_BOOT = """set -e
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for device in null zero full random urandom tty; do
    touch dev/$device
    mount --bind /dev/$device dev/$device
done
mkdir dev/shm dev/pts
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mkdir -p old
pivot_root . old
umount -l /old
hostname machine
exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \\
    /lib/systemd/systemd --log-target=console --show-status=0
"""

_REMOVE = """mount -t cgroup2 none "$0/cgroup" &&
find "$0/cgroup/$1" -depth -type d -exec rmdir {} + """


class Machine:
    """A running machine.

    Args:
        folder: an empty folder for its file system.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._folder = folder
        self._name = f"agentctl-{os.getpid()}-{time.monotonic_ns()}"
        create_debian(self.root, _PACKAGES)
        (self.root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
        (self.root / "etc/hosts").write_text("127.0.0.1 localhost machine\n")
        shutil.copyfile("/etc/resolv.conf", self.root / "etc/resolv.conf")
        self._log = (folder / "console").open("wb")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _ENTER, str(folder), self._name, _BOOT],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self._wait_until_booted()

    def _wait_until_booted(self) -> None:
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        deadline = time.monotonic() + PATIENCE
        self.process_id = 0
        while True:
            assert self._process.poll() is None, self.console
            self.process_id = int((children.read_text().split() or ["0"])[0])
            if self.process_id and self._is_running():
                break
            assert time.monotonic() < deadline, self.console
            time.sleep(0.2)
        self.run("ip link set lo up")

    def _is_running(self) -> bool:
        """Ask systemd; one unit for the kernel fails in a container, which is `degraded`."""
        command = [*self.enter(), "systemctl", "is-system-running"]
        done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE)
        return done.stdout.strip() in (b"running", b"degraded")

    @property
    def console(self) -> str:
        """The output of systemd."""
        return (self._folder / "console").read_text(errors="replace")

    def enter(self, *, online: bool = False) -> list[str]:
        """Return the start of a command line that runs a program in the machine.

        Args:
            online: with the network of this machine, to install packages.
        """
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        namespaces += [] if online else ["--net"]
        return ["nsenter", "--target", str(self.process_id), *namespaces, "--"]

    def enter_network(self) -> list[str]:
        """Return the start of a command line that runs a program of this machine in its network."""
        return ["nsenter", "--target", str(self.process_id), "--net", "--"]

    def run(
        self,
        script: str,
        *,
        online: bool = False,
        check: bool = True,
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run a script as root and return its output, stdout and stderr together."""
        environment = {
            "HOME": "/root",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "DEBIAN_FRONTEND": "noninteractive",
            "LANG": "C.UTF-8",
            **(variables or {}),
        }
        done = subprocess.run(
            [*self.enter(online=online), "sh", "-euc", f"cd /root/release 2>&- || cd\n{script}"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
            check=False,
        )
        output = done.stdout.decode(errors="replace")
        assert not check or done.returncode == 0, f"{script}\n{output}"
        return output

    def close(self) -> None:
        """End all processes of the machine."""
        if self.process_id:
            os.kill(self.process_id, 9)
        self._process.kill()
        self._process.wait()
        self._log.close()
        remove = ["unshare", "--mount", "sh", "-c", _REMOVE, str(self._folder), self._name]
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(remove, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, "the cgroup of the machine remains"
            time.sleep(0.2)


def create_debian(
    root: Path, packages: str, suite: str = RELEASE, mirror: str | None = None
) -> None:
    """Write the file system of a minimal Debian into a new folder, or into a file `*.tar`.

    The settings of this machine for the package index, and its certificate authorities, apply there
    too. Skips the test without the Debian package mmdebstrap, or without the right to use
    namespaces.

    Args:
        suite: the release.
        mirror: a line of sources.list; None for the archive of Debian.
    """
    program = require_program("mmdebstrap", "mmdebstrap")
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if os.geteuid() != 0 or allowed.returncode:
        pytest.skip("needs root and namespaces: run as root")
    command = [program, "--quiet", "--variant=minbase", f"--include={packages}"]
    authorities = "/usr/local/share/ca-certificates"
    for file in (Path("/etc/pip.conf"), *Path(authorities).glob("*.crt")):
        if file.exists():
            command += [f"--customize-hook=copy-in {file} {file.parent}"]
    command += ['--customize-hook=chroot "$1" update-ca-certificates']
    done = subprocess.run(
        [*command, suite, str(root), *([mirror] if mirror else [])],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
