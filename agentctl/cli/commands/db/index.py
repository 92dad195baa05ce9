"""`agentctl db index`: add the texts that the index of a search lacks."""

from __future__ import annotations

from dataclasses import asdict

from agentctl.cli.databases import OnlyDatabase, find_databases, load_settings_quietly
from agentctl.cli.options import Config, Output
from agentctl.cli.show.output import resolve_format, show_list
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.target import run_until_done
from agentctl.errors import BadRequest

_INDEXED = plain_columns("db_id", "tokenizer", "sessions", "added")


def index(config: Config = None, db: OnlyDatabase = None, output: Output = None) -> None:
    """Index the texts of existing sessions, for `sessions list --search`.

    Adds the texts that the index lacks: of runs that ended before search was enabled, or with an
    older version, and after a change of the tokenizer. Servers continue to work. After an
    interruption, run it again: it continues.
    """
    output_format = resolve_format(output)
    settings = load_settings_quietly(config)
    entries = find_databases(settings, db)
    if not settings.search.enabled:
        raise BadRequest("Search is not enabled", hint="set enabled = true in [search]")
    records: list[dict[str, object]] = []

    async def index_entries() -> None:
        from agentctl.service.search_index import index_texts

        for entry in entries:
            counter = Counter("")
            async with showing_progress(counter):
                result = await index_texts(entry, settings.search.tokenizer, counter.show)
            records.append(asdict(result))

    run_until_done(index_entries())
    show_list(records, _INDEXED, output_format, id_field="db_id")
