"""The contract table, by topic."""

from __future__ import annotations

from tests.contract.rows import Row
from tests.contract.table.administration import administration_rows
from tests.contract.table.approvals import approval_rows
from tests.contract.table.components import component_rows, version_rows
from tests.contract.table.files import file_rows
from tests.contract.table.memories import memory_rows
from tests.contract.table.runs import run_rows
from tests.contract.table.sessions import session_rows
from tests.contract.table.system import system_rows

__all__ = ["ROWS"]

ROWS: list[Row] = [
    *system_rows(),
    *component_rows(),
    *run_rows(),
    *version_rows(),
    *session_rows(),
    *memory_rows(),
    *file_rows(),
    *approval_rows(),
    *administration_rows(),
]
