"""The command that brings a database up to date, as it is to be typed here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentctl.errors import SchemaMismatch, Unavailable

__all__ = ["naming"]


@contextlib.contextmanager
def naming(config: Path | None) -> Iterator[None]:
    """Let the hint of a failure about a schema name the configuration that was given."""
    try:
        yield
    except (SchemaMismatch, Unavailable) as failure:
        if config is not None and failure.hint == _command():
            import shlex

            failure.hint = f"{failure.hint} --config {shlex.quote(str(config))}"
        raise


def _command() -> str:
    from agentctl.store.schema import MIGRATE

    return MIGRATE
