"""Run the layers of the suite, stage by stage, and report their results and costs.

    python -m tests.run check                      the layer `check`: for each change
    python -m tests.run test                       all layers but `long`: before a change is merged
    python -m tests.run long [--shard N]           the layer `long`, or one of its eight shards
    python -m tests.run near [PATH ...]            the tests in `check` that are near changed files
    python -m tests.run repeat PATH ... --rounds 200
                                                   the tests in process of some files, again and
                                                   again: what fails by chance has found a race
    python -m tests.run record                     the seconds of the last run into the table, by
                                                   which the files are divided among the workers
    python -m tests.run test --seed 7              the files in another order than that of the table
    python -m tests.run check -- -x -k sessions    arguments for pytest

`tests/layers.py` describes the layers, and `tests/scheduling.py` divides their files among workers.
At most two tests of processes and browsers that fail are run again, one after another and alone,
and the run passes if they pass then. `.pytest_cache/reruns.tsv` lists them; one that is listed
again within some 20 runs needs a mend. Any other test that fails by chance has found a race, and is
not repeated.

The files of `check` and `near` are in memory, if there is room (`tests/memory.py`).

The tests get an environment that is built here, so that a shell does not decide whether they pass.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from tests.accounting import Account, read_accounts, write_accounts
from tests.layers import LAYERS, WAITING_LAYERS, Table, read_table, record_seconds
from tests.memory import call_in_memory

__all__ = [
    "Run",
    "Stage",
    "build_environment",
    "call_pytest",
    "choose_near_stage",
    "choose_repeated_stage",
    "choose_stages",
    "shuffle_files",
]

ROOT = Path(__file__).parents[1]

SHARDS = 8

ACCOUNTS = "accounts.jsonl"
"""The file with the costs of each test of the last run, in the folder of `Run`."""

MOST_RETRIES = 2

_RERUN_COLUMNS = ("commit", "test", "seconds", "load", "outcome", "message")

_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
_INHERITED_BEGINNINGS = ("AGENTCTL_TEST_", "COVERAGE_")

# Each file stays in one worker, because its tests share servers.
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
_TWO_WORKERS = ("-n", "2", *_BY_FILE)
_THREE_WORKERS = ("-n", "3", *_BY_FILE)
_ONE_WORKER = ("-n", "0")

# Four workers keep two cores busy: with three, a third of the time of `check` passes in tests that
# wait for a thread or a timer.
_WORKERS_OF_CHECK = ("check",) * 4
# All tests in the browser share one browser and one server. They and the tests of processes leave
# the cores idle while they wait, and the other workers use them.
_WORKERS_OF_TEST = ("browser", "process", *("check or doors",) * 4)

# The files of a test that has passed would fill the disk, or the memory.
_DROPPING = ("-o", "tmp_path_retention_policy=failed")

_FEW_FILES = 8
"""Files that one worker has tested before others have started."""

# Exit codes of pytest.
_PASSED = 0
_FAILED = 1
_NONE_COLLECTED = 5


@dataclass(frozen=True)
class Stage:
    """One call of pytest."""

    name: str

    layers: tuple[str, ...]

    files: tuple[str, ...]
    """Others are not even imported."""

    arguments: tuple[str, ...] = ()


def choose_stages(command: str, table: Table, shard: int | None = None) -> list[Stage]:
    """Return the stages of `check`, `test` or `long`.

    Args:
        shard: of `long`, from 1; None for all shards, one after another.
    """
    if command == "check":
        layers = ("check",)
        arguments = (*_divide(_WORKERS_OF_CHECK), *_DROPPING)
        return [Stage("check", layers, tuple(table.find_files(layers)), arguments)]

    if command == "test":
        layers = LAYERS[: LAYERS.index("long")]
        return [Stage("test", layers, tuple(table.find_files(layers)), _divide(_WORKERS_OF_TEST))]

    shards = table.divide_files("long", SHARDS)
    return [
        Stage(f"long {number} of {SHARDS}", ("long",), tuple(files), _TWO_WORKERS)
        for number, files in enumerate(shards, 1)
        if shard in {None, number}
    ]


def _divide(workers: Sequence[str]) -> tuple[str, ...]:
    """Return arguments for pytest that divide the files among workers, given the layers of each."""
    words = ["-n", str(len(workers)), "--dist", "each", "-p", "tests.scheduling"]
    for layers in workers:
        words += ["--layers", layers]
    # A worker that replaces another one would not know its files.
    return (*words, "--max-worker-restart", "0")


def shuffle_files(stage: Stage, seed: int) -> Stage:
    """Return the stage with its files in a random order, always the same for a seed.

    Another order gives each file other neighbours in the process of its worker. A test that fails
    only then depends on what an earlier file has left behind. The tests of a file keep their order.
    """
    order = random.Random(seed)
    return replace(stage, files=tuple(order.sample(stage.files, len(stage.files))))


def choose_near_stage(paths: Sequence[str], table: Table) -> Stage:
    """Return a stage with the tests in `check` that are near changed files.

    Near a module are the tests with its name, those that import it or a helper that does, and those
    of the folder of its package.

    Args:
        paths: of changed files; a file of tests is near itself.
    """
    # The tool for faults is imported for this command alone.
    from tests.faults.trials import find_near_tests

    fast = table.find_files(["check"])
    near: dict[str, None] = {}
    for path in paths:
        changed = Path(path).resolve().relative_to(ROOT)
        if changed.name.startswith("test_"):
            near[str(changed)] = None
        elif changed.suffix == ".py":
            own_name = re.compile(rf"/test_{re.escape(changed.stem)}(_\w+)?\.py$")
            near |= dict.fromkeys(file for file in fast if own_name.search(file))
            near |= dict.fromkeys(find_near_tests(changed))
            folder = f"tests/{changed.parts[1]}/"
            near |= dict.fromkeys(file for file in fast if file.startswith(folder))
    files = tuple(file for file in near if file in fast)
    workers = _ONE_WORKER if len(files) <= _FEW_FILES else _THREE_WORKERS
    return Stage("near", ("check",), files, (*workers, *_DROPPING))


def choose_repeated_stage(paths: Sequence[str], table: Table, rounds: int) -> Stage:
    """Return a stage that runs the tests in process of some files in many rounds.

    They are collected once, and run in one process: to load the machine, start several.

    Args:
        paths: of files of tests, or of their folders.
    """
    chosen = [Path(path).resolve().relative_to(ROOT) for path in paths]
    layers = ("check", "doors")
    files = tuple(
        file
        for file in table.find_files(layers)
        if any(Path(file).is_relative_to(path) for path in chosen)
    )
    repeating = ("-q", "-p", "tests.repeating", "--rounds", str(rounds))
    return Stage("repeated", layers, files, (*_ONE_WORKER, *repeating, *_DROPPING))


def build_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the tests: of a shell's, only where programs and files are.

    Not among them, on purpose: PYTHONUNBUFFERED and PYTHONDONTWRITEBYTECODE, which change what a
    server does when its terminal closes, and how long each process takes to start.
    """
    environment = {
        name: value
        for name, value in inherited.items()
        if name in _INHERITED or name.startswith(_INHERITED_BEGINNINGS)
    }
    return {"LANG": "C.UTF-8", **environment}


def call_pytest(arguments: Sequence[str]) -> tuple[int, list[Account]]:
    """Run pytest in this folder; return its exit code, and what it reports of each test."""
    with tempfile.TemporaryDirectory(prefix="agentctl-accounts-") as folder:
        path = Path(folder, "accounts.jsonl")
        accounting = ("-p", "tests.accounting", "--account", str(path))
        command = [sys.executable, "-m", "pytest", *accounting, *arguments]
        process = subprocess.Popen(command, env=build_environment(os.environ))
        try:
            code = process.wait()
        except KeyboardInterrupt:
            # Ctrl-C reaches pytest and its workers, too, which stop their servers now.
            process.wait()
            raise
        except SystemExit:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        return code, read_accounts(path)


@dataclass
class Run:
    """A run of stages."""

    call: Callable[[Sequence[str]], tuple[int, list[Account]]] = call_pytest
    """Runs pytest with arguments, see `call_pytest`."""

    folder: Path = ROOT / ".pytest_cache"
    """A folder in which `reruns.tsv` lists the tests that were run again, and `ACCOUNTS` has the
    costs of each test of the last run."""

    accounts: dict[str, Account] = field(default_factory=dict)
    """By test; of one that was run again, the second result."""

    retried: list[Account] = field(default_factory=list)
    """The first results of tests that were run again."""

    failures: list[str] = field(default_factory=list)
    """The reasons why the run fails, a line each."""

    def execute(self, stages: Sequence[Stage], arguments: Sequence[str] = ()) -> int:
        """Run all stages, also after one that fails, and print a report; return the exit code.

        Args:
            arguments: for pytest, in each stage.
        """
        begin = time.monotonic()
        cpu = _read_cpu()
        walls: dict[str, float] = {}
        for stage in stages:
            stage_begin = time.monotonic()
            self._execute_stage(stage, arguments)
            walls[stage.name] = time.monotonic() - stage_begin

        seconds = time.monotonic() - begin
        self.folder.mkdir(exist_ok=True)
        write_accounts(self.folder / ACCOUNTS, self.accounts.values())
        for line in self._describe(walls, _read_cpu() - cpu, seconds):
            print(line, flush=True)
        return 1 if self.failures else 0

    def _execute_stage(self, stage: Stage, arguments: Sequence[str]) -> None:
        print(f"\nStage: {stage.name}, {len(stage.files)} files", flush=True)
        if not stage.files:
            return  # Without a file, pytest would collect all of them.
        chosen = ("-m", " or ".join(stage.layers))
        code, accounts = self.call([*stage.arguments, *chosen, *arguments, *stage.files])
        self.accounts |= {account.test: account for account in accounts}

        failed = [account for account in accounts if account.outcome == "failed"]
        are_waiting = all(account.layer in WAITING_LAYERS for account in failed)
        if code == _FAILED and are_waiting and 0 < len(failed) <= MOST_RETRIES:
            self._retry(failed, arguments)
        elif code == _FAILED:
            self.failures.append(f"{stage.name}: {len(failed)} tests failed")
        elif code == _NONE_COLLECTED and arguments:
            print("No test of this stage is chosen.")
        elif code != _PASSED:
            self.failures.append(f"{stage.name}: pytest ended with {code}")

    def _retry(self, failed: Sequence[Account], arguments: Sequence[str]) -> None:
        """Run tests again, each in a new process, and list them."""
        for first in failed:
            print(f"\nAgain, alone: {first.test}", flush=True)
            load = os.getloadavg()[0]
            code, accounts = self.call([*_ONE_WORKER, *arguments, first.test])
            self.accounts |= {account.test: account for account in accounts}
            self.retried.append(first)
            if code != _PASSED:
                self.failures.append(f"{first.test} failed twice")
            self._list_rerun(first, load, "passed" if code == _PASSED else "failed")

    def _list_rerun(self, first: Account, load: float, outcome: str) -> None:
        path = self.folder / "reruns.tsv"
        path.parent.mkdir(exist_ok=True)
        is_new = not path.exists()
        commit = _read_git("rev-parse", "--short", "HEAD")
        message = first.message.replace("\t", " ")
        row = (commit, first.test, f"{first.seconds:.1f}", f"{load:.1f}", outcome, message)
        with path.open("a") as file:
            if is_new:
                print(*_RERUN_COLUMNS, sep="\t", file=file)
            print(*row, sep="\t", file=file)

    def _describe(self, walls: Mapping[str, float], cpu: float, seconds: float) -> list[str]:
        """Return the lines of the report; the last one is like that of pytest."""
        heading = f"{'Layer':10}{'tests':>7}{'seconds':>10}{'CPU s':>8}"
        lines = ["", f"{heading}{'programs':>10}{'servers':>9}{'pages':>7}"]
        accounts = self.accounts.values()
        for layer in (*LAYERS, ""):
            rows = [account for account in accounts if account.layer == layer]
            if rows:
                lines.append(_describe_layer(layer or "no layer", rows))
        other = max(0.0, cpu - sum(account.cpu for account in accounts))
        lines.append(f"{'other':27}{other:8.0f}  (collection, processes that are not waited for)")
        lines.append(f"{'all':10}{len(accounts):7}{seconds:10.0f}{cpu:8.0f}")

        lines += [f"Stage {name}: {wall:.0f} s" for name, wall in walls.items()]
        lines.append(f"Retries: {len(self.retried)} (reruns.tsv lists all)")
        lines += [f"  {each.test} ({each.seconds:.1f} s): {each.message}" for each in self.retried]
        lines += [f"FAILED {failure}" for failure in self.failures]

        outcomes = Counter(account.outcome for account in accounts)
        counts = ", ".join(
            f"{outcomes[name]} {name}"
            for name in ("failed", "passed", "skipped", "xfailed")
            if outcomes[name]
        )
        minutes, rest = divmod(int(seconds), 60)
        lines += [
            "",
            f"==== {counts or 'no tests ran'} in {seconds:.2f}s ({minutes}:{rest:02} min) ====",
        ]
        return lines


def _describe_layer(name: str, accounts: Sequence[Account]) -> str:
    seconds = sum(account.seconds for account in accounts)
    cpu = sum(account.cpu for account in accounts)
    programs = sum(account.programs for account in accounts)
    servers = sum(account.servers for account in accounts)
    pages = sum(account.pages for account in accounts)
    costs = f"{seconds:10.0f}{cpu:8.0f}{programs:10}{servers:9}{pages:7}"
    return f"{name:10}{len(accounts):7}{costs}"


def _read_cpu() -> float:
    """Return the CPU seconds of all programs that have been waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _read_git(*words: str) -> str:
    """Return what git prints; nothing outside a repository or without git."""
    try:
        result = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return result.stdout.strip()


def _find_changed() -> list[str]:
    """Return the files that differ from the last commit, and new ones."""
    tracked = _read_git("diff", "--name-only", "--diff-filter=d", "HEAD")
    new = _read_git("ls-files", "--others", "--exclude-standard")
    return [str(ROOT / line) for line in [*tracked.splitlines(), *new.splitlines()]]


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def main(words: Sequence[str]) -> int:
    given, arguments = _parse(words)
    table = read_table()
    if given.command == "record":
        accounts = read_accounts(Run.folder / ACCOUNTS)
        record_seconds((account.test, account.seconds) for account in accounts)
        return 0

    if given.command == "near":
        stages = [choose_near_stage(given.paths or _find_changed(), table)]
        if not stages[0].files:
            print("No test of `check` imports what has changed.")
            return 0
    elif given.command == "repeat":
        stages = [choose_repeated_stage(given.paths, table, given.rounds)]
    else:
        stages = choose_stages(given.command, table, given.shard)

    if given.seed is not None:
        print(f"The order of the files is that of --seed {given.seed}", flush=True)
        stages = [shuffle_files(stage, given.seed) for stage in stages]

    # A shell that starts the suite in the background makes every process of it ignore Ctrl-C.
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _end)
    os.chdir(ROOT)
    try:
        if given.command in ("check", "near"):
            return call_in_memory(lambda: Run().execute(stages, arguments))
        return Run().execute(stages, arguments)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the options, and the words after `--`, which are for pytest."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("check", "test", "long", "near", "repeat", "record"))
    parser.add_argument(
        "paths",
        nargs="*",
        help="of near: changed files, by default those that git names; of repeat: files, folders",
    )
    parser.add_argument("--shard", type=int, choices=range(1, SHARDS + 1), help="of long")
    parser.add_argument("--rounds", type=int, default=200, help="of repeat")
    parser.add_argument("--seed", type=int, help="run the files in the random order of this number")
    own = list(words)
    arguments: list[str] = []
    if "--" in own:
        place = own.index("--")
        arguments = own[place + 1 :]
        own = own[:place]
    given = parser.parse_args(own)
    if given.paths and given.command not in ("near", "repeat"):
        parser.error(
            f"{given.command} takes no files; `near` does, and arguments after -- are for pytest"
        )
    if given.command == "repeat" and not given.paths:
        parser.error("repeat needs files or folders")
    if given.shard and given.command != "long":
        parser.error("only `long` has shards")
    return given, arguments


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
