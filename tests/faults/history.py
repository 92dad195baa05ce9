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

SECONDS = 120.0
"""Time after which the tests of a fault are stuck."""

BASELINE_SECONDS = 1_800.0
"""Time after which the tests without a fault are ended."""


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

    tests = [test for fault in chosen.values() for test in fault["tests"]]
    without = forks.run(tests, seconds=BASELINE_SECONDS)
    if without.stuck is not None:
        raise SystemExit(f"{without.stuck}: no end without a fault: {without.last_line}")
    forks.import_libraries()

    missed = 0
    for name, fault in chosen.items():
        print(f"\n{name}: {fault['subject']}")
        usable = [test for test in fault["tests"] if not _has_failed(test, without)]
        for test in fault["tests"]:
            if test not in usable:
                print(f"  {test}: fails without the fault")
        if not usable or not _replay_one(copy, forks, name, usable):
            missed += 1
    print(f"\n{len(chosen) - missed} of {len(chosen)} noticed")
    return missed


def _has_failed(test: str, outcome: Outcome) -> bool:
    """Return True if a test, or one of its cases, has failed or could not be imported."""
    file = test.partition("::")[0]
    return any(name in (file, test) or name.startswith(f"{test}[") for name in outcome.failed)


def _replay_one(copy: Copy, forks: Forks, name: str, tests: list[str]) -> bool:
    """Bring back one fault and run its tests; return True if one of them fails."""
    path = PATCHES / f"{name}.patch"
    # Three values for each file: its added and deleted lines, and its name.
    changes = run_git("apply", "--numstat", "-z", str(path)).split("\0")
    files = [Path(change.split("\t")[2]) for change in changes if change]
    sources = {file: (copy.root / file).read_text() for file in files}
    if problem := copy.apply(path.read_text()):
        print(f"  CANNOT BE TRIED: the patch does not fit: {problem}", flush=True)
        return False

    for file in files:
        # Bytecode that is cached for the file without the fault must not be used.
        copy.write(file, (copy.root / file).read_text())
    outcome = forks.run(tests, seconds=SECONDS)
    for file, source in sources.items():
        copy.write(file, source)

    for test, why in outcome.failed.items():
        print(f"  {test}: {why}")
    if outcome.stuck is not None:
        print(f"  STUCK in {outcome.stuck}")
    if not outcome.failed and outcome.stuck is None:
        print(f"  SURVIVED: {outcome.last_line}", flush=True)
        return False
    print(f"  {outcome.cpu_seconds:.1f} CPU seconds", flush=True)
    return True
