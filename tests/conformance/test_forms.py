"""The abilities of the forms of agents that are no runner of their own, as test_kinds.py has them.

`make test-long` runs it.
"""

from __future__ import annotations

from tests.conformance import test_kinds
from tests.conformance.table import COLUMNS, FORMS

TESTED_KINDS = FORMS

for _column in COLUMNS:
    _name = f"test_{_column.replace('-', '_')}"
    globals()[_name] = getattr(test_kinds, _name)
