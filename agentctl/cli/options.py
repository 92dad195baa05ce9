"""Options that more than one command has, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from agentctl.cli.output import Format
from agentctl.operations import MAXIMUM_LIMIT
from agentctl.records.kinds import Kind

__all__ = [
    "AgentId",
    "AsUser",
    "Config",
    "ContextName",
    "Cursor",
    "DbId",
    "InsecureHttp",
    "KindOption",
    "Limit",
    "LocalConfig",
    "Output",
    "PageNumber",
    "SessionOption",
    "SortOrder",
    "Table",
    "TeamId",
    "TokenFile",
    "Url",
    "UserId",
    "WorkflowId",
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
    typer.Option("--config", metavar="FILE", help="Read this configuration [env: AGENTCTL_CONFIG]"),
]
LocalConfig = Annotated[
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
KindOption = Annotated[Kind | None, typer.Option("--type", help="Only of this type")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAXIMUM_LIMIT, help="How many at most")]
PageNumber = Annotated[int, typer.Option("--page", min=1, help="Which page, from 1")]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on where an answer ended")
]
SortOrder = Annotated[Literal["asc", "desc"], typer.Option("--sort-order", help="Which end first")]
AgentId = Annotated[str | None, typer.Option("--agent", metavar="ID", help="Id of the agent")]
TeamId = Annotated[str | None, typer.Option("--team", metavar="ID", help="Id of the team")]
WorkflowId = Annotated[
    str | None, typer.Option("--workflow", metavar="ID", help="Id of the workflow")
]
SessionOption = Annotated[
    str | None, typer.Option("--session", metavar="ID", help="Id of the session")
]
