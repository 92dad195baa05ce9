"""`make bench-quick`: the hot paths beside the floors, in under a minute.

All is compared by what it takes of the processor, which says the same on a machine that
is busy with something else. Exit code 1: a ratio is clearly worse than it was. What looks so is
measured once more, and the median of all rounds counts, because nothing is quite still.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from tests.benchmarks import commands, reads, verification
from tests.benchmarks.client import encode_form
from tests.benchmarks.load import require_wrk
from tests.benchmarks.measure import Act, Row, Target, at_least, at_most, compared, text, turns
from tests.benchmarks.places import Place, endpoint, floors, ours
from tests.benchmarks.seeding import seed
from tests.benchmarks.work import SHORT_RUNS, make_work, many_sessions, sized

ROUNDS = 3

LIMITS: dict[str, Target] = {
    "session detail, 1 run": at_least(0.24),
    "session detail, 1,000 runs": at_least(0.4),
    "teams": at_least(0.4),
    "list of 20 sessions": at_least(0.16),
    "cancel of a run that ended": at_least(0.15),
    "runs, plain": at_least(0.011),
    "agentctl --help": at_most(1.5),
    "agentctl teams list": at_most(2.5),
    "verification of a token": at_most(1.6),
    "verification of a token, again": at_most(0.15),
}
"""What a ratio must not fall below, or rise above: two thirds of what it was, or half more.

Whoever makes something clearly faster raises its limit.
"""

Acts = Mapping[str, Act]
"""`ours` and the floor, by its name; paths may share a floor."""


def paths(one: Place, floor: Place, folder: Path) -> dict[str, tuple[str, Acts]]:
    """Every path with the unit of its figures."""
    constant = {"FastAPI, constant": floor.get("/fastapi").by_processor}
    large = {"bare ASGI, read by apsw": floor.get("/point/runs-1000").by_processor}
    run = one.post(f"/agents/{reads.AGENT}/runs", encode_form(stream=False), seconds=2)
    loads = {
        "session detail, 1 run": (one.get("/sessions/runs-1"), constant),
        "session detail, 1,000 runs": (one.get("/sessions/runs-1000"), large),
        "teams": (one.get("/teams"), constant),
        "list of 20 sessions": (one.get("/sessions?limit=20"), constant),
        "cancel of a run that ended": (reads.cancels(one), constant),
        "runs, plain": (run, constant),
    }
    served = {
        work: ("/CPU s", {"ours": load.by_processor, **least})
        for work, (load, least) in loads.items()
    }
    return served | {
        "agentctl --help": (" CPU ms", _command(folder, ("--help",), ("--help",))),
        "agentctl teams list": (" CPU ms", _command(folder, ("teams", "list"), ())),
        "verification of a token": (" CPU µs", verification.acts_of("first time")),
        "verification of a token, again": (" CPU µs", verification.acts_of("again")),
    }


def _command(folder: Path, command: tuple[str, ...], bare: tuple[str, ...]) -> Acts:
    return commands.acts(folder, command, bare, commands.processor_seconds)


def measured(all_paths: Mapping[str, tuple[str, Acts]]) -> Iterator[Row]:
    """A few rounds of everything; and as many again of what looks bad."""
    acts = {act: act for _, path in all_paths.values() for act in path.values()}
    found = turns(acts, ROUNDS)
    for work, (unit, path) in all_paths.items():
        row = _row(work, unit, path, found)
        if not row.reached:
            again = _row(work, unit, path, turns({act: act for act in path.values()}, ROUNDS))
            row = replace(again, ratios=row.ratios + again.ratios)
        yield row


def _row(work: str, unit: str, path: Acts, found: Mapping[Act, Sequence[float]]) -> Row:
    (floor,) = set(path) - {"ours"}
    return compared(work, found[path["ours"]], floor, found[path[floor]], unit, LIMITS[work])


def main() -> int:
    """Measure and print; the exit code."""
    require_wrk()
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(endpoint())
        work = make_work(
            folder / "work", f"{url}/v1", [*sized((1, 1_000)), *many_sessions(40, SHORT_RUNS)]
        )
        seed(work)
        one, floor = stack.enter_context(ours(work)), stack.enter_context(floors(work))
        commands.prepare(folder)
        rows = list(measured(paths(one, floor, folder)))
    print(text(rows))
    return 0 if all(row.reached for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
