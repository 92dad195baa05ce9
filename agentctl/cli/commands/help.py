"""`agentctl help`: help topics, and the help of a command."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agentctl.cli.options import argument
from agentctl.cli.show.output import write_line
from agentctl.cli.topics import TOPICS
from agentctl.errors import UsageError

EXAMPLE = "agentctl help exit-codes"


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics and commands, or the commands of a group, that begin with a text."""
    words = context.params.get("words") or []
    command: Any = context.find_root().command
    for word in words:
        command = getattr(command, "commands", {}).get(word)
    names = [*([] if words else TOPICS), *getattr(command, "commands", {})]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        argument("TOPIC", "A topic, or a command: runs list", autocompletion=complete_topic),
    ] = None,
) -> None:
    """Show a help topic or the help of a command. Without a TOPIC it lists the topics."""
    if not words:
        width = max(map(len, TOPICS)) + 2
        lines = [f"  {name:<{width}}{topic.summary}" for name, topic in TOPICS.items()]
        write_line("\n".join(["Help topics:", *lines, "", "Example:", f"  {EXAMPLE}"]))
    elif len(words) == 1 and words[0] in TOPICS:
        write_line(TOPICS[words[0]].text)
    else:
        place: Any = context.find_root()
        for word in words:
            command = getattr(place.command, "commands", {}).get(word)
            if command is None:
                raise UsageError(
                    f"no help for {' '.join(words)!r}",
                    hint="`agentctl help` lists the topics, `agentctl --help` the commands",
                )
            place = typer.Context(command, info_name=word, parent=place)
        write_line(place.get_help())
