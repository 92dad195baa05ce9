"""Every class of the light decorator, against the same class of the standard one."""

from __future__ import annotations

import subprocess
import sys

from tests.conditions import PATIENCE
from tests.differential.comparison import LONG, SEED, report


def test_every_class_behaves_like_one_of_the_standard_decorator() -> None:
    rounds = 500 if LONG else 5
    command = [sys.executable, "-m", "tests.differential.dataclass_twins", str(SEED), str(rounds)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE)
    *differences, numbers = result.stdout.strip().splitlines()
    classes, exchanges, count = map(int, numbers.split())
    report("classes", exchanges, count, more=f" of {classes} classes")
    assert differences == []
    assert classes > 250
