"""`agentctl memories`: list, change, delete, export and import memories of users."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated

from agentctl.cli.files import creating_file
from agentctl.cli.help import CommandApp
from agentctl.cli.ids import ShortId
from agentctl.cli.io import read_file_or_stdin, read_text_or_stdin
from agentctl.cli.lists import ListOutput
from agentctl.cli.options import ToFile, UserId, Yes
from agentctl.cli.parameters import argument, complete_values, flag, option
from agentctl.cli.show.output import CommandOutput, FieldsOutput, write_json, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT, Page
from agentctl.interface.requests.lists import read_rows
from agentctl.interface.requests.memories import (
    MemoryDeletion,
    MemoryFilter,
    MemoryPatch,
    NewMemory,
)
from agentctl.records.kinds import Record
from agentctl.records.text import format_count

app = CommandApp(
    help="List, change, delete, export and import memories of users.",
    epilog="Example: agentctl memories list --user ada --search train",
)

MemoryId = Annotated[
    str,
    ShortId("memory"),
    argument("MEMORY_ID", "Memory id", autocompletion=complete_values("memory")),
]
Topics = Annotated[list[str] | None, option("--topic", "TOPIC", "Topic (repeatable)")]
Owner = Annotated[str | None, option("--user", "USER", "Owner of the memory; administrators only")]


def _format_topics(memory: Record) -> str:
    return ", ".join(str(topic) for topic in memory.get("topics") or [])


_COLUMNS = [
    *plain_columns("memory_id", "user_id", "memory"),
    Column("topics", _format_topics),
    *plain_columns("agent_id", "team_id", "run_id", "created_at", "updated_at"),
]
_LIST_COLUMNS = Columns(
    tsv=_COLUMNS,
    table=[
        Column("memory_id", heading="memory id", look="id"),
        Column("memory", look="text"),
        Column("user_id", heading="user"),
        Column("topics", _format_topics, look="text"),
        Column("updated_at", heading="updated"),
        Column("agent_id", heading="agent"),
        Column("team_id", heading="team"),
        Column("run_id", heading="run", look="id"),
        Column("created_at", heading="created"),
    ],
)


@app.command("list", epilog="Example: agentctl memories list --user ada --search train")
@with_target()
async def list_memories(
    target: Target,
    out: ListOutput,
    filter: MemoryFilter,
    only_topics: bool = flag("--topics", "List the topics of the memories instead, one per line"),
) -> None:
    """List memories, the last changed first."""
    if only_topics:
        if out.all_pages or filter != MemoryFilter(filter.user_id):
            raise UsageError("--topics has no other filter than --user")
        await _list_topics(target, out, filter.user_id)
        return

    await out.show(target, target.operations.memories.list, filter, _LIST_COLUMNS, "memory_id")


@app.command("get", epilog="Example: agentctl memories get 019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d31")
@with_target()
async def get_memory(target: Target, out: FieldsOutput, memory_id: MemoryId) -> None:
    """Show one memory."""
    document = await target.operations.memories.get(memory_id)
    out.show_record(document, _COLUMNS, "memory_id")


async def _list_topics(target: Target, out: CommandOutput, user: str | None) -> None:
    document = await target.operations.memories.list_topics(user_id=user)
    if out.format == "json":
        write_json(document.raw)
        return
    for topic in document.value:
        write_line(str(topic))


@app.command("add", epilog='Example: agentctl memories add "Prefers trains" --user ada')
@with_target()
async def add_memory(
    target: Target,
    out: CommandOutput,
    text: Annotated[str, argument("TEXT", "Text of the memory (- reads stdin)")],
    topic: Topics = None,
    user: Owner = None,
    agent: str | None = option("--agent", "ID", "Agent that the memory comes from"),
    team: str | None = option("--team", "ID", "Team that the memory comes from"),
) -> None:
    """Add a memory of a user."""
    memory = NewMemory(read_text_or_stdin(text, "text"), tuple(topic or ()), user, agent, team)
    document = await target.operations.memories.create(memory)
    out.show_record(document, _COLUMNS, "memory_id")
    target.report_done(f"added memory {document.value['memory_id']}")


@app.command("edit", epilog='Example: agentctl memories edit MEMORY_ID --text "Likes tea"')
@with_target()
async def edit_memory(
    target: Target,
    out: CommandOutput,
    memory_id: MemoryId,
    text: str | None = option("--text", "TEXT", "New text (- reads stdin)"),
    topic: Topics = None,
    no_topics: bool = flag("--no-topics", "Remove all topics"),
) -> None:
    """Replace the text or the topics of a memory."""
    if topic and no_topics:
        raise UsageError("--topic and --no-topics cannot be used together")
    if text is None and not topic and not no_topics:
        raise UsageError("nothing to change", hint="pass --text, --topic or --no-topics")
    topics = tuple(topic or ()) if topic or no_topics else None
    patch = MemoryPatch(None if text is None else read_text_or_stdin(text, "text"), topics)
    document = await target.operations.memories.update(memory_id, patch)
    out.show_record(document, _COLUMNS, "memory_id")
    target.report_done(f"changed memory {memory_id}")


@app.command("delete", epilog="Example: agentctl memories delete MEMORY_ID --yes")
@with_target()
async def delete_memories(
    target: Target,
    memory_ids: Annotated[
        list[str] | None,
        ShortId("memory"),
        argument("MEMORY_ID", "Memory ids", autocompletion=complete_values("memory")),
    ] = None,
    every: bool = flag("--all", "Delete all memories of the user of --user"),
    user: str | None = option("--user", "USER", "With --all: owner of the memories"),
    yes: Yes = False,
) -> None:
    """Delete memories: all of the given ids, or none.

    With --all and --user, deletes every memory of a user. Sessions and runs stay.
    """
    if every or user is not None:
        if memory_ids:
            raise UsageError("give MEMORY_ID, or --all and --user")
        if not every or user is None:
            raise UsageError("--all and --user need each other")
        await _forget_user(target, user, yes=yes)
        return

    if not memory_ids:
        raise UsageError("give a MEMORY_ID, or --all and --user")
    unique = tuple(memory_ids)
    what = f"memory {unique[0]}" if len(unique) == 1 else f"{len(unique)} memories"
    confirm(f"Delete {what}, {target.place}?", yes=yes)
    if len(unique) == 1:
        await target.operations.memories.delete(unique[0])
    else:
        await target.operations.memories.delete_several(MemoryDeletion(unique))
    target.report_done(f"deleted {what}")


async def _forget_user(target: Target, user: str, *, yes: bool) -> None:
    """Delete every memory of a user, after a confirmation."""
    page = Page(limit=1, sort_by="updated_at")
    memories = (await target.operations.memories.list(MemoryFilter(user, page=page))).value
    total = format_count(memories["meta"]["total_count"], "memory", "memories")
    if memories["meta"]["total_is_capped"]:
        total = f"more than {total}"
    confirm(f"Delete {total} of user {user}, {target.place}?", yes=yes)
    await target.operations.memories.delete_several(MemoryDeletion(user_id=user, all=True))
    target.report_done(f"deleted {total} of user {user}")


@app.command("export", epilog="Example: agentctl memories export --user ada --to-file ada.jsonl")
@with_target()
async def export_memories(target: Target, to_file: ToFile = None, user: UserId = None) -> None:
    """Export memories as JSON Lines, oldest first.

    A file is written completely or not at all. An existing file is never overwritten.
    """
    counter = Counter("memories exported")
    async with aclosing(_read_memories(target, user)) as memories:
        if to_file is None or str(to_file) == "-":
            async for memory in memories:
                write_json(_dump(memory))
            return

        with creating_file(to_file) as file:
            async with showing_progress(counter):
                async for memory in memories:
                    file.write(_dump(memory) + b"\n")
                    counter.done += 1
    note(f"wrote {format_count(counter.done, 'memory', 'memories')} to {to_file}")


@app.command("import", epilog="Example: agentctl memories import ada.jsonl --user ada")
@with_target()
async def import_memories(
    target: Target,
    source: Annotated[str, argument("FILE", "File that `export` wrote (- reads stdin)")],
    user: str | None = option(
        "--user", "USER", "Owner of all memories, instead of the exported ones"
    ),
) -> None:
    """Import memories that `export` wrote.

    Memories get new ids. A memory whose user already has one with the same text is skipped, so an
    interrupted import can be repeated. The whole file is checked before the first memory is added.
    """
    memories = [
        memory if user is None else replace(memory, user_id=user)
        for memory in _parse_lines(read_file_or_stdin(source))
    ]

    counter = Counter("memories imported", len(memories))
    known_texts: dict[str | None, set[str]] = {}
    skipped = 0
    async with showing_progress(counter):
        for memory in memories:
            if memory.user_id not in known_texts:
                async with aclosing(_read_memories(target, memory.user_id)) as stored:
                    known_texts[memory.user_id] = {str(row["memory"]) async for row in stored}

            if memory.memory in known_texts[memory.user_id]:
                skipped += 1
            else:
                await target.operations.memories.create(memory)
                known_texts[memory.user_id].add(memory.memory)
            counter.done += 1

    imported = format_count(len(memories) - skipped, "memory", "memories")
    target.report_done(f"imported {imported}, skipped {skipped}")


def _read_memories(target: Target, user_id: str | None) -> AsyncGenerator[Record]:
    page = Page(limit=MAXIMUM_LIMIT, sort_by="created_at", sort_order="asc")
    return read_rows(target.operations.memories.list, MemoryFilter(user_id, page=page))


def _dump(memory: Record) -> bytes:
    import orjson

    return orjson.dumps(memory)


def _parse_lines(data: bytes) -> Iterator[NewMemory]:
    import orjson

    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield _build_memory(orjson.loads(line))
        except (orjson.JSONDecodeError, TypeError):
            raise UsageError(
                f"line {number} is not a memory",
                cause="a line is a JSON object with the text in `memory`",
                hint="nothing was imported; export memories with: agentctl memories export",
            ) from None


def _build_memory(record: object) -> NewMemory:
    if not isinstance(record, dict) or not isinstance(record.get("memory"), str):
        raise TypeError
    topics = record.get("topics") or []
    optional = {name: record.get(name) for name in ("user_id", "agent_id", "team_id")}
    if not isinstance(topics, list) or not all(isinstance(topic, str) for topic in topics):
        raise TypeError
    if not all(value is None or isinstance(value, str) for value in optional.values()):
        raise TypeError
    return NewMemory(record["memory"], tuple(topics), **optional)
