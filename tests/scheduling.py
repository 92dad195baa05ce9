"""A plugin of pytest that divides the tests of processes and browsers among workers of xdist.

    pytest -n 2 --dist loadfile -p tests.scheduling

A file stays in one worker. All tests of the layer `browser` stay in one, too: they share a browser
and a server, which another worker would start again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdist.scheduler import LoadFileScheduling

from tests.layers import Table, find_name, read_table

if TYPE_CHECKING:
    import pytest
    from xdist.remote import Producer

__all__ = ["find_group"]


def find_group(table: Table, test: str) -> str:
    """Return the name of the tests that run in the same worker as this one."""
    if table.find_layer(find_name(test)) == "browser":
        return "browser"
    file, _, _ = test.partition("::")
    return file


class _Scheduling(LoadFileScheduling):
    def __init__(self, config: pytest.Config, log: Producer | None) -> None:
        super().__init__(config, log)
        self._table = read_table()

    def _split_scope(self, nodeid: str) -> str:
        return find_group(self._table, nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Scheduling | None:
    if config.getoption("dist") != "loadfile":
        return None
    return _Scheduling(config, log)
