"""`agentctl auth`: who you are, who may do what, and why not.

`agentctl auth can-i`: a question about the policy, and its answer for one caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentctl.auth import policy
from agentctl.auth.explain.suggestions import routable_path, suggest_path
from agentctl.auth.principal import Principal
from agentctl.auth.scopes import KNOWN_SCOPES, find_covering_scope
from agentctl.auth.tokens.mint import check_mintable_scopes
from agentctl.cli.help import CommandApp
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
    resolve_admin_scope,
)
from agentctl.cli.show.output import Format, resolve_format, show_list, show_record, write_bytes
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import note
from agentctl.cli.target import LocalRules, Target, TargetOptions, open_target, with_target
from agentctl.errors import Forbidden, UsageError
from agentctl.records.routes import ROUTES, RouteMatch, route_table
from agentctl.records.text import suggest_name

if TYPE_CHECKING:
    from agentctl.records.authorization import ExplainRecord
    from agentctl.records.document import Document
    from agentctl.records.system import MeRecord

__all__ = ["Question", "answer_question", "app", "parse_question"]

app = CommandApp(
    help="Ask who you are, who may do what, and why not.",
    epilog="Example: agentctl auth explain GET /agents --token-file my.token",
)

Method = Annotated[str, typer.Argument(metavar="METHOD", help="HTTP method, such as GET")]
PathArgument = Annotated[
    str, typer.Argument(metavar="PATH", help="Path, as in /agents/writer/runs; a query may follow")
]
WhatArgument = Annotated[
    str,
    typer.Argument(metavar="WHAT", help="A scope, an operation, or an HTTP method with a path"),
]
OptionalPath = Annotated[
    str | None, typer.Argument(metavar="PATH", help="Path, behind a method", show_default=False)
]
NoToken = Annotated[bool, typer.Option("--no-token", help="Explain a request without a token")]

_NO_SCOPE = {"token": "(any valid token)", "nothing": "(public)"}

_WHOAMI_COLUMNS = [
    Column("principal"),
    Column("admin"),
    Column("auth_mode", heading="authorization"),
    Column("scopes", lambda record: ", ".join(record["scopes"]), look="whole"),
]
_CAN_I_COLUMNS = [
    Column("allowed"),
    Column("principal"),
    Column("asked"),
    Column("by"),
    Column("required_scopes", lambda record: ", ".join(record["required_scopes"]), look="whole"),
]
_STEP_COLUMNS = [
    Column("name", heading="step"),
    Column("outcome"),
    Column("found", look="whole"),
]
_ALL_STEP_COLUMNS = [*_STEP_COLUMNS, Column("cause"), Column("remedy")]
_SCOPE_COLUMNS = [
    Column("scope", lambda entry: entry["scope"] or _NO_SCOPE[entry["needs"]]),
    Column("also_as", lambda entry: ", ".join(entry["forms"][1:]), look="whole"),
    Column(
        "opens",
        lambda entry: ", ".join(each["operation"] for each in entry["operations"]),
        look="whole",
    ),
]


@app.command("whoami", epilog="Example: agentctl auth whoami --url http://127.0.0.1:7777")
@with_target()
async def whoami(target: Target, output: Output = None) -> None:
    """Show who you are to a server, and what you may do there.

    Locally that is the user of this machine, who may do everything.
    """
    from agentctl.cli.show.tokens import token_times
    from agentctl.records.document import build_document

    form = resolve_format(output)
    me = await target.operations.get_me()
    if form == "json":
        write_bytes(me.raw)
        return
    record = {**me.value, **token_times(target.token)}
    times = [Column(name) for name in record if name not in me.value]
    show_record(build_document(record), [*_WHOAMI_COLUMNS, *times], form, id_field="principal")


@app.command("can-i", epilog="Example: agentctl auth can-i POST /agents/writer/runs && echo yes")
@with_target()
async def can_i(
    target: Target,
    what: WhatArgument,
    path: OptionalPath = None,
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
    from agentctl.records.document import build_document

    form = resolve_format(output)
    ids = {"agent_id": agent, "team_id": team, "workflow_id": workflow, "session_id": session}
    question = parse_question(what, path, {name: given for name, given in ids.items() if given})
    me = (await target.operations.get_me()).value
    answer = answer_question(question, me)
    show_record(build_document(answer), _CAN_I_COLUMNS, form, id_field="allowed")
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
    from agentctl.cli.target import run_until_done

    connection = TargetOptions(url, None, context, insecure_http, config)
    form = resolve_format(output)
    run_until_done(
        _explain(connection, (method, path), _read_explained_token(token_file, no_token), form)
    )


@app.command("scopes", epilog="Example: agentctl auth scopes -o json")
def list_scopes(config: Config = None, output: Output = None) -> None:
    """List every scope, its forms, and the operations that it opens."""
    from agentctl.auth.policy import build_scope_table
    from agentctl.cli.options import load_optional_settings, resolve_admin_scope
    from agentctl.records.document import build_document

    form = resolve_format(output)
    settings, _ = load_optional_settings(config)
    table = build_scope_table(resolve_admin_scope(settings))
    show_list(build_document(table), _SCOPE_COLUMNS, form, id_field="scope")


def _read_explained_token(token_file: str | None, no_token: bool) -> str | None:
    """The token that is asked about; empty: none; None: the caller's own."""
    from agentctl.cli.target import read_token_file
    from agentctl.errors import UsageError

    if no_token and token_file is not None:
        raise UsageError("--token-file and --no-token exclude each other")
    return "" if no_token else None if token_file is None else read_token_file(token_file)


async def _explain(
    connection: TargetOptions, asked: tuple[str, str], token: str | None, form: Format
) -> None:
    from agentctl.cli.target import resolve_token
    from agentctl.operations import ExplainRequest

    async with open_target(
        connection, LocalRules(reads_token=True), fallback_token=token or None
    ) as target:
        if target.local is not None and token is None:
            token = resolve_token(None)
        request = ExplainRequest(*asked, token)
        document = await target.operations.explain_auth(request)
        _show_explanation(document, form)
        if not document.value["allowed"]:
            raise typer.Exit(1)


def _show_explanation(document: Document[ExplainRecord], form: Format) -> None:
    """The steps on stdout, and in one word what comes of them on stderr."""
    from agentctl.records.document import build_document

    record = document.value
    if form == "json":
        write_bytes(document.raw)
    else:
        whole = form != "table"
        steps = [step for step in record["steps"] if whole or step["outcome"] != "skipped"]
        columns = _ALL_STEP_COLUMNS if whole else _STEP_COLUMNS
        show_list(build_document(steps), columns, form, id_field="name")
    for line in _verdict_lines(record):
        note(line)


def _verdict_lines(record: ExplainRecord) -> list[str]:
    who = f" as {record['principal']}" if record["principal"] else ""
    if record["allowed"]:
        return [f"allowed: {record['operation']}{who}"]
    failed = next(step for step in record["steps"] if step["name"] == record["decided_by"])
    told = [f"{record['status']}: refused by {failed['name']}{who}"]
    told += [f"  cause: {failed['cause']}"] if failed["cause"] else []
    return [*told, "", f"hint: {failed['remedy']}"] if failed["remedy"] else told


_OPTIONS = {
    "agent_id": "--agent",
    "team_id": "--team",
    "workflow_id": "--workflow",
    "session_id": "--session",
}


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: for an operation, or for a scope.

    Attributes:
        asked: in the words of the asker.
        match: the operation, with the ids that are known.
        scope: when there is no operation.
    """

    asked: str
    match: RouteMatch | None = None
    scope: str = ""


def parse_question(what: str, path: str | None, ids: Mapping[str, str]) -> Question:
    """Read a question.

    Args:
        what: a scope, an operation id, or an HTTP method.
        path: of the method.
        ids: path parameters for an operation id.

    Raises:
        UsageFailed: it asks about nothing that there is.
    """
    if path is not None:
        _reject_unused_ids(ids, {}, f"{what} {path}")
        return Question(f"{what.upper()} {path}", _match_route(what.upper(), path))
    if what in policy.POLICY:
        named = {name for name in _OPTIONS if f"{{{name}}}" in ROUTES[what].template}
        _reject_unused_ids(ids, named, what)
        return Question(what, RouteMatch(what, dict(ids)))
    _reject_unused_ids(ids, {}, what)
    if ":" in what:
        return Question(what, scope=what)
    raise UsageError(
        f"{what!r} is no scope and no operation",
        hint=_nearest_operation(what) or "`agentctl auth scopes` lists both",
    )


def _match_route(method: str, path: str) -> RouteMatch:
    table, served = route_table(), routable_path(path)
    match = table.find("GET" if method == "HEAD" else method, served)
    if match is None:
        methods = ", ".join(table.methods(served))
        near = f"it has {methods}" if methods else suggest_path(table, method, served)
        raise UsageError(
            f"{method} {path} is no operation",
            cause=near,
            hint="`agentctl auth scopes` lists the operations",
        )
    return match


def _reject_unused_ids(ids: Mapping[str, str], named: Any, what: str) -> None:
    """Refuse ids that would do nothing."""
    for name in ids:
        if name not in named:
            raise UsageError(f"{_OPTIONS[name]} makes no sense with {what}")


def _nearest_operation(what: str) -> str | None:
    if what.upper() in {route.method for route in ROUTES.values()} | {"HEAD"}:
        return f"name a path too: agentctl auth can-i {what.upper()} /agents"
    near = suggest_name(what, [*policy.POLICY, *KNOWN_SCOPES], cutoff=0.6)
    return f"did you mean {near!r}?" if near else None


def answer_question(asked: Question, me: MeRecord) -> dict[str, Any]:
    """Whether the caller may do it, by what, and what would be needed.

    Args:
        asked: the question.
        me: who the caller is, as the server says.

    Raises:
        UsageFailed: it is about a scope that nobody knows.
    """
    held = frozenset(me["scopes"])
    principal = Principal(subject=me["principal"], scopes=held, admin=me["admin"])
    told = {"allowed": False, "principal": me["principal"], "asked": asked.asked, "by": None}
    if asked.match is None:
        return told | _answer_about_scope(asked.scope, principal)
    needed = {"required_scopes": list(policy.required_scopes(*asked.match))}
    try:
        policy.authorize(principal, *asked.match)
    except Forbidden:
        return told | needed
    return told | needed | {"allowed": True, "by": policy.describe_grant(principal, asked.match)}


def _answer_about_scope(scope: str, principal: Principal) -> dict[str, Any]:
    needed = {"required_scopes": [scope]}
    if scope not in principal.scopes:
        check_mintable_scopes((scope,), resolve_admin_scope(None))
    if principal.admin:
        return {"allowed": True, "by": "the caller is an administrator", **needed}
    by = find_covering_scope(principal.scopes, scope)
    return needed if by is None else {"allowed": True, "by": f"granted by {by}", **needed}
