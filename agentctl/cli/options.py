"""Options that more than one command has, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctl.cli.output import Format

__all__ = [
    "AsUser",
    "Config",
    "ContextName",
    "DbId",
    "InsecureHttp",
    "Output",
    "Table",
    "TokenFile",
    "Url",
    "UserId",
    "Yes",
]

Output = Annotated[
    Format | None,
    typer.Option(
        "--output", "-o",
        help="Form of the output [env: AGENTCTL_OUTPUT; default: table on a terminal, else tsv]",
    ),
]  # fmt: skip
Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE", help="Work locally with this file [env: AGENTCTL_CONFIG]"
    ),
]
Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="Talk to this server")]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Use this context [env: AGENTCTL_CONTEXT]"),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="Read the token here, - for stdin [env: AGENTCTL_TOKEN]",
    ),
]
InsecureHttp = Annotated[
    bool, typer.Option("--insecure-http", help="Send the token unencrypted to another machine")
]
AsUser = Annotated[
    str | None,
    typer.Option("--as-user", metavar="USER", help="Locally: see and own what this user does"),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for a confirmation")]
DbId = Annotated[str | None, typer.Option("--db", metavar="ID", help="Id of the database")]
Table = Annotated[str | None, typer.Option("--table", metavar="NAME", help="Name of the table")]
UserId = Annotated[str | None, typer.Option("--user", metavar="USER", help="Only of this user")]
