"""All failures with every kind of agent; see `tests.failures`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.failures.kills import run_ends_of_servers
from tests.failures.server import KINDS, SERVERS, find_component, open_deployment, serve_failures
from tests.failures.table import FAILURES
from tests.failures.trial import Clients, Trial


def main() -> int:
    """Run the failures, print the table, and return 1 if a message was not answered."""
    parser = argparse.ArgumentParser(prog="python -m tests.failures", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--only", default="", help="failures whose names contain this text")
    parser.add_argument("--parallel", type=int, default=12, help="trials at the same time")
    parser.add_argument("--log", action="store_true", help="print the log of the server")
    options = parser.parse_args()
    began = time.monotonic()
    log = ""
    trials = list[Trial]()
    for kinds in ([kind for kind in each if kind in options.kinds] for each in SERVERS):
        those = [
            Trial(kind, failure)
            for failure in FAILURES.values()
            for kind in kinds
            if options.only in failure.name and find_component(kind, failure.variant)
        ]
        if not those:
            continue
        with open_deployment(kinds=kinds) as (deployment, endpoint):
            with serve_failures(deployment, endpoint) as server:
                asyncio.run(run_trials(Clients(server), those, options.parallel))
            log += server.process.log_text
            if options.only in "killed stopped":
                those += run_ends_of_servers(deployment, endpoint, kinds)
        trials += those
    if options.log:
        print(log)
    print_table(trials)
    print(f"{time.monotonic() - began:.0f} s, {log.count('Traceback')} tracebacks in the log")
    return 1 if any(trial.problems for trial in trials) else 0


async def run_trials(clients: Clients, trials: Sequence[Trial], parallel: int = 12) -> None:
    """Run trials with the clients of a server."""
    async with clients.open():
        await clients.run_all(trials, parallel)


def print_table(trials: Sequence[Trial]) -> None:
    """Print the problems, and the number of failures and answers of each kind of agent."""
    for trial in trials:
        for problem in trial.problems:
            print(f"{trial.name}: {problem}")
    kinds: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        kinds[trial.kind].append(trial)
    print("\n| agent | failures | answers | ends |\n| --- | ---: | ---: | --- |")
    for kind, those in kinds.items():
        answers = sum(not trial.problems for trial in those)
        ends = Counter(trial.ended for trial in those)
        shown = ", ".join(f"{end} {number}" for end, number in ends.most_common())
        print(f"| {kind} | {len(those)} | {answers} | {shown} |")


if __name__ == "__main__":
    sys.exit(main())
