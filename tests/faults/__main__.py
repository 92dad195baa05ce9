"""Put faults into modules, one at a time, and show which tests notice them.

    python -m tests.faults try agentctl/store/listing.py [--tests PATH ...]
    python -m tests.faults record [--module MODULE ...]
    python -m tests.faults compare [--module MODULE ... | --changed [BASE]]
    python -m tests.faults history [NAME ...]

Each fault is a small change of the source (`tests/faults/mutations.py`), applied in a temporary
copy of the repository that has its uncommitted changes, too. The tests near the module run once to
find the tests that execute each line; each fault then runs with all tests that execute its line.

`try` shows all failing tests of each fault. `record` writes the reference (`reference/`), and
`compare` shows the faults of the reference that no test notices any more; with `--changed`, those
of the modules that the branch has changed, each with the tests that the reference names. `history`
reverts mends of real faults (`history.toml`), and shows which of their tests fail.

The same seed chooses the same faults as long as the module is the same. `equivalent.toml` has the
faults that no test can notice, each with its reason; they are not chosen.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.faults.copies import REPOSITORY, Copy, run_git
from tests.faults.forks import Forks
from tests.faults.history import replay
from tests.faults.mutations import Fault, choose_faults, find_faults
from tests.faults.reference import KnownFault, Reference, describe_failures
from tests.faults.trials import Result, Trial, find_near_tests, list_modules, read_equivalents

RECORDED = 80
"""The faults of each module of the reference."""

EXCUSED_SHARE = 0.02
"""The largest share of the noticed faults of the reference that may be excused."""

KNOWN_TESTS = 3
"""The test functions that try a fault if its module has changed."""

FIRST_TESTS = 20
"""The tests that noticed a fault before and try it first in a comparison."""


@contextlib.contextmanager
def open_forks() -> Iterator[tuple[Copy, Forks]]:
    """Open a copy of the repository, and the process that runs its tests."""
    # The copy is deleted and the process ends, too, if this one is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy = Copy(Path(folder))
        forks = Forks(copy.root, Path(folder) / "t")
        try:
            yield copy, forks
        finally:
            forks.close()


def choose(module: Path, number: int, seed: int) -> list[Fault]:
    """Choose faults of a module, without those that no test can notice."""
    faults = find_faults((REPOSITORY / module).read_text())
    return choose_faults(faults, number, seed, read_equivalents(str(module)))


def print_left_out(trial: Trial) -> None:
    for name, reason in trial.left_out.items():
        print(f"left out: {name}: {reason}", flush=True)


def print_result(fault: Fault | KnownFault, result: Result) -> None:
    """Print a fault and the tests that noticed it, the functions with the number of cases."""
    print(f"\n{fault.line:5}  - {fault.old}\n       + {fault.new}")
    for file, functions in describe_failures(result.failed).items():
        for function, cases in functions.items():
            print(f"       {file}::{function}" + (f" ({cases} cases)" if cases > 1 else ""))
    if result.stuck is not None:
        print(f"       STUCK in {result.stuck}")
    if not result.is_noticed:
        print(f"       SURVIVED {result.tried} tests that execute it")
    sys.stdout.flush()


def try_module(given: argparse.Namespace) -> int:
    """Show the tests that notice the faults of a module.

    The exit status is 1 if fewer than 9 of 10 are noticed.
    """
    module = given.path.resolve().relative_to(REPOSITORY)
    chosen = choose(module, given.faults, given.seed)
    if given.lines:
        chosen = [fault for fault in chosen if fault.line in given.lines]
    tests = given.tests or find_near_tests(module)
    if not tests:
        sys.exit(f"no test imports {module}; name some with --tests")
    print(f"{module}: {len(chosen)} faults, seed {given.seed}", flush=True)
    noticed = 0
    with open_forks() as (copy, forks):
        trial = Trial(copy, forks, module, tests)
        print_left_out(trial)
        for fault in chosen:
            result = trial.try_fault(fault)
            noticed += result.is_noticed
            print_result(fault, result)
    print(f"\n{noticed} of {len(chosen)} noticed")
    return int(noticed < 0.9 * len(chosen))


def record(given: argparse.Namespace) -> int:
    """Write the reference of modules; faults that it has already are kept."""
    for module in given.modules or list_modules():
        reference = Reference(module)
        near_tests = find_near_tests(module)
        if reference.seed != given.seed:
            reference.faults = []
        reference.keep_tests(near_tests)
        source = (REPOSITORY / module).read_text()
        faults = find_faults(source)
        reference.follow(faults, read_equivalents(str(module)))

        # The faults that were recorded before the module changed stay.
        chosen = choose(module, RECORDED, given.seed)
        missing = [fault for fault in chosen if reference.find(fault) is None]
        missing = missing[: RECORDED - len(reference.faults)]
        if given.again:
            missing += reference.list_unnoticed(faults)
        print(f"{module}: {len(missing)} of {RECORDED} faults to try", flush=True)
        if not missing:
            continue
        reference.seed = given.seed
        reference.tests = near_tests
        with open_forks() as (copy, forks):
            trial = Trial(copy, forks, module, reference.tests)
            if trial.source != source:
                sys.exit(f"{module} has changed since its faults were found: record it again")
            print_left_out(trial)
            reference.left_out = {
                name: reason.partition(":")[0] for name, reason in trial.left_out.items()
            }
            reference.write()
            for fault in missing:
                result = trial.try_fault(fault)
                reference.add(fault, result)
                print_result(fault, result)
                print(f"       {result.tried} tests, {result.cpu_seconds:.1f} CPU seconds")
    return 0


def compare(given: argparse.Namespace) -> int:
    """Show the noticed faults of the reference that no test notices any more.

    The exit status is 1 if there are some, or if more than 2% are excused.
    """
    modules = given.modules or list_modules()
    if given.changed is not None:
        modules = list_changed_modules(given.changed)
        print(f"{len(modules)} modules of the reference have changed", flush=True)

    lost = 0
    for module in modules:
        lost += compare_module(module, only_known=given.changed is not None)
    return int(lost > 0)


def list_changed_modules(base: str) -> list[Path]:
    """Return the modules of the reference that have changed since a branch left another one.

    Changes that are not committed count.
    """
    commit = run_git("merge-base", base, "HEAD").strip()
    changed = set(run_git("diff", "--name-only", commit).splitlines())
    return [module for module in list_modules() if str(module) in changed]


def compare_module(module: Path, *, only_known: bool = False) -> int:
    """Compare the tests with the reference of a module; return the number of problems.

    Args:
        only_known: try each fault with the tests that noticed it before, and with no other ones.
    """
    reference = Reference(module)
    faults = find_faults((REPOSITORY / module).read_text())
    noticed = [known for known in reference.faults if known.is_noticed]
    excused = [known for known in noticed if known.excused is not None]
    present = [(known, known.find(faults)) for known in noticed if known.excused is None]
    gone = [known for known, fault in present if fault is None]
    lost = 0
    tests = list_known_tests(noticed) if only_known else find_near_tests(module)
    with open_forks() as (copy, forks):
        trial = Trial(copy, forks, module, tests)
        for known, fault in present:
            if fault is not None:
                result = try_again(trial, known, fault)
                if not result.is_noticed:
                    lost += 1
                    print_result(known, result)
                    for file, functions in known.tests.items():
                        print(f"       before: {file}: {', '.join(functions)}", flush=True)
    print(
        f"\n{module}: of {len(noticed)} faults that tests noticed, {lost} are not noticed any more,"
        f" {len(excused)} are excused, and the lines of {len(gone)} are gone",
        flush=True,
    )
    if len(excused) > EXCUSED_SHARE * len(noticed):
        print(f"more than {EXCUSED_SHARE:.0%} are excused")
        return lost + 1
    return lost


def list_known_tests(noticed: Iterable[KnownFault]) -> list[str]:
    """Return test functions that noticed faults before and still exist: some for each fault.

    Those of earlier faults are chosen first, so that a few functions are enough for a module.
    """
    chosen: dict[str, None] = {}
    for known in noticed:
        names = [name for name in known.list_functions() if exists(name)]
        names.sort(key=lambda name: name not in chosen)
        chosen |= dict.fromkeys(names[:KNOWN_TESTS])
    return list(chosen)


def exists(function: str) -> bool:
    """Return True if there is a test function, such as `tests/a.py::test_a`."""
    file, _, name = function.partition("::")
    path = REPOSITORY / file
    return path.is_file() and f"def {name}(" in path.read_text()


def try_again(trial: Trial, known: KnownFault, fault: Fault) -> Result:
    """Try a fault with some tests that noticed it before, and with all if they do not."""
    before = [name for name in trial.find_tests(fault) if known.is_test(name)]
    result = trial.try_fault(fault, before[:FIRST_TESTS])
    return result if result.is_noticed else trial.try_fault(fault)


def replay_history(given: argparse.Namespace) -> int:
    """Revert mends of real faults, and show which of their tests fail.

    The exit status is 1 unless each is noticed.
    """
    with open_forks() as (copy, forks):
        return int(replay(copy, forks, given.names) > 0)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    tried = commands.add_parser("try", help="show the tests that notice the faults of a module")
    tried.set_defaults(command=try_module)
    tried.add_argument(
        "path", type=Path, metavar="module", help="such as agentctl/store/listing.py"
    )
    tried.add_argument("--tests", nargs="+", default=[], metavar="PATH", help="the near tests")
    tried.add_argument("--faults", type=int, default=20, metavar="N", help="default 20")
    tried.add_argument(
        "--lines", type=int, nargs="+", metavar="N", help="of these, the faults of some lines only"
    )

    recorded = commands.add_parser("record", help="write the reference")
    recorded.set_defaults(command=record)
    for each in (tried, recorded):
        each.add_argument("--seed", type=int, default=1, metavar="N", help="default 1")

    recorded.add_argument(
        "--again", action="store_true", help="also try the faults again that no test noticed"
    )

    compared = commands.add_parser("compare", help="show what tests notice no more")
    compared.set_defaults(command=compare)
    for each in (recorded, compared):
        each.add_argument(
            "--module",
            dest="modules",
            action="append",
            type=Path,
            metavar="MODULE",
            help="one module of modules.toml, such as agentctl/store/listing.py; repeatable",
        )

    compared.add_argument(
        "--changed",
        nargs="?",
        const="main",
        metavar="BASE",
        help="the modules that have changed since the branch left BASE, default main;"
        " only with the tests that the reference names",
    )

    replayed = commands.add_parser("history", help="revert mends of real faults")
    replayed.set_defaults(command=replay_history)
    replayed.add_argument("names", nargs="*", metavar="NAME", help="default: all of history.toml")

    given = parser.parse_args(words)
    status: int = given.command(given)
    return status


if __name__ == "__main__":
    sys.exit(main())
