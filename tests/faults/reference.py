"""The reference: which tests noticed which faults, before tests were changed or deleted.

`reference/` has one file for each module. A line of it has one fault, and the tests that noticed
it: the functions by file, each with the number of its cases that failed. The file is written after
each fault, so that a record that was interrupted continues where it was.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.faults.mutations import Fault
from tests.faults.trials import Result

__all__ = ["FOLDER", "KnownFault", "Reference", "describe_failures"]

FOLDER = Path(__file__).with_name("reference")

Failures = dict[str, dict[str, int]]
"""The failed test functions by file, with the number of failed cases."""

NOT_IMPORTED = "(not imported)"
"""Stands for the functions of a file that could not be imported."""


@dataclass(frozen=True)
class KnownFault:
    """A fault of the reference."""

    line: int
    """The number of the line when the fault was recorded."""
    old: str
    new: str
    tests: Failures = field(default_factory=dict)
    """The tests that noticed the fault; empty if none did."""
    function: str = ""
    """The function or class around the line, such as `Reader.read`; empty for none."""
    repetition: int = 0
    """The number of faults with the same `old` and `new` above it in the function."""
    stuck: str | None = None
    """The test that did not end with the fault, which counts as noticed."""
    excused: str | None = None
    """The reason for which no test has to notice the fault any more."""

    @property
    def is_noticed(self) -> bool:
        return bool(self.tests or self.stuck)

    def find(self, faults: Iterable[Fault]) -> Fault | None:
        """Return this fault among those of the present source; None if the line is gone.

        Of several equal lines, it is the one at the same place of the same function. If that is
        gone, it is the nearest line of the function, or of the module if the function is gone.
        """
        equal = [fault for fault in faults if (fault.old, fault.new) == (self.old, self.new)]
        in_function = [fault for fault in equal if fault.function == self.function]
        for fault in in_function:
            if fault.repetition == self.repetition:
                return fault

        candidates = in_function or equal
        return min(candidates, key=lambda fault: abs(fault.line - self.line), default=None)

    def list_functions(self) -> list[str]:
        """Return the test functions that noticed the fault, such as `tests/a.py::test_a`.

        The one that did not end is the last: it would take a minute again.
        """
        names = [f"{file}::{name}" for file, functions in self.tests.items() for name in functions]
        if self.stuck is not None:
            names.append(self.stuck.partition("[")[0])
        return list(dict.fromkeys(names))

    def is_test(self, name: str) -> bool:
        """Return True if a test is one of those that noticed the fault."""
        file, _, function = name.partition("::")
        return function.partition("[")[0] in self.tests.get(file, {}) or name == self.stuck


class Reference:
    """The reference of one module."""

    def __init__(self, module: Path) -> None:
        self.module = module
        self.path = FOLDER / (".".join(module.with_suffix("").parts[1:]) + ".json")
        self.seed = 0
        self.left_out: dict[str, str] = {}
        self.tests: list[str] = []
        self.faults: list[KnownFault] = []
        if self.path.exists():
            known = json.loads(self.path.read_text())
            self.seed = known["seed"]
            self.tests = known["tests"]
            self.left_out = known["left_out"]
            self.faults = [KnownFault(**fault) for fault in known["faults"]]

    def find(self, fault: Fault) -> KnownFault | None:
        """Return what the reference knows about a fault."""
        wanted = (fault.line, fault.old, fault.new)
        known = (each for each in self.faults if (each.line, each.old, each.new) == wanted)
        return next(known, None)

    def add(self, fault: Fault, result: Result) -> KnownFault:
        """Add a fault, or replace what the reference knows about it, and write the file."""
        before = self.find(fault)
        if before is not None:
            self.faults.remove(before)
        known = KnownFault(
            fault.line,
            fault.old,
            fault.new,
            describe_failures(result.failed),
            fault.function,
            fault.repetition,
            result.stuck,
        )
        self.faults.append(known)
        self.faults.sort(key=lambda each: (each.line, each.old, each.new))
        self.write()
        return known

    def follow(
        self, faults: Sequence[Fault], equivalents: Collection[tuple[str, str]] = ()
    ) -> None:
        """Give each fault the place that it has now, and forget those that are gone.

        Args:
            faults: all faults of the present source.
            equivalents: faults that no test can notice, as the old and the new line.
        """
        present: dict[tuple[int, str, str], KnownFault] = {}
        for known in self.faults:
            fault = known.find(faults)
            if fault is not None and (fault.old, fault.new) not in equivalents:
                key = (fault.line, fault.old, fault.new)
                moved = replace(
                    known, line=fault.line, function=fault.function, repetition=fault.repetition
                )
                present.setdefault(key, moved)
        self.faults = [present[key] for key in sorted(present)]

    def keep_tests(self, paths: Collection[str]) -> None:
        """Forget the tests of other files, and the faults that only those noticed."""
        kept = list[KnownFault]()
        for known in self.faults:
            tests = {file: names for file, names in known.tests.items() if file in paths}
            stuck = known.stuck
            if stuck is not None and stuck.partition("::")[0] not in paths:
                stuck = None

            left = replace(known, tests=tests, stuck=stuck)
            if left.is_noticed or not known.is_noticed:
                kept.append(left)
        self.faults = kept

    def list_unnoticed(self, faults: Iterable[Fault]) -> list[Fault]:
        """Return the faults of the present source that were recorded, and that no test noticed."""
        unnoticed = {
            (known.line, known.old, known.new) for known in self.faults if not known.is_noticed
        }
        return [fault for fault in faults if (fault.line, fault.old, fault.new) in unnoticed]

    def write(self) -> None:
        """Write the file: each fault is one line, so that versions can be compared."""
        FOLDER.mkdir(exist_ok=True)
        head = {
            "module": str(self.module),
            "seed": self.seed,
            "tests": self.tests,
            "left_out": self.left_out,
        }
        parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
        lines = ",\n".join(f"  {json.dumps(_leave_out_empty(each))}" for each in self.faults)
        text = "{\n" + ",\n".join(parts) + ',\n"faults": [\n' + lines + "\n]\n}\n"
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text)
        temporary.replace(self.path)


def describe_failures(failed: Iterable[str]) -> Failures:
    """Group the ids of failed tests by file and function."""
    grouped: Failures = {}
    for name in failed:
        file, _, rest = name.partition("::")
        function = rest.partition("[")[0] or NOT_IMPORTED
        functions = grouped.setdefault(file, {})
        functions[function] = functions.get(function, 0) + 1
    return grouped


def _leave_out_empty(fault: KnownFault) -> Mapping[str, Any]:
    values: dict[str, Any] = {"line": fault.line}
    if fault.function:
        values["function"] = fault.function
    if fault.repetition:
        values["repetition"] = fault.repetition
    values |= {"old": fault.old, "new": fault.new, "tests": fault.tests}
    if fault.stuck is not None:
        values["stuck"] = fault.stuck
    if fault.excused is not None:
        values["excused"] = fault.excused
    return values
