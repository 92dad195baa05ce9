"""`python -m tests.differential`: run every differential test of docs/internals/own-parts.md.

The last line has the totals; a comparison that fails at its first difference is a failed test.
"""

from __future__ import annotations

import sys

import pytest

from tests.architecture.test_own_parts import list_differential_tests
from tests.differential.comparison import TOTALS

if __name__ == "__main__":
    status = pytest.main(["-q", "-s", *list_differential_tests(), *sys.argv[1:]])
    numbers = ", ".join(f"{number:,} {name}" for name, number in TOTALS.items())
    print(f"total: {numbers}" + ("" if status == 0 else "; with failed tests"))
    sys.exit(status)
