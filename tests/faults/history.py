"""Real faults: mends of the history that are reverted, to see whether their tests fail.

`history.toml` names each mend with the tests that must fail without it, and `history/NAME.patch`
has the change that brings the fault back. A patch is applied to the present source, so a change of
the lines around it may need another patch: put the fault in by hand, and store `git diff`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from pathlib import Path

from tests.faults.copies import Copy, run_git
from tests.faults.forks import Forks, Outcome

__all__ = ["replay"]

HISTORY = Path(__file__).with_name("history.toml")

PATCHES = Path(__file__).with_name("history")

SECONDS = 180.0
"""Time after which the tests of a mend are stuck."""


def replay(copy: Copy, forks: Forks, names: Collection[str] = ()) -> int:
    """Bring back each fault, one at a time, and run its tests with and without it.

    Args:
        names: of the faults, those to bring back; empty for all.

    Returns:
        The number of faults that no test notices, or that cannot be tried.
    """
    listed = tomllib.loads(HISTORY.read_text())
    if unknown := set(names) - listed.keys():
        raise SystemExit(f"not in history.toml: {', '.join(sorted(unknown))}")
    chosen = {name: listed[name] for name in listed if not names or name in names}
    missed = 0
    for number, (name, fault) in enumerate(chosen.items()):
        print(f"\n{name}: {fault['subject']}")
        tests = fault["tests"]
        without = _run(forks, tests)
        if number == 0:
            forks.import_libraries()
        if without.exit != 0:
            missed += 1
            print(f"  CANNOT BE TRIED: without the fault: {without.last_line}", flush=True)
            continue
        noticed = _replay_one(copy, forks, name, tests)
        if not noticed:
            missed += 1
    print(f"\n{len(chosen) - missed} of {len(chosen)} noticed")
    return missed


def _replay_one(copy: Copy, forks: Forks, name: str, tests: list[str]) -> bool:
    """Bring back one fault and run its tests; return True if one of them fails."""
    path = PATCHES / f"{name}.patch"
    before = {
        file: (copy.root / file).read_text()
        for file in run_git("apply", "--numstat", "-z", str(path)).split("\0")
        for file in file.split("\t")[2:]
    }
    if problem := copy.apply(path.read_text()):
        print(f"  CANNOT BE TRIED: the patch does not fit: {problem}", flush=True)
        return False
    for file in before:
        # Bytecode that is cached for the file without the fault must not be used.
        copy.write(Path(file), (copy.root / file).read_text())
    outcome = _run(forks, tests)
    for file, source in before.items():
        copy.write(Path(file), source)
    for test in outcome.failed:
        print(f"  {test}")
    if outcome.stuck is not None:
        print(f"  STUCK in {outcome.stuck}")
    if not outcome.failed and outcome.stuck is None:
        print(f"  SURVIVED: {outcome.last_line}", flush=True)
        return False
    print(f"  {outcome.cpu_seconds:.1f} CPU seconds", flush=True)
    return True


def _run(forks: Forks, tests: list[str]) -> Outcome:
    return forks.run(tests, seconds=SECONDS)
