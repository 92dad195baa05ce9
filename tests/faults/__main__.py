"""Put faults into a module, one at a time, and show which of them the tests notice.

    python -m tests.faults agentctl/store/listing.py [--tests PATH ...] [--check]

Each fault is a small change of the source (`tests/faults/mutations.py`), applied in a temporary
copy of the repository that has its uncommitted changes too. The tests near the module run first and
stop at the first failure; with `--check`, the tests of `make check` try the faults that survive.
Without `--tests`, the near tests are the fast ones of all files that import the module, or import a
helper that does.

The same seed chooses the same faults as long as the module is the same. The exit status is 1 if
fewer than 9 of 10 faults are noticed. `equivalent.toml` has the faults that no test can notice,
each with its reason; they are not chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.mutations import Fault, choose_faults, find_faults

REPOSITORY = Path(__file__).parents[2]

EQUIVALENT = Path(__file__).with_name("equivalent.toml")

FAST = ("-m", "check or doors")

CHECK = ("-n", "5", "--dist", "loadfile", "--no-loadscope-reorder", *FAST)
"""The arguments of pytest in `make check`."""

MINIMUM_SECONDS = 60.0
"""Time after which tests count as stuck, or five times their usual time if that is longer."""

STUCK = "STUCK"


class Copy:
    """A copy of the repository with an environment that imports the package from it."""

    def __init__(self, folder: Path, module: Path) -> None:
        self.root = folder / "tree"
        self._temporary = folder / "t"
        self._module = self.root / module
        _run_git("clone", "--quiet", "--shared", str(REPOSITORY), str(self.root))
        for name in _run_git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
            source = REPOSITORY / name
            if name and source.exists():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, self.root / name)
        self._create_environment()
        self._time = int(self._module.stat().st_mtime)

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

    def write(self, source: str) -> None:
        """Write the module, with a later time, so that cached bytecode is not used."""
        self._module.write_text(source)
        self._time += 2
        os.utime(self._module, (self._time, self._time))

    def test(self, arguments: Sequence[str], seconds: float | None = None) -> str | None:
        """Run tests until one fails, and return its name; None if all pass."""
        command = [str(self.root / ".venv/bin/python"), "-m", "pytest", "-x", "-q", "-rfE"]
        command += ["-p", "no:cacheprovider", f"--basetemp={self._temporary}", *arguments]
        process = subprocess.Popen(
            command,
            cwd=self.root,
            text=True,
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            output = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.returncode == 0:
            return None
        if process.returncode < 0:
            return f"{STUCK} for {seconds:.0f} s"
        # A captured log may have lines that begin with ERROR as well.
        found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", output, re.MULTILINE)
        return found[1] if found else output.strip().splitlines()[-1]


def find_near_tests(module: Path) -> list[str]:
    """Return the test files that import a module, or helpers that do; its own folder is first."""
    files = {path: path.read_text() for path in sorted((REPOSITORY / "tests").rglob("*.py"))}
    names = [_dotted(module)]
    near: dict[str, None] = {}
    for name in names:
        pattern = re.compile(rf"\b{re.escape(name)}\b|from {_import_of(name)}\b")
        for path, text in files.items():
            relative = path.relative_to(REPOSITORY)
            if not pattern.search(text) or "faults" in relative.parts:
                continue
            if path.name.startswith("test_"):
                near[str(relative)] = None
            elif path.name != "conftest.py" and (helper := _dotted(relative)) not in names:
                names.append(helper)
    folder = f"tests/{module.parts[1]}/"
    return sorted(near, key=lambda path: not path.startswith(folder))


def _dotted(path: Path) -> str:
    return ".".join(path.with_suffix("").parts)


def _import_of(name: str) -> str:
    package, _, last = name.rpartition(".")
    return rf"{re.escape(package)} import [^\n]*\b{last}"


def _run_git(*arguments: str) -> str:
    command = ["git", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def read_equivalents(module: str) -> set[tuple[str, str]]:
    """Return the faults of a module that change nothing, as the old and the new line."""
    listed = tomllib.loads(EQUIVALENT.read_text()).get("fault", [])
    return {(each["old"], each["new"]) for each in listed if each["module"] == module}


def try_faults(
    copy: Copy, faults: Sequence[Fault], tests: Sequence[str], check: bool
) -> Iterator[tuple[Fault, str | None]]:
    """Yield each fault with the test that notices it, None if there is none.

    Raises:
        SystemExit: the tests fail without a fault.
    """
    suites: list[tuple[Sequence[str], float]] = []
    for suite in ((*FAST, *tests), *([CHECK] if check else [])):
        begin = time.monotonic()
        if failed := copy.test(suite):
            sys.exit(f"the tests fail without a fault: {failed}")
        suites.append((suite, max(MINIMUM_SECONDS, 5 * (time.monotonic() - begin))))
    for fault in faults:
        copy.write(fault.source)
        found = (copy.test(suite, seconds) for suite, seconds in suites)
        yield fault, next(filter(None, found), None)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("module", type=Path, help="such as agentctl/store/listing.py")
    parser.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="the near tests")
    parser.add_argument("--faults", type=int, default=20, metavar="N", help="default 20")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--lines", type=int, nargs="+", metavar="N", help="of these, the faults of some lines only"
    )
    parser.add_argument(
        "--check", action="store_true", help="try survivors with the tests of make check"
    )
    given = parser.parse_args()
    module = given.module.resolve().relative_to(REPOSITORY)
    source = (REPOSITORY / module).read_text()
    equivalents = read_equivalents(str(module))
    faults = find_faults(source)
    chosen = choose_faults(faults, given.faults, given.seed, equivalents)
    if given.lines:
        chosen = [fault for fault in chosen if fault.line in given.lines]
    tests = given.tests or find_near_tests(module)
    if not tests:
        parser.error(f"no test imports {module}; name some with --tests")
    print(f"{module}: {len(chosen)} of {len(faults)} faults, seed {given.seed}")
    survived = stuck = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        results = try_faults(Copy(Path(folder), module), chosen, tests, given.check)
        for fault, caught in results:
            survived += caught is None
            stuck += caught is not None and caught.startswith(STUCK)
            print(f"\n{fault.line:5}  - {fault.old}\n       + {fault.new}")
            print(f"       {caught or 'SURVIVED'}", flush=True)
    print(f"\n{len(chosen) - survived} of {len(chosen)} caught, {stuck} by tests that were stuck")
    return int(survived * 10 > len(chosen))


if __name__ == "__main__":
    sys.exit(main())
