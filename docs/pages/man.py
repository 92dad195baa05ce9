"""`agentctl.1`: the manual page, from the Typer tree and the help topics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctl import __version__
from agentctl.cli.commands.help import ENVIRONMENT, EXIT_CODES, TOPICS
from agentctl.cli.help import first_sentence
from pages.cli import PROGRAM, SHARED_COMMANDS, commands_once, group_commands

__all__ = ["page"]

_IN_SECTIONS = ("exit-codes", "environment")


def page() -> str:
    """Build `agentctl.1` in the macros of man(7)."""
    found = list(commands_once())
    return "\n".join([*_head(found[0][1]), *_commands(found), *_topics(), ""])


def _head(root: Any) -> Iterator[str]:
    yield '.\\" Generated from the commands in agentctl/cli by docs/generate.py; do not edit.'
    yield f'.TH AGENTCTL 1 "" "agentctl {__version__}" "agentctl manual"'
    yield ".SH NAME"
    yield f"{PROGRAM} \\- {_escape(first_sentence(root).lower())}"
    yield ".SH SYNOPSIS"
    yield f".B {PROGRAM}"
    yield ".I COMMAND"
    yield "[OPTIONS]"


def _commands(found: list[tuple[str, Any]]) -> Iterator[str]:
    import typer

    for heading, section in group_commands(found):
        yield f'.SH "COMMANDS: {heading.upper()}"'
        for path, command in section:
            yield f'.SS "{_escape(path)}"'
            if path in SHARED_COMMANDS:
                noun = path.rpartition(" ")[2]
                yield _escape(f"The commands of {SHARED_COMMANDS[path]}, for {noun}.")
                continue

            context = typer.Context(command)
            usage = " ".join([path, *command.collect_usage_pieces(context)])
            yield _escape(usage)
            for paragraph in (command.help or "").strip().split("\n\n"):
                yield ".PP"
                yield _escape(" ".join(paragraph.split()))
            for parameter in command.params:
                yield ".TP"
                flags, text = parameter.get_help_record(context)
                yield f".B {_escape(flags.partition(' <')[0])}"
                yield _escape(text) or "\\&"
            if command.epilog:
                yield ".PP"
                yield _escape(command.epilog)


def _topics() -> Iterator[str]:
    for title, terms in (
        ("EXIT STATUS", {str(code): meaning for code, meaning in EXIT_CODES.items()}),
        ("ENVIRONMENT", ENVIRONMENT),
    ):
        yield f".SH {title}"
        for term, meaning in terms.items():
            yield ".TP"
            yield f".B {_escape(term)}"
            yield _escape(meaning)
    for name, topic in TOPICS.items():
        if name not in _IN_SECTIONS and not topic.file:
            yield f'.SH "{_escape(topic.summary.upper())}"'
            yield ".nf"
            yield from map(_escape, topic.text.splitlines())
            yield ".fi"


def _escape(text: str) -> str:
    """Escape a line of text: backslashes, hyphens, and a leading control character."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped[:1] in (".", "'") else escaped
