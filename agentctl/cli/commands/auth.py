"""`agentctl auth`: who you are, who may do what, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.door import Connection, Door, Local, open_door, with_door
from agentctl.cli.help import Branch
from agentctl.cli.options import (
    AgentId,
    Config,
    ContextName,
    GivenTokenFile,
    InsecureHttp,
    LocalConfig,
    Output,
    SessionOption,
    TeamId,
    Url,
    WorkflowId,
)
from agentctl.cli.output import Format, chosen_format, show_list, show_record, write_bytes
from agentctl.cli.table import Column
from agentctl.cli.terminal import note

if TYPE_CHECKING:
    from agentctl.records.authorization import ExplainRecord
    from agentctl.records.document import Document

__all__ = ["app"]

app = Branch(
    help="Ask who you are, who may do what, and why not.",
    epilog="Example: agentctl auth explain GET /agents --token-file my.token",
)

Method = Annotated[str, typer.Argument(metavar="METHOD", help="HTTP method, such as GET")]
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Path, as in /agents/writer/runs; a query may follow")
]
What = Annotated[
    str,
    typer.Argument(metavar="WHAT", help="A scope, an operation, or an HTTP method with a path"),
]
OfMethod = Annotated[
    str | None, typer.Argument(metavar="PATH", help="Path, behind a method", show_default=False)
]
NoToken = Annotated[bool, typer.Option("--no-token", help="Explain a request without a token")]

_WITHOUT = {"token": "(any valid token)", "nothing": "(public)"}

_ME = [
    Column("principal"),
    Column("admin"),
    Column("auth_mode", heading="authorization"),
    Column("scopes", lambda record: ", ".join(record["scopes"]), look="whole"),
]
_ANSWER = [
    Column("allowed"),
    Column("principal"),
    Column("asked"),
    Column("by"),
    Column("required_scopes", lambda record: ", ".join(record["required_scopes"]), look="whole"),
]
_STEPS = [
    Column("name", heading="step"),
    Column("outcome"),
    Column("found", look="whole"),
]
_WHOLE_STEPS = [*_STEPS, Column("cause"), Column("remedy")]
_SCOPES = [
    Column("scope", lambda entry: entry["scope"] or _WITHOUT[entry["needs"]]),
    Column("also_as", lambda entry: ", ".join(entry["forms"][1:]), look="whole"),
    Column(
        "opens",
        lambda entry: ", ".join(each["operation"] for each in entry["operations"]),
        look="whole",
    ),
]


@app.command("whoami", epilog="Example: agentctl auth whoami --url http://127.0.0.1:7777")
@with_door()
async def whoami(door: Door, output: Output = None) -> None:
    """Show who you are to a server, and what you may do there.

    Locally that is the user of this machine, who may do everything.
    """
    from agentctl.cli.tokenview import lifetime
    from agentctl.records.document import document_of

    form = chosen_format(output)
    me = await door.operations.get_me()
    if form == "json":
        write_bytes(me.raw)
        return
    record = {**me.value, **lifetime(door.token)}
    times = [Column(name) for name in record if name not in me.value]
    show_record(document_of(record), [*_ME, *times], form, id_field="principal")


@app.command("can-i", epilog="Example: agentctl auth can-i POST /agents/writer/runs && echo yes")
@with_door()
async def can_i(
    door: Door,
    what: What,
    path: OfMethod = None,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    output: Output = None,
) -> None:
    """Ask whether you may do something: exit code 0 for yes, 1 for no.

    WHAT is a scope (agents:run), an operation (create_agent_run), or a method with a path. Whose
    sessions and runs you see is another question: `agentctl auth explain` answers both.
    """
    from agentctl.cli import permission
    from agentctl.records.document import document_of

    form = chosen_format(output)
    ids = {"agent_id": agent, "team_id": team, "workflow_id": workflow, "session_id": session}
    question = permission.question(
        what, path, {name: given for name, given in ids.items() if given}
    )
    me = (await door.operations.get_me()).value
    answer = permission.answer(question, me)
    show_record(document_of(answer), _ANSWER, form, id_field="allowed")
    if not answer["allowed"]:
        raise typer.Exit(1)


@app.command("explain", epilog="Example: agentctl auth explain GET /agents --token-file my.token")
def explain_request(
    method: Method,
    path: PathArgument,
    token_file: GivenTokenFile = None,
    no_token: NoToken = False,
    url: Url = None,
    context: ContextName = None,
    insecure_http: InsecureHttp = False,
    config: LocalConfig = None,
    output: Output = None,
) -> None:
    """Show which checks a request passes, where it breaks, and what would mend it.

    Locally by the configuration, and what is stored in its database. On a server as one of its
    administrators: AGENTCTL_TOKEN or the context says who asks, --token-file what is explained;
    where only one is given, it is both. The exit code is 0 when the request is allowed, 1 when not.
    """
    from agentctl.cli.interrupts import run_until_done

    connection = Connection(url, None, context, insecure_http, config)
    form = chosen_format(output)
    run_until_done(_explain(connection, (method, path), _explained(token_file, no_token), form))


@app.command("scopes", epilog="Example: agentctl auth scopes -o json")
def list_scopes(config: Config = None, output: Output = None) -> None:
    """List every scope, its forms, and the operations that it opens."""
    from agentctl.auth.scopetable import scope_table
    from agentctl.cli.optional import admin_scope_of, settings_if_any
    from agentctl.records.document import document_of

    form = chosen_format(output)
    settings, _ = settings_if_any(config)
    table = scope_table(admin_scope_of(settings))
    show_list(document_of(table), _SCOPES, form, id_field="scope")


def _explained(token_file: str | None, no_token: bool) -> str | None:
    """The token that is asked about; empty: none; None: the caller's own."""
    from agentctl.cli.credentials import token_from_file
    from agentctl.errors import UsageFailed

    if no_token and token_file is not None:
        raise UsageFailed("--token-file and --no-token exclude each other")
    return "" if no_token else None if token_file is None else token_from_file(token_file)


async def _explain(
    connection: Connection, asked: tuple[str, str], token: str | None, form: Format
) -> None:
    from agentctl.cli.credentials import given_token
    from agentctl.operations import ExplainRequest

    async with open_door(connection, Local(about_token=True), spare_token=token or None) as door:
        if door.local is not None and token is None:
            token = given_token(None)
        request = ExplainRequest(*asked, token)
        document = await door.operations.explain_auth(request)
        _show_explanation(document, form)
        if not document.value["allowed"]:
            raise typer.Exit(1)


def _show_explanation(document: Document[ExplainRecord], form: Format) -> None:
    """The steps on stdout, and in one word what comes of them on stderr."""
    from agentctl.records.document import document_of

    record = document.value
    if form == "json":
        write_bytes(document.raw)
    else:
        whole = form != "table"
        steps = [step for step in record["steps"] if whole or step["outcome"] != "skipped"]
        columns = _WHOLE_STEPS if whole else _STEPS
        show_list(document_of(steps), columns, form, id_field="name")
    for line in _verdict(record):
        note(line)


def _verdict(record: ExplainRecord) -> list[str]:
    who = f" as {record['principal']}" if record["principal"] else ""
    if record["allowed"]:
        return [f"allowed: {record['operation']}{who}"]
    failed = next(step for step in record["steps"] if step["name"] == record["decided_by"])
    told = [f"{record['status']}: refused by {failed['name']}{who}"]
    told += [f"  cause: {failed['cause']}"] if failed["cause"] else []
    return [*told, "", f"hint: {failed['remedy']}"] if failed["remedy"] else told
