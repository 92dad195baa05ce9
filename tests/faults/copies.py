"""A temporary copy of the repository, in which modules are changed and tests run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

__all__ = ["REPOSITORY", "Copy", "run_git"]

REPOSITORY = Path(__file__).parents[2]


class Copy:
    """A copy of the repository with an environment that imports the package from it.

    The copy has the uncommitted changes of the repository, too.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        self._time = 0
        run_git("clone", "--quiet", "--shared", str(REPOSITORY), str(self.root))
        for name in run_git("ls-files", "-z").split("\0"):
            # Files that are deleted, but not committed.
            if name and not (REPOSITORY / name).exists():
                (self.root / name).unlink(missing_ok=True)
        for name in run_git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
            source = REPOSITORY / name
            if name and source.exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.root / name)
        self._create_environment()

    def _create_environment(self) -> None:
        """Create an environment with the packages of this one, after the tree of the copy."""
        folder = self.root / ".venv"
        venv.create(folder, symlinks=True)
        packages = {"base": str(folder), "platbase": str(folder)}
        pth = Path(sysconfig.get_path("purelib", vars=packages)) / "copy.pth"
        pth.write_text(
            f"{self.root}\nimport site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        )
        for script in Path(sys.prefix, "bin").iterdir():
            with contextlib.suppress(UnicodeDecodeError):
                text = script.read_text()
                if text.startswith(f"#!{sys.prefix}/bin/"):
                    target = folder / "bin" / script.name
                    target.write_text(text.replace(f"#!{sys.prefix}/", f"#!{folder}/", 1))
                    target.chmod(0o755)
        if (REPOSITORY / ".peers").exists():
            (self.root / ".peers").symlink_to(REPOSITORY / ".peers")

    def write(self, module: Path, source: str) -> None:
        """Write a file of the copy, with a later time than before.

        Bytecode that Python has cached for the file is then not used: its time is that of the file,
        in whole seconds.
        """
        path = self.root / module
        self._time = max(self._time, int(path.stat().st_mtime)) + 2
        path.write_text(source)
        os.utime(path, (self._time, self._time))

    def apply(self, patch: str) -> str | None:
        """Apply a patch to the copy; return the message of git if it does not fit."""
        command = ["git", "-C", str(self.root), "apply", "-"]
        result = subprocess.run(command, input=patch, capture_output=True, text=True)
        if result.returncode:
            return result.stderr.strip()
        return None


def run_git(*arguments: str) -> str:
    """Run git in the repository, and return its output."""
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
