"""`agentctl db import`: copy a database of AgentOS into one of agentctl."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated

from agentctl.cli.options import OneDatabase
from agentctl.cli.parameters import argument
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import Counter, check_complete, report_import, showing_progress
from agentctl.cli.show.terminal import note

EXAMPLE = "agentctl db import agentos.db"


async def import_database(
    out: CommandOutput,
    source: Annotated[str, argument("URL", "Database of AgentOS: a URL, or a SQLite file")],
    selected: OneDatabase,
) -> None:
    """Import sessions, runs and memories from a database of AgentOS.

    The database of AgentOS is only read. What exists already is skipped, so an import can be
    repeated. Exit code 1 if a session, run or memory was left out; stderr lists it.
    """
    from agentctl.config.databases import display_url
    from agentctl.interop.agentos.database import operations
    from agentctl.interop.agentos.imports import import_agentos
    from agentctl.store.database import Outbox
    from agentctl.store.databases import open_database

    settings, (chosen, *_) = selected.load()
    entry = operations.build_database_entry(source, Path.cwd())
    counter = Counter("")
    async with AsyncExitStack() as stack:
        theirs = await stack.enter_async_context(operations.open_agentos_database(entry))
        note(f"note: {theirs.place} is {theirs.name}")
        target = open_database(chosen, create=True)
        stack.push_async_callback(target.close)
        target.outbox = Outbox(settings)
        first = target
        system = settings.databases[0]
        if system.id != chosen.id:
            first = open_database(system, create=True)
            stack.push_async_callback(first.close)
        async with showing_progress(counter):
            imported = await import_agentos(
                theirs.reader, target, first, counter.show, settings.quotas
            )
    report_import(imported, out)
    note(f"imported {theirs.place} into {display_url(chosen.url)}")
    check_complete(imported)
