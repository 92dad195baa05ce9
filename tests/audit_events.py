"""The audit events (`sys.audit`) with which tests tell the plugin `tests.accounting` what they use.

A module of its own: environments with other libraries, whose processes are counted, have no pytest.
"""

from __future__ import annotations

__all__ = ["FORKED_EVENT", "PAGE_EVENT"]

PAGE_EVENT = "tests.page"
"""A page that is opened in a browser."""

FORKED_EVENT = "tests.forked"
"""The end of a process of `tests.kit.forking`, with its CPU seconds and those of its children."""
