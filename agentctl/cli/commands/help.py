"""`agentctl help`: help topics, and the help of a command."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from agentctl.cli.parameters import argument
from agentctl.cli.show.output import write_line
from agentctl.errors import UsageError

EXAMPLE = "agentctl help exit-codes"

TEMPLATES = Path(__file__).parents[1] / "templates"
"""The folder of the texts that commands write."""

EXIT_CODES = {
    0: "done; an empty list too",
    1: "failed, or the result is no; a run ended as ERROR or was cancelled, a part of several "
    "failed, the port is in use, the schema version differs",
    2: "the command line, the configuration or a key is rejected; not confirmed",
    4: "not authenticated, or not allowed",
    5: "not found",
    6: "conflict with the current state",
    7: "the database or the server is not available",
    8: "requested, and not finished within --wait",
    9: "the run waits for a decision",
    130: "interrupted by Ctrl-C",
}
"""The meaning of each exit code (docs/contract.md "Command line")."""

ENVIRONMENT = {
    "AGENTCTL_CONFIG": "the configuration file, as --config; does not select local mode by itself",
    "AGENTCTL_CONTEXT": "the context, as --context",
    "AGENTCTL_TOKEN": "the token for servers",
    "AGENTCTL_OUTPUT": "the output format, as -o",
    "AGENTCTL_NO_INPUT": "1: never ask, as --no-input",
    "JWT_VERIFICATION_KEY": "one more key to verify tokens with",
    "JWT_JWKS_FILE": "the JWKS to verify tokens with",
    "AGENTCTL_SECTION__KEY": "a configuration key: AGENTCTL_SERVER__PORT",
    "AGENTCTL_PAGER": "the pager of transcripts; empty: none",
    "NO_COLOR": "any text: no colours",
    "FORCE_COLOR": "1: colours off a terminal too",
    "CLICOLOR_FORCE": "the same as FORCE_COLOR",
    "COLUMNS": "the width of tables (default: the width of the terminal)",
}
"""The environment variables that commands read."""

_FORMATS = """\
stdout has data only; notes, questions and errors go to stderr. -o chooses the format:

  table  for people; the default at a terminal
  wide   a table with every column and whole ids
  tsv    a line of field names, then a line for each record; the default elsewhere
  json   the document of the server, byte for byte
  jsonl  one record on each line; for runs start and runs watch one event
  name   ids only, for the next command

Commands with a transcript have text and markdown, too. --fields of a list chooses its fields.

Examples:
  agentctl sessions list -o json
  agentctl sessions list -o name | xargs agentctl sessions delete --yes"""

_TARGETS = """\
A command talks to the first of these:

  1. the server of --url
  2. the server of the context: --context, else AGENTCTL_CONTEXT, else the current context
  3. the service in this process, on the configuration and its databases; also with --config

The configuration is the file of --config, else of AGENTCTL_CONFIG, else agentctl.toml in the
current directory, else that of the user. `agentctl config path` prints it.

Examples:
  agentctl sessions list --url http://127.0.0.1:7777
  agentctl context add demo --url http://127.0.0.1:7777 --use"""

_AUTHENTICATION = """\
A server receives the token of --token-file (- reads stdin), else of AGENTCTL_TOKEN, else of the
token file of the context, else of `agentctl login`. No option takes the token itself: other users
can read command lines.
Over plain http a token leaves this machine only with --insecure-http. In local mode no token is
used: the caller is an administrator, or the user of --as-user.

Examples:
  export AGENTCTL_TOKEN=$(agentctl token mint --sub me --scope sessions:read)
  agentctl auth whoami --url http://127.0.0.1:7777
  agentctl auth explain GET /sessions"""

_TIMES = """\
Times are UTC, in RFC 3339: 2030-01-31T12:00:00Z. Options that take an age or a duration take a
number with a unit, such as 90s, 10m, 2h or 7d; options in SECONDS take a number.

Examples:
  agentctl runs list --older-than 10m --newer-than 2h
  agentctl token mint --sub me --scope sessions:read --expires-in 1h"""


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
    words: list[str] | None = argument(
        "TOPIC", "A topic, or a command: runs list", autocompletion=complete_topic
    ),
) -> None:
    """Show a help topic or the help of a command. Without a TOPIC it lists the topics."""
    if not words:
        width = max(map(len, TOPICS)) + 2
        lines = [f"  {name:<{width}}{topic.summary}" for name, topic in TOPICS.items()]
        write_line("\n".join(["Help topics:", *lines, "", "Example:", f"  {EXAMPLE}"]))
        return

    if len(words) == 1 and words[0] in TOPICS:
        write_line(TOPICS[words[0]].read())
        return

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


def _list_terms(introduction: str, terms: Mapping[str, str]) -> str:
    width = max(map(len, terms)) + 4
    lines = [
        textwrap.fill(
            meaning, 78, initial_indent=f"  {term:<{width - 2}}", subsequent_indent=" " * width
        )
        for term, meaning in terms.items()
    ]
    return "\n".join([introduction, "", *lines])


@dataclass(frozen=True, slots=True)
class Topic:
    """A help topic."""

    summary: str
    text: str = ""

    file: str = ""
    """Name of the template that has the text; empty for `text`."""

    def read(self) -> str:
        """Return the text, without a line feed at its end."""
        if not self.file:
            return self.text
        return (TEMPLATES / self.file).read_text(encoding="utf-8").rstrip("\n")


TOPICS = {
    "exit-codes": Topic(
        "Meaning of the exit codes",
        _list_terms(
            "A command ends with one of these exit codes:",
            {str(code): meaning for code, meaning in EXIT_CODES.items()},
        ),
    ),
    "environment": Topic(
        "Environment variables",
        _list_terms(
            "Commands read these environment variables; other AGENTCTL_ names are ignored:",
            ENVIRONMENT,
        ),
    ),
    "formats": Topic("Output formats", _FORMATS),
    "targets": Topic("Servers, contexts and local mode", _TARGETS),
    "authentication": Topic("Tokens for servers", _AUTHENTICATION),
    "times": Topic("Times, ages and durations", _TIMES),
    "skill": Topic("Host an agent, step by step: a skill for coding agents", file="SKILL.md"),
}
"""The topics in the order of their list."""
